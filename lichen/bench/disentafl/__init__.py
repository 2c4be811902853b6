"""The study of DisentAFL: fleets whose devices differ in sensors and targets, every method on the same ones.

Chen and Zhang, On Disentanglement of Asymmetrical Knowledge Transfer for Modality-Task Agnostic Federated
Learning, AAAI 2024: their simulations, made from data that is at hand.
"""

from typing import Final

from lichen.bench.disentafl import parts
from lichen.bench.disentafl.whole import quick_or_whole
from lichen.bench.result import Bench

BENCH: Final = Bench(
    name="disentafl",
    title="the DisentAFL study: devices with different sensors and targets; ablation, bytes, cost",
    run=quick_or_whole,
    goals=tuple(goal for name in parts.names() for goal in parts.part(name).goals),
)
