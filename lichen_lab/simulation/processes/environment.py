"""The observing device's environment and its memory."""

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from protocol.errors import Misconfigured

_ENVIRONMENT: Final = Path(".venv-observer/bin/python")
_BLOCK: Final = (
    "import sys; sys.modules['torch'] = None; sys.modules['onnx'] = None; "
    "from lichen.cli import main; main(sys.argv[1:])"
)
_PROBE_S: Final = 60.0
_MB: Final = 1e6


@dataclass(frozen=True)
class Environment:
    """A Python that can observe but not train.

    Attributes:
        python: the interpreter.
        own: True for an environment of its own, in which torch is not installed.
        how: in words, for the report.
    """

    python: Path
    own: bool
    how: str

    def command(self, *words: str) -> list[str]:
        """``lichen WORDS`` in this environment."""
        if self.own:
            return [str(self.python), "-P", "-m", "lichen", *words]
        return [str(self.python), "-P", "-c", _BLOCK, *words]

    def torch_free(self) -> bool:
        """Whether ``import torch`` fails there; it is tried."""
        probe = "import torch" if self.own else "import sys; sys.modules['torch'] = None; import torch"
        done = subprocess.run(
            [str(self.python), "-P", "-c", probe], capture_output=True, timeout=_PROBE_S, check=False
        )
        return done.returncode != 0 and b"torch" in done.stderr


def environment(wanted: Path | None) -> Environment:
    """The observer's Python: the one asked for, ``.venv-observer`` where it exists, else this one.

    Raises:
        Misconfigured: the one asked for is not there or lacks lichen or onnxruntime.
    """
    python = wanted or (_ENVIRONMENT if _ENVIRONMENT.is_file() else None)
    if python is None:
        how = (
            "this environment with torch made unimportable, for lack of .venv-observer (make demo creates it)"
        )
        return Environment(Path(sys.executable), own=False, how=how)
    if not python.is_file():
        raise Misconfigured(f"--observer-python {python}: there is no such file")
    # Not resolved: a virtual environment's python is a link, and its path determines the environment.
    chosen = Environment(python.absolute(), own=True, how=f"an environment of its own, {python}")
    done = subprocess.run(
        [str(chosen.python), "-P", "-c", "import lichen, onnxruntime"],
        capture_output=True,
        timeout=_PROBE_S,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
        raise Misconfigured(
            f"{python} cannot observe ({last}): install with {python} -m pip install '.[infer]'"
        )
    return chosen


def memory_of_tree(pid: int) -> list[tuple[str, float, float]]:
    """Name, PSS and RSS in MB of a process, first, and of all that it started and that still run."""
    found = []
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                full = process.memory_full_info()
                found.append((process.name(), getattr(full, "pss", full.rss) / _MB, full.rss / _MB))
    return found


def memory_mb(pid: int) -> tuple[float, float]:
    """Memory of a process and its children in MB: proportional (PSS) and resident (RSS)."""
    tree = memory_of_tree(pid)
    return sum(pss for _, pss, _ in tree), sum(rss for _, _, rss in tree)
