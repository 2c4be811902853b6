"""The loop of child processes: read a job folder, do the job, answer with one JSON line.

``JOBDIR`` as the only argument does one job and exits. ``--serve`` reads one JSON line ``{"job": "<dir>"}``
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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from models.packages import ImportedBefore
from protocol.errors import Misconfigured, Refused, Transient

Do = Callable[[Path], None]
"""Does the job of a folder and writes its result."""

EXIT: Final = {"Misconfigured": 78, "Refused": 65, "Transient": 75, "Fault": 70}
"""Exit status of a one-job run, by the kind of failure (sysexits)."""
_USAGE: Final = 2
_PR_SET_PDEATHSIG: Final = 1
_M_ARENA_MAX: Final = -8
"""Constant of ``malloc.h``."""


def shed_memory() -> None:
    """Return freed pages to the system, so that a warm worker is small between jobs."""
    gc.collect()
    gc.freeze()  # objects that outlive a job are libraries, which collections should skip (90 ms for torch)
    trim_memory()


def trim_memory() -> None:
    """Return freed pages, without garbage collection."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # in glibc, not in musl
        if trim is not None:
            trim(0)


def one_arena() -> None:
    """Make glibc use one heap for all threads; call before threads start.

    Threads of an agent allocate little and rarely at the same time; memory in a thread's own heap could not
    be reused by others.
    """
    if sys.platform == "linux":
        tune = getattr(ctypes.CDLL(None), "mallopt", None)
        if tune is not None:
            tune(_M_ARENA_MAX, 1)


def die_with_the_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, also by SIGKILL (Linux).

    The end of standard input is noticed only between jobs.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def answer(do: Do, job_dir: Path) -> dict[str, Any]:
    """Do a job; return its outcome as a JSON object.

    Raises:
        SystemExit: this process has imported other files of a package; the parent starts a new one.
    """
    try:
        do(job_dir)
    except ImportedBefore as error:  # the next process imports what is installed now
        raise SystemExit(str(error)) from error
    except Refused as error:
        return {"ok": False, "kind": "Refused", "reason": error.reason.value, "error": error.detail}
    except (Misconfigured, Transient) as error:
        return {"ok": False, "kind": type(error).__name__, "error": str(error)}
    except Exception as error:  # noqa: BLE001 - outermost border: the parent gets the message, stderr the trace
        traceback.print_exc()
        return {"ok": False, "kind": "Fault", "error": f"{type(error).__name__}: {error}"}
    return {"ok": True}


def claim_stdout() -> TextIO:
    """Reserve standard output for answers; file descriptor 1 becomes standard error."""
    sys.stdout.flush()
    mine = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return mine


def serve(do: Do, requests: Iterable[str], answers: TextIO) -> None:
    """Answer jobs until the requests end."""
    for line in requests:
        try:
            job_dir = Path(json.loads(line)["job"])
        except (ValueError, KeyError, TypeError):
            outcome: dict[str, Any] = {
                "ok": False,
                "kind": "Fault",
                "error": f"not a job line: {line[:200]!r}",
            }
        else:
            outcome = answer(do, job_dir)
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
        shed_memory()


def main(do: Do, module: str, arguments: list[str]) -> int:
    """Run from the command line (``python -P -m <module>``); the exit status is by kind of failure."""
    if len(arguments) != 1:
        sys.stderr.write(f"usage: python -P -m {module} JOBDIR | --serve\n")
        return _USAGE
    die_with_the_parent()
    with claim_stdout() as answers:
        if arguments[0] == "--serve":
            serve(do, sys.stdin, answers)
            return 0
        outcome = answer(do, Path(arguments[0]))
        answers.write(json.dumps(outcome) + "\n")
        return 0 if outcome["ok"] else EXIT[outcome["kind"]]
