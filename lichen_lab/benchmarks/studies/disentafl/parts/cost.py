"""What a device moves and holds as inputs, targets, domains and devices grow: counted, no runs."""

from typing import Final

from lichen_lab.benchmarks.studies.disentafl import cost
from lichen_lab.benchmarks.studies.disentafl.part import Part

PART: Final = Part(
    name="cost",
    place=4,
    title="what a device moves and holds as modalities, targets, domains and devices grow",
    computed=cost.rows,
    goals=cost.GOALS,
)
