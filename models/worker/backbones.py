"""The child process that runs backbones for a coordinator, which has no ONNX Runtime: measures, and converts.

``python -P -m models.worker.backbones JOBDIR`` (or ``--serve``) does jobs as ``models.worker`` does.
``measure`` writes ``result.json``, a :class:`protocol.tasks.kinds.Backbone`; ``convert`` writes
``windows.npz``, a window set as the task is learned.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from models.backbones import files
from models.backbones.views import sensed
from models.backbones.windows import runs_of, with_features
from models.data import window_set
from models.worker import job_loop
from protocol.base import Frozen, first_fault
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task

JOB: Final = "job.json"
RESULT: Final = "result.json"
WINDOWS: Final = "windows.npz"


class MeasureBackboneJob(Frozen):
    """Check and measure the file of a modality's backbone."""

    kind: Literal["measure"] = "measure"
    modality: Modality
    samples: int
    folder: str
    """Of the task file."""


class ConvertWindowsJob(Frozen):
    """Compute the features of a window set."""

    kind: Literal["convert"] = "convert"
    task: Task
    paths: dict[str, str]
    """The file of each backbone."""
    windows: str
    """A window set as windows are cut."""
    threads: int = 1


_JOB: Final[TypeAdapter[MeasureBackboneJob | ConvertWindowsJob]] = TypeAdapter(
    Annotated[MeasureBackboneJob | ConvertWindowsJob, Field(discriminator="kind")]
)


def write_job(job_dir: Path, job: MeasureBackboneJob | ConvertWindowsJob) -> None:
    """Request a job."""
    (job_dir / JOB).write_text(job.model_dump_json(), encoding="utf-8")


def do(job_dir: Path) -> None:
    """Do the job of a folder and write its result.

    Raises:
        Misconfigured: the job, a file or the windows cannot be used.
        Refused: a backbone does not run.
    """
    try:
        job = _JOB.validate_json((job_dir / JOB).read_bytes())
    except ValidationError as error:
        raise Misconfigured(f"{job_dir / JOB}: {first_fault(error)}") from None
    if isinstance(job, MeasureBackboneJob):
        found = files.measure(job.modality, job.samples, Path(job.folder))
        (job_dir / RESULT).write_text(found.model_dump_json(), encoding="utf-8")
        return
    windows = window_set.load(Path(job.windows), sensed(job.task))
    runs = runs_of(job.task, {name: Path(path) for name, path in job.paths.items()}, job.threads)
    window_set.save(job_dir / WINDOWS, with_features(job.task, windows, runs))
    (job_dir / RESULT).write_text(json.dumps({"windows": len(windows)}), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(job_loop.main(do, "models.worker.backbones", sys.argv[1:]))
