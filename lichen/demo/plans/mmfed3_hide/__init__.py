"""MMFeD3-HidE's demo: sites that complete their own graphs together, and show nobody what is in them."""

from lichen.demo.plans.mmfed3_hide.checks import checks
from lichen.demo.plans.mmfed3_hide.course import live
from lichen.demo.plans.mmfed3_hide.prepare import prepare
from lichen.demo.plans.mmfed3_hide.summary import table
from lichen.demo.running import Demo

DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
