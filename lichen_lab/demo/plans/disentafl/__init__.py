"""DisentAFL's demo: watches with different sensors, that learn different things, share one supernet."""

from lichen_lab.demo.core.run import Demo
from lichen_lab.demo.plans.disentafl.checks import checks
from lichen_lab.demo.plans.disentafl.prepare import prepare
from lichen_lab.demo.plans.disentafl.steps import live
from lichen_lab.demo.plans.disentafl.summary import table

DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
