"""Job folders: requests of a daemon to ``models.worker``, and results. Torch-free.

A folder holds ``job.json`` and, by kind, the material (:mod:`models.materials`), ``state.npz``,
``private.npz``; the worker writes ``result.json`` and ``result.npz``. Every file is written atomically,
``job.json`` and ``result.json`` last.
"""

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from models.contract import Blobs, ClientContext, Evaluation, LocalResult, Profile, Tensors
from models.materials import Material
from models.registry import method
from models.tensors import flatten, read_npz, unflatten, write_npz
from models.training.evaluation import Part
from models.worker import update_views
from models.worker.update_views import FrameAt
from protocol.base import first_fault
from protocol.errors import Misconfigured, Refused, Transient
from protocol.frames.frame import Limits
from protocol.frames.tensors import Codec
from protocol.tasks.task import Task

JOB: Final = "job.json"
WINDOWS: Final = "windows.npz"
STATE: Final = "state.npz"
PRIVATE: Final = "private.npz"
RESULT: Final = "result.json"
RESULT_TENSORS: Final = "result.npz"


@dataclass(frozen=True, kw_only=True)
class _Permits:
    """Of every job.

    Attributes:
        packages: those that this machine's configuration allows a task to use.
    """

    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class InitJob(_Permits):
    """Make a fresh global state."""

    task: Task
    seed: int
    threads: int = 1
    kind: Literal["init"] = "init"


@dataclass(frozen=True)
class TrainJob(_Permits):
    """Train one device in one round."""

    task: Task
    device: str
    round: int
    seed: int
    threads: int = 1
    profile: Profile | None = None
    kind: Literal["train"] = "train"


@dataclass(frozen=True)
class EvaluateJob(_Permits):
    """Evaluate a global state on the labelled windows at ``windows_path`` (set by :func:`write_evaluate`)."""

    task: Task
    threads: int = 1
    windows_path: str = WINDOWS
    by: tuple[Part, ...] = ()
    """Parts of the windows to evaluate besides."""
    kind: Literal["evaluate"] = "evaluate"


@dataclass(frozen=True)
class ViewJob(_Permits):
    """Compute the views of a round's updates on the labelled windows at ``windows_path``."""

    task: Task
    frames: tuple[FrameAt, ...]
    limits: Limits
    windows_path: str
    threads: int = 1
    kind: Literal["view"] = "view"


@dataclass(frozen=True)
class FinishJob(_Permits):
    """Train a fold's result on the labelled windows at ``windows_path``."""

    task: Task
    round: int
    seed: int
    windows_path: str
    threads: int = 1
    kind: Literal["finish"] = "finish"


Job = InitJob | TrainJob | EvaluateJob | ViewJob | FinishJob
_JOB: Final[TypeAdapter[Job]] = TypeAdapter(Annotated[Job, Field(discriminator="kind")])


def _write_text(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)  # noqa: PTH105 - Path.replace is the same call; os.replace says that it is atomic


def _write_job(job_dir: Path, job: Job) -> None:
    (job_dir / RESULT).unlink(missing_ok=True)
    (job_dir / RESULT_TENSORS).unlink(missing_ok=True)
    _write_text(job_dir / JOB, _JOB.dump_json(job).decode())


def read_job(job_dir: Path) -> Job:
    """The job of a folder.

    Raises:
        Misconfigured: there is no job, or it is not readable; the message names the file and field.
    """
    path = Path(job_dir) / JOB
    try:
        return _JOB.validate_json(path.read_bytes())
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        raise Misconfigured(f"{path}: {first_fault(error)}") from None


def write_state(path: Path, state: Blobs) -> None:
    """Write a global state as npz of full tensor names."""
    write_npz(Path(path), flatten(state))


def load_state(path: Path) -> Blobs:
    """Read the output of :func:`write_state`.

    Raises:
        Misconfigured: no such file, or no npz.
    """
    return unflatten(read_npz(Path(path)))


def write_init(job_dir: Path, job: InitJob) -> None:
    """Request a fresh global state; read it with :func:`read_state`."""
    _write_job(Path(job_dir), job)


