"""Finished runs of the study on disk."""

from functools import cache
from pathlib import Path
from typing import Final

from lichen.bench._kept import Format, Kept, digest
from lichen.bench.disentafl.one import One
from lichen.bench.disentafl.setting import Outcome
from lichen.datasets.places import cache_folder

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


@cache
def code_version() -> str:
    """A digest of the sources and libraries that decide what a run gives."""
    return digest(SOURCES, ("numpy", "torch"))


@cache
def figures_version() -> str:
    """A digest of the sources that decide which figures a run leaves."""
    return digest(_FIGURES, ())


def default_file() -> Path:
    """Where runs are kept when nobody says where."""
    return cache_folder().parent / "bench" / "disentafl.jsonl"


def store(path: Path | None, *, any_code: bool = False) -> Kept[One, Outcome]:
    """The finished runs; see :class:`lichen.bench._kept.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """
    form = Format(default_file, code_version, figures_version, Outcome.of_json)
    return Kept(path, form, any_code=any_code)
