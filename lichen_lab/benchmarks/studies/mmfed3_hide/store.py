"""Finished runs of the study on disk."""

from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.run_cache import Kept, format_of
from lichen_lab.benchmarks.studies.mmfed3_hide.run_spec import One
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import Outcome

_FIGURES: Final = (
    "lichen_lab/benchmarks/studies/mmfed3_hide/settings.py",
    "lichen_lab/benchmarks/studies/mmfed3_hide/shared.py",
)
"""What decides which figures a run leaves, and what they mean."""
_HERE: Final = ("federation.py", "fleets.py", "setting.py", "shared.py")
SOURCES: Final = (
    *(f"lichen_lab/benchmarks/studies/mmfed3_hide/{name}" for name in _HERE),
    *(
        f"models/{name}.py"
        for name in (
            "aggregate",
            "headers",
            "magnitude",
            "materials",
            "moments",
            "optimizer",
            "params",
            "training",
        )
    ),
    "models/knowledge_graph",
    "models/methods/mmfed3_hide",
    "protocol",
    "coordinator/aggregation/fold.py",
    "coordinator/ingest/header_checks.py",
    "coordinator/aggregation/outlier_screen.py",
    "edge_agent/training/update_encoding.py",
    "lichen_lab/simulation/data/sets/fb15k237.py",
    "lichen_lab/simulation/training/downloads.py",
    "lichen_lab/simulation/training/engine.py",
)
"""Whatever a run's figures depend on; the parts, the tables and the report are not among them."""


def store(path: Path | None, *, any_code: bool = False) -> Kept[One, Outcome]:
    """The finished runs; see :class:`lichen_lab.benchmarks.run_cache.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """
    return Kept(path, format_of("mmfed3_hide", SOURCES, _FIGURES, Outcome.of_json), any_code=any_code)
