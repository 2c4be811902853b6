"""Finished runs of the study on disk."""

from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.run_cache import Kept, format_of
from lichen_lab.benchmarks.studies.tactfl.run_spec import One
from lichen_lab.benchmarks.studies.tactfl.settings import Outcome

_FIGURES: Final = (
    "lichen_lab/benchmarks/studies/tactfl/settings.py",
    "lichen_lab/benchmarks/studies/tactfl/shared.py",
)
"""What decides which figures a run leaves, and what they mean."""
_HERE: Final = (
    "baselines",
    "dealing.py",
    "faults.py",
    "federation.py",
    "fleets.py",
    "hapt.py",
    "setting.py",
    "shared.py",
    "uci_har.py",
)
SOURCES: Final = (
    *(f"lichen_lab/benchmarks/studies/tactfl/{name}" for name in _HERE),
    "models",
    "protocol",
    "coordinator/aggregation/fold.py",
    "coordinator/ingest/header_checks.py",
    "coordinator/aggregation/outlier_screen.py",
    "edge_agent/training/update_encoding.py",
    "lichen_lab/simulation/data/sets",
    "lichen_lab/simulation/training/device.py",
    "lichen_lab/simulation/training/guided.py",
    "lichen_lab/simulation/training/engine.py",
)
"""Whatever a run's figures depend on; the parts, the tables and the report are not among them."""


def store(path: Path | None, *, any_code: bool = False) -> Kept[One, Outcome]:
    """The finished runs; see :class:`lichen_lab.benchmarks.run_cache.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """
    return Kept(path, format_of("tactfl", SOURCES, _FIGURES, Outcome.of_json), any_code=any_code)
