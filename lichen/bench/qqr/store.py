"""Finished runs of the study on disk: :mod:`lichen.bench._kept`, with the answers to probes added up."""

from dataclasses import asdict
from pathlib import Path
from typing import Final

from lichen.bench._kept import Kept, format_of
from lichen.bench.qqr.setting import Outcome, Setting

_FIGURES: Final = tuple(
    f"lichen/bench/qqr/{name}.py" for name in ("one", "personal", "probes", "setting", "studies", "trained")
)
"""What decides which figures a run leaves, and what they mean."""
_SOURCES: Final = (
    *_FIGURES,
    "models",
    "protocol",
    "coordinator/aggregation.py",
    "coordinator/doorkeeper.py",
    "coordinator/screen.py",
    "edge_agent/features.py",
    "edge_agent/packing.py",
    "export/features.py",
    "lichen/datasets",
    "lichen/online.py",
    "lichen/simulated_device.py",
    "lichen/simulated_round.py",
    "lichen/streams.py",
    "lichen/studies.py",
)
"""Whatever a run's figures depend on; the parts, the tables and the report are not among them."""


class Store(Kept[Setting, Outcome]):
    """Finished runs by setting; arguments as of :class:`lichen.bench._kept.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """

    def __init__(self, path: Path | None, *, any_code: bool = False) -> None:
        super().__init__(path, format_of("qqr", _SOURCES, _FIGURES, Outcome.of_json), any_code=any_code)

    def keep(self, key: str, outcome: Outcome) -> None:
        """Remember a run; what an earlier one was asked stays answered."""
        before = self._done.get(key)
        probes = {**(before.probes if before else {}), **outcome.probes}
        super().keep(key, Outcome(**{**asdict(outcome), "probes": probes}))

    def get(self, setting: Setting) -> Outcome | None:
        """The run of that setting, where every probe that it asks for was answered."""
        found = super().get(setting)
        return found if found is not None and set(setting.probes) <= set(found.probes) else None
