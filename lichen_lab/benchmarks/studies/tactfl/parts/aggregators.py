"""What the coordinator makes of the mean update, with and without the similarity weights."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.studies.tactfl import names as n
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.part import Part

AGGREGATORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "on FedAvg": {},
    "on FedAdam": v.FEDADAM,
    "on FedYogi": v.FEDYOGI,
}
"""In words -> ``task.aggregator``."""
_LINES: Final = (n.TACTFL, n.TACTFL_TUNED)
_EQUAL: Final = (n.NO_SIMILARITY, n.NO_SIMILARITY_TUNED)
"""Not of FedYogi, which differs from FedAdam in one sign."""

PART: Final = Part(
    name="aggregators",
    place=6,
    title="similarity weights on FedAvg, FedAdam and FedYogi",
    variants=tuple(
        v.line(title, v.UCI_HAR, words, setting={"aggregator": aggregator})
        for words, aggregator in AGGREGATORS.items()
        for title in _LINES + (() if aggregator == v.FEDYOGI else _EQUAL)
    ),
    versus=((n.TACTFL, n.NO_SIMILARITY), (n.TACTFL_TUNED, n.NO_SIMILARITY_TUNED)),
)
