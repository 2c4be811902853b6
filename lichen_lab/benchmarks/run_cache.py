"""Finished runs on disk, one JSON line each, so that an interrupted bench goes on where it was.

A line counts for the same setting on the same code alone: the key names the setting, ``code`` the sources
that decide what a run gives.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from lichen_lab.simulation.data.access.locations import cache_folder
from runtime.outputs import NotWritten, writing

ROOT: Final = Path(__file__).resolve().parents[2]
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - an outcome, beside a setting


class _Keyed(Protocol):
    def key(self) -> str: ...


@cache
def digest(sources: tuple[str, ...], libraries: tuple[str, ...] = ()) -> str:
    """Of source files (folders: every module in them) below :data:`ROOT`, and of libraries' versions."""
    mark = hashlib.sha256()
    for name in sources:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if file.is_file():
                mark.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    for library in libraries:
        try:
            mark.update(f"{library} {version(library)}\n".encode())
        except PackageNotFoundError:
            mark.update(f"{library} is not here\n".encode())
    return mark.hexdigest()[:16]


@dataclass(frozen=True)
class Format(Generic[O]):
    """What a store of one bench goes by.

    Attributes:
        default: where runs are kept when nobody says where.
        code: digest of the sources and libraries that decide what a run gives.
        figures: digest of the sources that decide which figures a run leaves.
        read: an outcome from its JSON; raises KeyError or TypeError where it is none.
    """

    default: Callable[[], Path]
    code: Callable[[], str]
    figures: Callable[[], str]
    read: Callable[[Mapping[str, Any]], O]


def default_file(bench: str) -> Path:
    """Where a bench's runs are kept when nobody says where."""
    return cache_folder().parent / "bench" / f"{bench}.jsonl"


def format_of(
    bench: str, sources: tuple[str, ...], figures: tuple[str, ...], read: Callable[[Mapping[str, Any]], O]
) -> Format[O]:
    """What the store of a study goes by.

    Args:
        bench: its name.
        sources: files and folders below :data:`ROOT` that decide what a run gives.
        figures: those that decide which figures a run leaves, and what they mean.
        read: an outcome from its JSON.
    """
    return Format(
        default=lambda: default_file(bench),
        code=lambda: digest(sources, ("numpy", "torch")),
        figures=lambda: digest(figures),
        read=read,
    )


class Kept(Generic[S, O]):
    """Finished runs by setting: dataclasses both, a setting with a ``key()``.

    Args:
        path: the file; made at the first run. Without one: the default, where it can be written, else memory.
        any_code: also take runs of other versions of the code (the newest line of a setting), as long as they
            have the same figures.

    Raises:
        NotWritten: the file that was named cannot be read, or is a folder.
    """

    def __init__(self, path: Path | None, form: Format[O], *, any_code: bool = False) -> None:
        self.path = path or form.default()
        self.named = path is not None
        self._form = form
        self._done: dict[str, O] = {}
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
        form = self._form
        for line in text.splitlines():
            try:
                told = json.loads(line)
                if told["figures"] == form.figures() if any_code else told["code"] == form.code():
                    self.keep(told["key"], form.read(told["outcome"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # torn by a kill, or of an older format: that run is made again

    def keep(self, key: str, outcome: O) -> None:
        """Remember a run, in memory alone."""
        self._done[key] = outcome

    def get(self, setting: S) -> O | None:
        """The run of that setting."""
        return self._done.get(cast("_Keyed", setting).key())

    def put(self, setting: S, outcome: O) -> None:
        """Remember a run, on disk too.

        Raises:
            NotWritten: the file that was named cannot be written.
        """
        self.keep(cast("_Keyed", setting).key(), outcome)
        line = self._line(setting, outcome)
        with self._on_disk():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # One write each: two benches may share a file. A line begins with a line's end, for the one
            # before it may have been torn.
            with self.path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())

    def _line(self, setting: S, outcome: O) -> bytes:
        told = {
            "key": cast("_Keyed", setting).key(),
            "code": self._form.code(),
            "figures": self._form.figures(),
            "setting": asdict(cast("Any", setting)),
            "outcome": asdict(cast("Any", outcome)),
        }
        return b"\n" + json.dumps(told, allow_nan=False).encode() + b"\n"
