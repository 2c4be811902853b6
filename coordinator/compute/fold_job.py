"""Job folders for the cluster's child process: measure, fold, and a first contact. Torch-free.

The jobs of ``models.worker`` and ``export`` have folders of their own; these have the same form.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from models.contract import Blobs
from models.guided import DeviceWeights
from models.privacy.noisy_fold import RoundNoise
from models.tensors import flatten
from models.worker.job_folder import JOB, RESULT, RESULT_TENSORS, STATE, load_state, save_result, write_state
from models.worker.update_views import FrameAt
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import Limits
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task


@dataclass(frozen=True)
class HelloJob:
    """Connect to the cluster."""

    kind: Literal["hello"] = "hello"


@dataclass(frozen=True)
class MeasureJob:
    """Measure updates (:func:`coordinator.aggregation.fold.update_norms`)."""

    frames: tuple[FrameAt, ...]
    limits: Limits
    updates_a_task: int
    kind: Literal["measure"] = "measure"


@dataclass(frozen=True)
class FoldJob:
    """Fold updates that the screen has passed, onto ``state.npz``."""

    task: Task
    round: int
    frames: tuple[FrameAt, ...]
    limits: Limits
    updates_a_task: int
    weights: dict[str, dict[str, float]] | None = None
    """Of a guided round: part -> device -> share."""
    privacy: Privacy | None = None
    """Of a task with that table, with the clip of the round."""
    noise_key: str = ""
    """The same task's, in hexadecimal: only the coordinator's own child reads it."""
    kind: Literal["fold"] = "fold"

    @property
    def weighing(self) -> DeviceWeights | None:
        """What the fold needs of a guided round."""
        return None if self.weights is None else DeviceWeights(self.weights)

    @property
    def noise(self) -> RoundNoise | None:
        """The noise of a task with a table ``[privacy]``."""
        if self.privacy is None:
            return None
        return RoundNoise(self.privacy, bytes.fromhex(self.noise_key))


ClusterJob = HelloJob | MeasureJob | FoldJob
KINDS: Final = ("hello", "measure", "fold")
_JOB: Final[TypeAdapter[ClusterJob]] = TypeAdapter(Annotated[ClusterJob, Field(discriminator="kind")])
_Lost = Mapping[str, Refused]


def write_job(job_dir: Path, job: ClusterJob, state: Blobs | None = None) -> None:
    """Write a job, ``job.json`` last."""
    if state is not None:
        write_state(job_dir / STATE, state)
    (job_dir / JOB).write_bytes(_JOB.dump_json(job))


def read_job(job_dir: Path) -> ClusterJob:
    """The job of a folder; raises as ``pydantic`` and the disk do (a fault of ours)."""
    return _JOB.validate_json((job_dir / JOB).read_bytes())


def kind_of(job_dir: Path) -> str:
    """The kind of any job folder."""
    kind: str = json.loads((job_dir / JOB).read_bytes()).get("kind", "")
    return kind


def save_norms(job_dir: Path, norms: Mapping[str, Mapping[str, float]], lost: _Lost) -> None:
    """The result of a measure job: device -> part -> magnitude, and refusals."""
    save_result(job_dir, {"norms": {d: _as_json(parts) for d, parts in norms.items()}, "lost": _packed(lost)})


def read_norms(job_dir: Path) -> tuple[dict[str, dict[str, float]], dict[str, Refused]]:
    """The result of a measure job.

    Raises:
        Transient: there is none.
    """
    summary = _summary(job_dir)
    norms = {
        device: {part: float(value) for part, value in parts.items()}
        for device, parts in summary["norms"].items()
    }
    return norms, _unpacked(summary)


def save_fold(job_dir: Path, state: Blobs, lost: _Lost) -> None:
    """The result of a fold job: the next version with moments, or refusals."""
    save_result(job_dir, {"lost": _packed(lost)}, flatten(state))


def read_fold(job_dir: Path) -> tuple[Blobs, dict[str, Refused]]:
    """The result of a fold job.

    Raises:
        Transient: there is none.
    """
    lost = _unpacked(_summary(job_dir))
    return ({} if lost else load_state(job_dir / RESULT_TENSORS)), lost


def frames_of(entries: Iterable[Any]) -> tuple[FrameAt, ...]:
    """The places of accepted updates."""
    return tuple(entry.frame for entry in entries)


def _as_json(parts: Mapping[str, float]) -> dict[str, float | str]:
    """JSON has no infinity; text has."""
    return {part: value if math.isfinite(value) else str(value) for part, value in parts.items()}


def _packed(lost: _Lost) -> dict[str, tuple[str, str]]:
    return {device: (why.reason.value, why.detail) for device, why in lost.items()}


def _unpacked(summary: Mapping[str, Any]) -> dict[str, Refused]:
    return {device: Refused(Reason(why), detail) for device, (why, detail) in summary["lost"].items()}


def _summary(job_dir: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((job_dir / RESULT).read_bytes())
    except (OSError, ValueError) as error:
        raise Transient(f"the cluster's child left no readable result in {job_dir}: {error}") from None
    return summary
