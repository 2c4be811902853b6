"""Finished runs of the study on disk."""

from pathlib import Path
from typing import Final

from lichen.bench._kept import Kept, format_of
from lichen.bench.disentafl.one import One
from lichen.bench.disentafl.setting import Outcome

_FIGURES: Final = ("lichen/bench/disentafl/scores.py", "lichen/bench/disentafl/setting.py")
"""What decides which figures a run leaves, and what they mean."""
_HERE: Final = (
    "baselines",
    "federation.py",
    "fleets.py",
    "judges.py",
    "made.py",
    "merge_fa.py",
    "pictures.py",
    "scores.py",
    "setting.py",
    "uci_har.py",
    "vehicle.py",
    "windows.py",
)
SOURCES: Final = (
    *(f"lichen/bench/disentafl/{name}" for name in _HERE),
    "models",
    "protocol",
    "coordinator/aggregation.py",
    "coordinator/doorkeeper.py",
    "coordinator/policies",
    "coordinator/screen.py",
    "edge_agent/packing.py",
    "lichen/datasets",
    "lichen/simulated_device.py",
    "lichen/simulated_round.py",
)
"""Whatever a run's figures depend on; the parts, the tables and the report are not among them."""


def store(path: Path | None, *, any_code: bool = False) -> Kept[One, Outcome]:
    """The finished runs; see :class:`lichen.bench._kept.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """
    return Kept(path, format_of("disentafl", SOURCES, _FIGURES, Outcome.of_json), any_code=any_code)
