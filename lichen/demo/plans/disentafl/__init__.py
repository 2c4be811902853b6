"""DisentAFL's demo: watches with different sensors, that learn different things, share one supernet."""

from lichen.demo.plans.disentafl.checks import checks
from lichen.demo.plans.disentafl.course import live
from lichen.demo.plans.disentafl.prepare import prepare
from lichen.demo.plans.disentafl.summary import table
from lichen.demo.running import Demo

DEMO = Demo(prepare, live, checks, table, f"{__name__}.report")
