"""The child process that may import torch: initial states, local training, evaluation, guided rounds.

``python -P -m models.worker JOBDIR`` does one job and exits. ``python -P -m models.worker --serve`` reads
one JSON line ``{"job": "<dir>"}`` after another from its standard input until that closes. Either way it
answers each job with one line on its standard output: ``{"ok": true}``, or ``{"ok": false, "error": "...",
"kind": "Misconfigured"}`` (or ``Refused`` with its ``reason``, ``Transient``, ``Fault``). Whatever a library
prints goes to standard error.
"""

import math
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models import packages
from models.contract import Client, LinearClient, WindowSet
from models.data import window_set
from models.materials import Material
from models.registry import admit, method
from models.spec import MethodSpec
from models.tensors import flatten, read_npz
from models.training.evaluation import in_parts
from models.worker import job_folder, job_loop, update_views
from protocol.errors import Misconfigured
from protocol.tasks.network import LINEAR


def _prepare(threads: int) -> None:
    """Import torch and set its number of threads."""
    if find_spec("torch") is None:
        raise Misconfigured(
            "local training needs torch, which is not installed here: pip install 'lichen[train]'"
        )
    import torch  # noqa: PLC0415 - a wrong job is answered before the second that torch takes to load

    torch.set_num_threads(threads)


def do(job_dir: Path) -> None:
    """Do the job of a folder and write its result.

    Raises:
        Misconfigured: the job, the task's method or its config cannot be used.
        Transient: the job cannot be done with this material, for instance no window is labelled.
    """
    job = job_folder.read_job(job_dir)
    packages.permit(job.packages)
    packages.require_permitted(job.task)
    admit(job.task, job.packages)
    spec = method(job.task.method)
    spec.configure(job.task)
    if isinstance(job, job_folder.TrainJob) and job.task.network.kind == LINEAR:
        _train(spec.client(linear=True), spec, job, job_dir)
        return
    _prepare(job.threads)
    client = spec.client()
    match job:
        case job_folder.InitJob():
            job_folder.save_result(job_dir, {}, flatten(client.initial(job.task, job.seed)))
        case job_folder.TrainJob():
            _train(client, spec, job, job_dir)
        case job_folder.EvaluateJob():
            material = spec.kind.load(Path(job.windows_path), job.task)
            _evaluate(client, job, material, job_dir)
        case job_folder.ViewJob() | job_folder.FinishJob():
            _guide(spec, job, job_dir)


def _train(client: LinearClient, spec: MethodSpec[Any], job: job_folder.TrainJob, job_dir: Path) -> None:
    material = spec.kind.load(job_dir / spec.kind.file, job.task)
    context = job_folder.context(job)
    state, private = (
        job_folder.load_state(job_dir / job_folder.STATE),
        read_npz(job_dir / job_folder.PRIVATE),
    )
    job_folder.save_local_result(job_dir, client.train(context, material, state, private))


def _evaluate(client: Client, job: job_folder.EvaluateJob, material: Material, job_dir: Path) -> None:
    state = job_folder.load_state(job_dir / job_folder.STATE)
    evaluation = client.evaluate(job.task, material, state)
    result: dict[str, Any] = {
        "metrics": evaluation.metrics,
        "confusion_KK": evaluation.confusion_KK,
        "by": {},
    }
    if isinstance(material, WindowSet):
        judged = partial(client.evaluate, job.task, state=state)
        result["by"] = in_parts(job.task, material, judged, job.by)
    job_folder.save_result(job_dir, result)


def _guide(spec: MethodSpec[Any], job: job_folder.ViewJob | job_folder.FinishJob, job_dir: Path) -> None:
    """The coordinator's part of a guided round that needs torch."""
    if not spec.guided:
        raise Misconfigured(f"task {job.task.name!r}: method {spec.name!r} trains nothing at the coordinator")
    trainer, state = spec.trainer(), job_folder.load_state(job_dir / job_folder.STATE)
    labelled = window_set.load(Path(job.windows_path), job.task)
    if isinstance(job, job_folder.ViewJob):
        views = update_views.view_updates(trainer, job.task, labelled, state, job.frames, job.limits)
        summary, tensors = update_views.packed(*views)
        job_folder.save_result(job_dir, dict(summary), tensors)
        return
    version, metrics = trainer.finish(job.task, job.round, job.seed, labelled, state)
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    job_folder.save_result(job_dir, {"metrics": finite}, flatten(version))


def answer(job_dir: Path) -> dict[str, Any]:
    """Do a job; return its outcome as a JSON object."""
    return job_loop.answer(do, job_dir)


if __name__ == "__main__":
    sys.exit(job_loop.main(do, "models.worker", sys.argv[1:]))
