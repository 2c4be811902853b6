"""Shares of labelled windows under the paper's smallest; runs only when named."""

from typing import Final

from lichen_lab.benchmarks.studies.tactfl.part import Part
from lichen_lab.benchmarks.studies.tactfl.parts.labels import VERSUS, lines

PART: Final = Part(
    name="scarce",
    place=10,
    title="few labels: shares under the paper's",
    variants=lines((0.02, 0.05)),
    versus=VERSUS,
    by_default=False,
)