def write_train(job_dir: Path, job: TrainJob, material: Material, state: Blobs, private: Tensors) -> None:
    """Request local training; read it with :func:`read_result`.

    Args:
        job_dir: an empty folder.
        job: device, round and seed.
        material: of the kind that the task's method learns from.
        state: the blobs on the device's route.
        private: the private tensors of the last result.

    Raises:
        Misconfigured: the task's method is unknown.
    """
    folder, kind = Path(job_dir), method(job.task.method).kind
    kind.save(folder / kind.file, material)
    write_state(folder / STATE, state)
    write_npz(folder / PRIVATE, private)
    _write_job(folder, job)


def write_evaluate(job_dir: Path, job: EvaluateJob, windows_path: Path, state: Blobs) -> None:
    """Request an evaluation; read it with :func:`read_evaluation`. The windows are not copied."""
    folder = Path(job_dir)
    write_state(folder / STATE, state)
    _write_job(folder, replace(job, windows_path=str(Path(windows_path).resolve())))


def write_guided(job_dir: Path, job: ViewJob | FinishJob, state: Blobs) -> None:
    """Request a guided round's views (:func:`read_views`) or its last step (:func:`read_finished`)."""
    write_state(Path(job_dir) / STATE, state)
    _write_job(Path(job_dir), job)


def context(job: TrainJob) -> ClientContext:
    """The context of a train job, for the method's client."""
    return ClientContext(job.task, job.device, job.round, job.seed, job.profile)


def save_result(job_dir: Path, summary: dict[str, Any], tensors: Tensors | None = None) -> None:
    """Write the worker's result: tensors first, the summary last."""
    folder = Path(job_dir)
    write_npz(folder / RESULT_TENSORS, tensors or {})
    _write_text(folder / RESULT, json.dumps(summary, allow_nan=False, sort_keys=True))


def save_local_result(job_dir: Path, result: LocalResult) -> None:
    """The worker's side of :func:`read_result`."""
    summary = {
        "weight": result.weight,
        # a loss may overflow without any tensor; JSON cannot encode infinity
        "metrics": {name: value for name, value in result.metrics.items() if math.isfinite(value)},
        "extra": result.extra,
        "codecs": {name: codec.value for name, codec in result.codecs.items()},
    }
    tensors = {f"send/{name}": tensor for name, tensor in result.tensors.items()}
    tensors |= {f"keep/{name}": tensor for name, tensor in result.private.items()}
    save_result(job_dir, summary, tensors)


def _summary(job_dir: Path) -> dict[str, Any]:
    path = Path(job_dir) / RESULT
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Transient(f"the worker left no readable result at {path}: {error}") from None
    if not isinstance(summary, dict):
        raise Transient(f"the worker left no readable result at {path}: it is no JSON object")
    return summary


def read_result(job_dir: Path) -> LocalResult:
    """The result of a train job.

    Raises:
        Transient: the worker left none.
    """
    summary, tensors = _summary(job_dir), read_npz(Path(job_dir) / RESULT_TENSORS)

    def part(prefix: str) -> Tensors:
        return {
            name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)
        }

    return LocalResult(
        tensors=part("send/"),
        codecs={name: Codec(value) for name, value in summary["codecs"].items()},
        weight=summary["weight"],
        metrics=summary["metrics"],
        extra=summary["extra"],
        private=part("keep/"),
    )


def read_state(job_dir: Path) -> Blobs:
    """The result of an init job.

    Raises:
        Transient: the worker left none.
    """
    _summary(job_dir)
    return load_state(Path(job_dir) / RESULT_TENSORS)


def read_evaluation(job_dir: Path) -> Evaluation:
    """The result of an evaluate job.

    Raises:
        Transient: the worker left none.
    """
    summary = _summary(job_dir)
    return Evaluation(summary["metrics"], summary["confusion_KK"], summary["by"])


def read_views(job_dir: Path) -> tuple[dict[str, Tensors], dict[str, Refused]]:
    """The result of a view job: views by device, and refusals.

    Raises:
        Transient: the worker left none.
    """
    return update_views.unpacked(_summary(job_dir), read_npz(Path(job_dir) / RESULT_TENSORS))


def read_finished(job_dir: Path) -> tuple[Blobs, dict[str, float]]:
    """The result of a finish job: the version, and metrics.

    Raises:
        Transient: the worker left none.
    """
    metrics: dict[str, float] = _summary(job_dir)["metrics"]
    return load_state(Path(job_dir) / RESULT_TENSORS), metrics
