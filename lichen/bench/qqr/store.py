"""Finished runs on disk, one JSON line each, so that an interrupted bench goes on where it was.

A line counts for the same setting on the same code alone: the key names the setting, ``code`` the sources
that decide what a run gives.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from lichen.bench.qqr.setting import Outcome, Setting
from lichen.datasets.places import cache_folder
from runtime.outputs import NotWritten, writing

_ROOT: Final = Path(__file__).resolve().parents[3]
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
_LIBRARIES: Final = ("numpy", "torch")


@cache
def code_version() -> str:
    """A digest of the sources and libraries that decide what a run gives."""
    return _digest(_SOURCES, _LIBRARIES)


@cache
def figures_version() -> str:
    """A digest of the sources that decide which figures a run leaves."""
    return _digest(_FIGURES, ())


def _digest(sources: Iterable[str], libraries: Iterable[str]) -> str:
    mark = hashlib.sha256()
    for name in sources:
        path = _ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.is_file():
                mark.update(f"{file.relative_to(_ROOT)}\n".encode() + file.read_bytes())
    for library in libraries:
        try:
            mark.update(f"{library} {version(library)}\n".encode())
        except PackageNotFoundError:
            mark.update(f"{library} is not here\n".encode())
    return mark.hexdigest()[:16]


def default_file() -> Path:
    """Where runs are kept when nobody says where."""
    return cache_folder().parent / "bench" / "qqr.jsonl"


class Store:
    """Finished runs by setting.

    Args:
        path: the file; made at the first run. Without one: the cache's, where it can be written, else memory.
        any_code: also take runs of other versions of the code (the newest line of a setting), as long as they
            have the same figures.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """

    def __init__(self, path: Path | None, *, any_code: bool = False) -> None:
        self.path = path or default_file()
        self.named = path is not None
        self._done: dict[str, Outcome] = {}
        with self._on_disk():
            self._read(self.path.read_text() if self.path.exists() else "", any_code=any_code)

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Around file work: a file that was named must be there for us, the cache need not."""
        try:
            with writing(self.path):
                yield
        except NotWritten:
            if self.named:
                raise

    def _read(self, text: str, *, any_code: bool) -> None:
        for line in text.splitlines():
            try:
                told = json.loads(line)
                mine = told["figures"] == figures_version() if any_code else told["code"] == code_version()
                if mine:
                    self._keep(told["key"], Outcome.of_json(told["outcome"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # torn by a kill, or of an older format: that run is made again

    def _keep(self, key: str, outcome: Outcome) -> None:
        before = self._done.get(key)
        probes = {**(before.probes if before else {}), **outcome.probes}
        self._done[key] = Outcome(**{**asdict(outcome), "probes": probes})

    def get(self, setting: Setting) -> Outcome | None:
        """The run of that setting, where every probe that it asks for was answered."""
        found = self._done.get(setting.key())
        return found if found is not None and set(setting.probes) <= set(found.probes) else None

    def put(self, setting: Setting, outcome: Outcome) -> None:
        """Remember a run, on disk too.

        Raises:
            NotWritten: the file that was named cannot be written.
        """
        self._keep(setting.key(), outcome)
        line = _line(setting, outcome)
        with self._on_disk():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One write each: two benches may share a file. A line begins with a line's end, for the one
            # before it may have been torn.
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())


def _line(setting: Setting, outcome: Outcome) -> bytes:
    told = {
        "key": setting.key(),
        "code": code_version(),
        "figures": figures_version(),
        "setting": asdict(setting),
        "outcome": asdict(outcome),
    }
    return b"\n" + json.dumps(told, allow_nan=False).encode() + b"\n"
