"""``lichen bench qqr``: the study of the QQR paper, its baselines, and what goes beyond it.

One run (:mod:`one`) is a seeded fleet on one setting (:mod:`setting`). A part (:mod:`parts`) is a table:
variants as data, rows from their runs. Runs that several parts want are made once (:mod:`runner`) and kept
(:mod:`store`). What is compared, with which options, stands in :mod:`variants`.
"""

from typing import Final

from lichen.bench.qqr import parts
from lichen.bench.qqr.whole import quick_or_whole
from lichen.bench.result import Bench

BENCH: Final = Bench(
    name="qqr",
    title="the QQR study: missing and noisy modalities, bytes, dead sensors, new classes, own models",
    run=quick_or_whole,
    goals=tuple(goal for name in parts.names() for goal in parts.part(name).goals),
)
