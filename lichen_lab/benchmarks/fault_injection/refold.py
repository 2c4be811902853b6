"""The undisturbed fold: the expected global model of every round, from the kept frames alone.

Version 0 is created again by the method in a process of its own, every later one by the coordinator's own
fold over the frames that its journal names. Each is verified by its digest, and screened against the round
before, as it was then. A manifest's digest covers all blobs, so two equal digests are two models that are
equal bit for bit.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from coordinator.aggregation.fold import UnusableUpdates, fold_round, limits_for
from coordinator.storage.database import Database
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.run_id import RunId
from coordinator.storage.update_journal import AcceptedUpdate
from models import registry
from models.contract import Blobs
from models.worker import job_folder
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore

MAX_UPDATE_BYTES: Final = 64 * 1024 * 1024
_INIT_S: Final = 120.0


def initial(task: Task, folder: Path) -> Blobs:
    """Version 0, made by the method in a child process.

    Raises:
        Transient: the worker failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job_folder.write_init(folder, job_folder.InitJob(task, seed=task.seed))
    argv = [sys.executable, "-P", "-m", "models.worker", str(folder)]
    done = subprocess.run(argv, capture_output=True, timeout=_INIT_S, check=False)
    if done.returncode:
        raise Transient(f"the initial model could not be made: {done.stderr.decode(errors='replace')[-500:]}")
    return job_folder.read_state(folder)


def manifests(
    task: Task,
    first: Blobs,
    counted: Mapping[int, Sequence[tuple[str, str]]],
    frame: Callable[[str], Path],
    folder: Path,
    *,
    run: RunId | None = None,
) -> list[str]:
    """The digest of every version's manifest, version 0 first.

    Args:
        task: what was learned.
        first: version 0.
        counted: round -> (device, digest) of the updates that its version counts.
        frame: where the frame of a digest is kept.
        folder: an empty one to work in.
        run: the training run to fold again; None: it has none.

    Raises:
        Misconfigured: the method is guided: its versions depend on more than frames.
        Transient: an accepted update's frame was never seen, or cannot be folded.
    """
    if registry.method(task.method).guided:
        raise Misconfigured(
            f"method {task.method!r} is guided: no version of it can be made again from frames alone"
        )
    server = registry.method(task.method).server()
    folder.mkdir(parents=True, exist_ok=True)
    state, parent = first, None
    digests: list[str] = []
    reference: dict[str, float] = {}
    with Database(folder / "again.sqlite3") as store:
        versions = ModelRegistry(store, BlobStore(folder / "blobs"), task, run)
        for number in range(max(counted, default=0) + 1):
            if number:
                entries = [AcceptedUpdate(device, mark, frame(mark)) for device, mark in counted[number]]
                limits = limits_for(state, MAX_UPDATE_BYTES, task)
                try:
                    state, screened = fold_round(server, task, number, state, entries, limits, reference)
                except UnusableUpdates as unusable:
                    words = "; ".join(str(why) for why in unusable.lost.values())
                    raise Transient(f"round {number} cannot be folded again: {words}") from unusable
                reference |= screened  # as coordinator.aggregation.screen_baseline keeps it
            parent, _ = versions.publish(number, state, parent)
            digests.append(parent)
            # as written: in a fold, values of half precision are those that devices hold
            state = versions.exact_state(parent)
    return digests
