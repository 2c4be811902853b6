"""What every child process does with its jobs: take a folder, do it, answer with one JSON line.

``JOBDIR`` as the only argument does one job and leaves. ``--serve`` reads one JSON line ``{"job": "<dir>"}``
after another from standard input until that closes. Each job is answered on standard output: ``{"ok":
true}``, or ``{"ok": false, "error": "...", "kind": "Misconfigured"}`` (or ``Refused`` with its ``reason``,
``Transient``, ``Fault``). Whatever a library prints goes to standard error. Torch-free.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from protocol.errors import Misconfigured, Refused, Transient

Do = Callable[[Path], None]
"""Does the job in a folder and leaves its result there."""

EXIT: Final = {"Misconfigured": 78, "Refused": 65, "Transient": 75, "Fault": 70}
"""Exit status of a one-job run, by the kind of failure (sysexits)."""
_USAGE: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_M_ARENA_MAX: Final = -8
"""Of ``malloc.h``."""


def shed_memory() -> None:
    """Give freed pages back to the system: a warm worker should be small between jobs."""
    gc.collect()
    gc.freeze()  # what outlives a job is libraries: the next collection need not walk them (90 ms for torch)
    trim_memory()


def trim_memory() -> None:
    """Give freed pages back, without a look for garbage."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def one_arena() -> None:
    """Let glibc keep one heap for all threads, not one for each; before there are any.

    Threads of an agent allocate little and seldom at once; freed memory that a heap of their own keeps is of
    no use to any other.
    """
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_M_ARENA_MAX, 1)


def die_with_the_parent() -> None:
    """Ask the kernel to kill us when the daemon that started us dies, SIGKILL included (Linux).

    The end of standard input says so too, but only between two jobs.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def answer(do: Do, job_dir: Path) -> dict[str, Any]:
    """Do a job; say in one JSON object how it went."""
    try:
        do(job_dir)
    except Refused as error:
        return {"ok": False, "kind": "Refused", "reason": error.reason.value, "error": error.detail}
    except (Misconfigured, Transient) as error:
        return {"ok": False, "kind": type(error).__name__, "error": str(error)}
    except Exception as error:  # noqa: BLE001 - outermost border: the parent gets the words, stderr the trace
        traceback.print_exc()
        return {"ok": False, "kind": "Fault", "error": f"{type(error).__name__}: {error}"}
    return {"ok": True}


def claim_stdout() -> TextIO:
    """The real standard output, for answers alone; file descriptor 1 becomes standard error."""
    sys.stdout.flush()
    mine = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return mine


def serve(do: Do, requests: TextIO, answers: TextIO) -> None:
    """Answer jobs until the requests end."""
    for line in requests:
        try:
            job_dir = Path(json.loads(line)["job"])
        except (ValueError, KeyError, TypeError):
            said: dict[str, Any] = {"ok": False, "kind": "Fault", "error": f"not a job line: {line[:200]!r}"}
        else:
            said = answer(do, job_dir)
        answers.write(json.dumps(said) + "\n")
        answers.flush()
        shed_memory()


def main(do: Do, module: str, arguments: list[str]) -> int:
    """Run from the command line (``python -P -m <module>``); the exit status says who must act."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -P -m {module} JOBDIR | --serve\n")
        return _USAGE
    die_with_the_parent()
    with claim_stdout() as answers:
        if arguments[0] == "--serve":
            serve(do, sys.stdin, answers)
            return 0
        said = answer(do, Path(arguments[0]))
        answers.write(json.dumps(said) + "\n")
        return 0 if said["ok"] else EXIT[said["kind"]]
