"""DisentAFL's demo: watches with different sensors, that learn different things, share one supernet."""

from lichen.demo.assembled import Assembled
from lichen.demo.kind import Demo
from lichen.demo.plans.disentafl.checks import checks
from lichen.demo.plans.disentafl.course import live
from lichen.demo.plans.disentafl.prepare import prepare
from lichen.demo.plans.disentafl.summary import table

DEMO: Demo = Assembled(prepare, live, checks, table, f"{__name__}.report")
