"""Export jobs: a folder with ``job.json`` in, files and ``result.json`` out.

``export``: with ``state.npz``; writes ``bundle.zip``. ``features``: of a task alone; writes
``<modality>.onnx`` (``export.encoder_models``). The coordinator writes the folder and starts ``python -P -m
export`` on it; it never imports this package.
Every file is written atomically, ``result.json`` last.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, JsonValue, ValidationError

from models import packages
from models.contract import WindowSet
from models.data import window_set
from models.registry import admit
from models.worker.job_folder import load_state
from protocol.base import Count, Digest, Name, Wire, first_fault
from protocol.errors import Misconfigured
from protocol.frames.frame import digest
from protocol.messages import Metrics
from protocol.tasks.task import Task
from runtime.storage.files import write_atomic

JOB: Final = "job.json"
STATE: Final = "state.npz"
BUNDLE: Final = "bundle.zip"
RESULT: Final = "result.json"


class ExportJob(Wire):
    """``job.json``: make a bundle of the global state in the same folder."""

    kind: Literal["export"] = "export"
    task: Task
    version: Count
    round: Count
    manifest_digest: Digest
    """Digest of the global version's manifest (``protocol.frames.headers.Manifest``)."""
    parent: Digest | None = None
    metrics: Metrics = Field(default_factory=dict)
    privacy: Annotated[dict[Name, JsonValue], Field(max_length=32)] | None = None
    secure_aggregation: Annotated[dict[Name, JsonValue], Field(max_length=32)] | None = None
    calibrate: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A window set (npz) for the int8 variant."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    packages: tuple[str, ...] = ()
    """Those that the coordinator's configuration allows a task to use."""


class FeaturesJob(Wire):
    """``job.json``: make the encoder models of a task."""

    kind: Literal["features"]
    task: Task
    packages: tuple[str, ...] = ()
    threads: Annotated[int, Field(ge=1, le=256)] = 1


class _Kind(BaseModel):
    """The field that selects the job's model."""

    kind: Literal["export", "features"] = "export"


def read_job(job_dir: Path) -> ExportJob | FeaturesJob:
    """The job of a folder.

    Raises:
        Misconfigured: there is no job, or a field is wrong; the message names file and field.
    """
    path = job_dir / JOB
    try:
        data = path.read_bytes()
        kind = _Kind.model_validate_json(data).kind
        return (FeaturesJob if kind == "features" else ExportJob).model_validate_json(data)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        raise Misconfigured(f"{path}: {first_fault(error)}") from None


def require_parts() -> None:
    """Check that the libraries are installed, before anything is computed.

    Raises:
        Misconfigured: a library of the ``export`` extra is missing.
    """
    missing = [name for name in ("torch", "onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise Misconfigured(
            f"export needs {', '.join(missing)}, not installed here: pip install 'lichen[export]'"
        )


def do(job_dir: Path) -> None:
    """Do the job of a folder and write its files and ``result.json``.

    Raises:
        Misconfigured: the job or its task is wrong, or a library of the ``export`` extra is missing.
        Refused: the state is not the network's, or an ONNX model failed its gate.
    """
    job = read_job(job_dir)
    for path in (job_dir / RESULT, job_dir / BUNDLE, *job_dir.glob("*.onnx")):
        path.unlink(missing_ok=True)
    require_parts()
    packages.permit(job.packages)
    packages.require_permitted(job.task)
    admit(job.task, job.packages)
    import torch  # noqa: PLC0415 - a wrong job is answered before the second that torch takes to load

    torch.set_num_threads(job.threads)
    result = _features(job, job_dir) if isinstance(job, FeaturesJob) else _bundle(job, job_dir)
    write_atomic(job_dir / RESULT, json.dumps(result, allow_nan=False, sort_keys=True).encode())


def _bundle(job: ExportJob, job_dir: Path) -> dict[str, Any]:
    """Write ``bundle.zip``."""
    from export.bundle_builder import Lineage, make_bundle  # noqa: PLC0415 - imports torch

    made_of = job.version, job.round, job.manifest_digest, job.parent, job.metrics
    lineage = Lineage(*made_of, privacy=job.privacy, secure_aggregation=job.secure_aggregation)
    windows, trouble = _windows(job)
    bundle, parity = make_bundle(job.task, load_state(job_dir / STATE), lineage, windows)
    write_atomic(job_dir / BUNDLE, bundle)
    result = {"parity": parity.as_dict(), "size": len(bundle), "digest": digest(bundle)}
    return result | ({"calibrate": trouble} if trouble else {})


def _windows(job: ExportJob) -> tuple[WindowSet | None, str]:
    """Windows to calibrate on, or why there are none, which prevents no bundle."""
    if job.calibrate is None or job.task.graph is not None:
        return None, ""
    try:
        return window_set.load(Path(job.calibrate), job.task), ""
    except Misconfigured as error:
        return None, str(error)


def _features(job: FeaturesJob, job_dir: Path) -> dict[str, Any]:
    """Write ``<modality>.onnx`` for each modality."""
    from export.encoder_models import checked_encoder_models  # noqa: PLC0415 - imports torch

    graphs = {}
    for name, (graph, parity) in checked_encoder_models(job.task).items():
        write_atomic(job_dir / f"{name}.onnx", graph)
        graphs[name] = {
            "file": f"{name}.onnx",
            "digest": digest(graph),
            "size": len(graph),
            "parity": parity.as_dict(),
        }
    return {"graphs": graphs}
