"""MMFeD3-HidE's demo: sites that complete their own graphs together, and show nobody what is in them."""

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.plans.mmfed3_hide.checks import checks
from lichen_lab.demo.plans.mmfed3_hide.prepare import prepare
from lichen_lab.demo.plans.mmfed3_hide.steps import live
from lichen_lab.demo.plans.mmfed3_hide.summary import table

DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
