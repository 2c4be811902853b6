"""``lichen bench qqr``: the study of the QQR paper, its baselines, and what goes beyond it.

One run (:mod:`one`) is a seeded fleet on one setting (:mod:`setting`). A part (:mod:`parts`) is a table:
variants as data, rows from their runs. Runs that several parts want are made once, with every probe that one
of them asks (:mod:`runner`), and kept (:mod:`store`). What is compared, with which options, stands in
:mod:`variants`.
"""

from typing import Final

from lichen_lab.benchmarks.studies.qqr import variants as v
from lichen_lab.benchmarks.studies.qqr.runner import every_probe, trained
from lichen_lab.benchmarks.studies.qqr.settings import Outcome, Setting
from lichen_lab.benchmarks.studies.qqr.store import Store
from lichen_lab.benchmarks.study.parts import Parts
from lichen_lab.benchmarks.study.study import Study

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
