"""Finished runs of the study on disk."""

from pathlib import Path
from typing import Final

from lichen.bench._kept import Kept, format_of
from lichen.bench.mmfed3_hide.one import One
from lichen.bench.mmfed3_hide.setting import Outcome

_FIGURES: Final = ("lichen/bench/mmfed3_hide/setting.py", "lichen/bench/mmfed3_hide/shared.py")
"""What decides which figures a run leaves, and what they mean."""
_HERE: Final = ("federation.py", "fleets.py", "setting.py", "shared.py")
SOURCES: Final = (
    *(f"lichen/bench/mmfed3_hide/{name}" for name in _HERE),
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
    "models/graphs",
    "models/methods/mmfed3_hide",
    "protocol",
    "coordinator/aggregation.py",
    "coordinator/doorkeeper.py",
    "coordinator/screen.py",
    "edge_agent/packing.py",
    "lichen/datasets/fb15k237.py",
    "lichen/simulated_down.py",
    "lichen/simulated_round.py",
)
"""Whatever a run's figures depend on; the parts, the tables and the report are not among them."""


def store(path: Path | None, *, any_code: bool = False) -> Kept[One, Outcome]:
    """The finished runs; see :class:`lichen.bench._kept.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """
    return Kept(path, format_of("mmfed3_hide", SOURCES, _FIGURES, Outcome.of_json), any_code=any_code)
