"""TACTFL's demo: watches that know no label, one of them broken, and a coordinator that has a few labels."""

from lichen.demo.plans.tactfl.checks import checks
from lichen.demo.plans.tactfl.course import live
from lichen.demo.plans.tactfl.prepare import prepare
from lichen.demo.plans.tactfl.summary import table
from lichen.demo.running import Demo

DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
