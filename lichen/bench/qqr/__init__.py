"""``lichen bench qqr``: the study of the QQR paper, its baselines, and what goes beyond it.

One run (:mod:`one`) is a seeded fleet on one setting (:mod:`setting`). A part (:mod:`parts`) is a table:
variants as data, rows from their runs. Runs that several parts want are made once, with every probe that one
of them asks (:mod:`runner`), and kept (:mod:`store`). What is compared, with which options, stands in
:mod:`variants`.
"""

from typing import Final

from lichen.bench._study.parts import Parts
from lichen.bench._study.study import Study
from lichen.bench.qqr import variants as v
from lichen.bench.qqr.runner import every_probe, trained
from lichen.bench.qqr.setting import Outcome, Setting
from lichen.bench.qqr.store import Store

STUDY: Final = Study[Setting, Outcome](
    name="qqr",
    title="the QQR study: missing and noisy modalities, bytes, dead sensors, new classes, own models",
    parts=Parts(f"{__name__}.parts", "qqr"),
    store=Store,
    run=trained,
    report=f"{__name__}.report.page",
    seeds=v.SEEDS,
    merge=every_probe,
)
BENCH: Final = STUDY.bench()
