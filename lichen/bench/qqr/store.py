"""Finished runs of the study on disk: :mod:`lichen.bench._kept`, with the answers to probes added up."""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Final

from lichen.bench._kept import Format, Kept, digest
from lichen.bench.qqr.setting import Outcome, Setting
from lichen.datasets.places import cache_folder

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


@cache
def code_version() -> str:
    """A digest of the sources and libraries that decide what a run gives."""
    return digest(_SOURCES, ("numpy", "torch"))


@cache
def figures_version() -> str:
    """A digest of the sources that decide which figures a run leaves."""
    return digest(_FIGURES, ())


def default_file() -> Path:
    """Where runs are kept when nobody says where."""
    return cache_folder().parent / "bench" / "qqr.jsonl"


class Store(Kept[Setting, Outcome]):
    """Finished runs by setting; arguments as of :class:`lichen.bench._kept.Kept`.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """

    def __init__(self, path: Path | None, *, any_code: bool = False) -> None:
        form = Format(
            default=lambda: default_file(),  # noqa: PLW0108 - looked up when called
            code=lambda: code_version(),  # noqa: PLW0108 - likewise
            figures=lambda: figures_version(),  # noqa: PLW0108 - likewise
            read=Outcome.of_json,
        )
        super().__init__(path, form, any_code=any_code)

    def keep(self, key: str, outcome: Outcome) -> None:
        """Remember a run; what an earlier one was asked stays answered."""
        before = self._done.get(key)
        probes = {**(before.probes if before else {}), **outcome.probes}
        super().keep(key, Outcome(**{**asdict(outcome), "probes": probes}))

    def get(self, setting: Setting) -> Outcome | None:
        """The run of that setting, where every probe that it asks for was answered."""
        found = super().get(setting)
        return found if found is not None and set(setting.probes) <= set(found.probes) else None
