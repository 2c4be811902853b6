"""Finished runs on disk, one JSON line each, so that an interrupted bench can resume.

A line counts only for the same run on the same code: ``key`` identifies the run, ``code`` is a digest of the
paths and contents of the sources that affect figures. A move of files, or a change without effect on figures,
therefore invalidates finished runs; :mod:`lichen_lab.benchmarks.study.rekey` takes them over.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Generic

from pydantic import TypeAdapter

from lichen_lab.benchmarks.study.run_spec import O, S
from lichen_lab.simulation.data.access.locations import cache_folder
from runtime.outputs import NotWritten, writing

ROOT: Final = Path(__file__).resolve().parents[3]
_LIBRARIES: Final = ("numpy", "torch")
ENGINE: Final = (
    "models",
    "protocol",
    "coordinator.aggregation.fold",
    "coordinator.ingest.header_checks",
    "coordinator.aggregation.outlier_screen",
    "coordinator.storage.model_registry",
    "edge_agent.training.update_encoding",
    "lichen_lab.benchmarks.study.federation",
    "lichen_lab.simulation.training.device",
    "lichen_lab.simulation.training.downlink.downloads",
    "lichen_lab.simulation.training.engine",
)
"""Sources that affect the figures of all studies."""


def files_of(module: str) -> list[Path]:
    """The source files of a module or of a package.

    Raises:
        FileNotFoundError: there is no such module below :data:`ROOT`.
    """
    folder = ROOT.joinpath(*module.split("."))
    found = sorted(folder.rglob("*.py")) or [folder.with_suffix(".py")]
    if not found[0].is_file():
        raise FileNotFoundError(f"no source of module {module!r}")
    return found


@cache
def digest(modules: tuple[str, ...], libraries: tuple[str, ...] = ()) -> str:
    """Digest of the sources of modules and packages and of the libraries' versions."""
    mark = hashlib.sha256()
    for module in modules:
        for file in files_of(module):
            mark.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    for library in libraries:
        try:
            mark.update(f"{library} {version(library)}\n".encode())
        except PackageNotFoundError:
            mark.update(f"{library} is not here\n".encode())
    return mark.hexdigest()[:16]


@dataclass(frozen=True)
class RunFormat(Generic[S, O]):
    """The format of one study's finished runs.

    Attributes:
        package: dotted name of the study; its last word is the one after ``lichen bench``.
        spec: type of its runs.
        outcome: type of their outcomes.
        sources: modules and packages that affect figures, beside ``figures`` and :data:`ENGINE`; parts,
            tables and the report do not.
        figures: modules that define the figures of an outcome.
    """

    package: str
    spec: type[S]
    outcome: type[O]
    sources: tuple[str, ...]
    figures: tuple[str, ...]

    @property
    def name(self) -> str:
        """The word after ``lichen bench``."""
        return self.package.rsplit(".", 1)[-1]

    def marks(self) -> dict[str, str]:
        """Digests of the current code."""
        code = digest((*self.figures, *self.sources, *ENGINE), _LIBRARIES)
        return {"code": code, "figures": digest(self.figures)}

    def default(self) -> Path:
        """Default file of finished runs."""
        return cache_folder().parent / "bench" / f"{self.name}.jsonl"

    @cached_property
    def read(self) -> Callable[[Any], O]:
        """Parses an outcome from JSON; raises ValidationError, a ValueError."""
        return TypeAdapter(self.outcome).validate_python

    def store(self, path: Path | None = None, *, any_code: bool = False) -> "RunCache[S, O]":
        """The finished runs in a file; see :class:`RunCache`."""
        return RunCache(path, self, any_code=any_code)


class RunCache(Generic[S, O]):
    """Finished runs by key.

    Args:
        path: the file; created with the first run. None: the default file if it is writable, else memory.
        any_code: also use runs of other versions of the code (the newest line of a run) that have the same
            figures.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """

    def __init__(self, path: Path | None, form: RunFormat[S, O], *, any_code: bool = False) -> None:
        self.path = path or form.default()
        self.named = path is not None
        self._form = form
        self._done: dict[str, O] = {}
        self._mark = "figures" if any_code else "code"
        for told in self.lines():
            try:
                if told[self._mark] == form.marks()[self._mark]:
                    self.keep(told["key"], form.read(told["outcome"]))
            except (ValueError, KeyError, TypeError):
                continue  # an older format: the run is made again

    def lines(self) -> Iterator[dict[str, Any]]:
        """All whole lines of the file; a kill may tear one.

        Raises:
            NotWritten: the file that was named cannot be read, or is a folder.
        """
        text = ""
        with self._on_disk():
            text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict):
                yield told

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        """Wraps file access: a named file must work, the cache may fail."""
        try:
            with writing(self.path):
                yield
        except NotWritten:
            if self.named:
                raise

    def keep(self, key: str, outcome: O) -> None:
        """Remember a run in memory; keep the probes of an earlier one."""
        before = self._done.get(key)
        answered = before.probes if before else {}
        self._done[key] = replace(outcome, probes={**answered, **outcome.probes})

    def get(self, one: S) -> O | None:
        """The outcome of that run if it has all requested probes."""
        found = self._done.get(one.key())
        return found if found is not None and set(one.probes) <= set(found.probes) else None

    def put(self, one: S, outcome: O) -> None:
        """Remember a run in memory and on disk.

        Raises:
            NotWritten: the file that was named cannot be written.
        """
        self.keep(one.key(), outcome)
        told = {
            "key": one.key(),
            **self._form.marks(),
            "setting": asdict(one),
            "outcome": asdict(outcome),
        }
        line = b"\n" + json.dumps(told, allow_nan=False).encode() + b"\n"
        with self._on_disk():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One write a line: two benches may share the file. The newline comes first, because the line
            # before may be torn.
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
