"""TACTFL's demo: watches that know no label, one of them broken, and a coordinator that has a few labels."""

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.plans.tactfl.checks import checks
from lichen_lab.demo.plans.tactfl.prepare import prepare
from lichen_lab.demo.plans.tactfl.steps import live
from lichen_lab.demo.plans.tactfl.summary import table

DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
