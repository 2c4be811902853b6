"""The child process that may import torch: initial states, local training, evaluation.

``python -P -m models.worker JOBDIR`` does one job and leaves. ``python -P -m models.worker --serve`` reads
one JSON line ``{"job": "<dir>"}`` after another from its standard input until that closes. Either way it
answers each job with one line on its standard output: ``{"ok": true}``, or ``{"ok": false, "error": "...",
"kind": "Misconfigured"}`` (or ``Refused`` with its ``reason``, ``Transient``, ``Fault``). Whatever a library
prints goes to standard error.
"""

import ctypes
import gc
import json
import os
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO

from models import jobs, windowset
from models.params import flatten, read_npz
from models.registry import method
from protocol.errors import Misconfigured, Refused, Transient

EXIT: Final = {"Misconfigured": 78, "Refused": 65, "Transient": 75, "Fault": 70}
"""Exit status of a one-job run, by the kind of failure (sysexits)."""
_USAGE: Final = 2


def _prepare(threads: int) -> None:
    """Load torch, and let it use this many threads."""
    if find_spec("torch") is None:
        raise Misconfigured(
            "local training needs torch, which is not installed here: pip install 'lichen[train]'"
        )
    import torch  # noqa: PLC0415 - a wrong job is answered before the second that torch takes to load

    torch.set_num_threads(threads)


def _shed_memory() -> None:
    """Give freed pages back to the system: a warm worker should be small between rounds."""
    gc.collect()
    gc.freeze()  # what outlives a job is libraries: the next collection need not walk them (90 ms for torch)
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)


def do(job_dir: Path) -> None:
    """Do the job in this folder and leave its result there.

    Raises:
        Misconfigured: the job, the task's method or its config cannot be used.
        Transient: the job cannot be done with these windows, for instance none is labelled.
    """
    job = jobs.read_job(job_dir)
    spec = method(job.task.method)
    spec.configure(job.task)
    _prepare(job.threads)
    client = spec.client()
    match job:
        case jobs.InitJob():
            jobs.save_result(job_dir, {}, flatten(client.initial(job.task, job.seed)))
        case jobs.TrainJob():
            windows = windowset.load(job_dir / jobs.WINDOWS, job.task)
            context = jobs.context(job)
            state, private = jobs.load_state(job_dir / jobs.STATE), read_npz(job_dir / jobs.PRIVATE)
            jobs.save_local_result(job_dir, client.train(context, windows, state, private))
        case jobs.EvaluateJob():
            windows = windowset.load(Path(job.windows_path), job.task)
            found = client.evaluate(job.task, windows, jobs.load_state(job_dir / jobs.STATE))
            jobs.save_result(job_dir, {"metrics": found.metrics, "confusion_KK": found.confusion_KK})


def answer(job_dir: Path) -> dict[str, Any]:
    """Do a job; say in one JSON object how it went."""
    try:
        do(job_dir)
    except Refused as error:
        return {"ok": False, "kind": "Refused", "reason": error.reason.value, "error": error.detail}
    except (Misconfigured, Transient) as error:
        return {"ok": False, "kind": type(error).__name__, "error": str(error)}
    except Exception as error:  # noqa: BLE001 - the process's outermost border: the parent gets the words, stderr the trace
        traceback.print_exc()
        return {"ok": False, "kind": "Fault", "error": f"{type(error).__name__}: {error}"}
    return {"ok": True}


def _claim_stdout() -> TextIO:
    """The real standard output, for answers alone; file descriptor 1 becomes standard error."""
    sys.stdout.flush()
    mine = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return mine


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer jobs until the requests end."""
    for line in requests:
        try:
            job_dir = Path(json.loads(line)["job"])
        except (ValueError, KeyError, TypeError):
            said: dict[str, Any] = {"ok": False, "kind": "Fault", "error": f"not a job line: {line[:200]!r}"}
        else:
            said = answer(job_dir)
        answers.write(json.dumps(said) + "\n")
        answers.flush()
        _shed_memory()


def main(arguments: list[str]) -> int:
    """Run from the command line; the exit status says who must act."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -P -m models.worker JOBDIR | --serve\n")
        return _USAGE
    with _claim_stdout() as answers:
        if arguments[0] == "--serve":
            serve(sys.stdin, answers)
            return 0
        said = answer(Path(arguments[0]))
        answers.write(json.dumps(said) + "\n")
        return 0 if said["ok"] else EXIT[said["kind"]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
