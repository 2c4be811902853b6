"""Backbones in files: checked before ONNX Runtime reads them. For child processes and tools."""

import hashlib
import os
from pathlib import Path
from typing import Any, Final

from models.backbones.graph_safety import require_safe_model
from models.backbones.model import BackboneModel
from models.backbones.session_options import session_options
from models.backbones.views import Measure, prepared
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.kinds import MAX_BACKBONE_BYTES, Backbone
from protocol.tasks.task import Modality, Task

HINT: Final = "lichen export backbone --file FILE --out PLAIN makes it plain where that is possible"
_ERRORS: Final = (
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NotImplemented",
    "RuntimeException",
)


def read(path: Path, sha256: str | None = None) -> bytes:
    """The bytes of a file, checked as a device checks them.

    Raises:
        Misconfigured: it cannot be read.
        Refused: it is too large, is not the one with that digest, or has parts that are never accepted.
    """
    try:
        if (size := path.stat().st_size) > MAX_BACKBONE_BYTES:
            raise Refused(Reason.TOO_LARGE, f"{size} bytes, at most {MAX_BACKBONE_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}") from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise Refused(Reason.WRONG_DIGEST, f"its SHA-256 is not {sha256} (backbone.sha256)")
    require_safe_model(data, path.name)
    return data


def open_model(data: bytes, modality: Modality, samples: int, threads: int = 1) -> BackboneModel:
    """A backbone in this process.

    Raises:
        Misconfigured: ONNX Runtime is not installed.
        Refused: ONNX Runtime cannot load it, or it does not fit the modality.
    """
    session, errors = _session(data, threads)
    return BackboneModel(session, errors, modality, samples)


def _session(data: bytes, threads: int) -> tuple[Any, tuple[type[Exception], ...]]:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import
        from onnxruntime.capi import onnxruntime_pybind11_state as state  # noqa: PLC0415 - as above
    except ImportError:
        raise Misconfigured("a backbone needs onnxruntime: pip install 'lichen[infer]'") from None
    errors = (*(getattr(state, name) for name in _ERRORS), RuntimeError, ValueError)
    options = session_options(threads)
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except errors as error:
        raise Refused(Reason.MALFORMED, f"it does not load: {error}"[:400]) from None
    return session, errors


def measure(modality: Modality, samples: int, folder: Path) -> Backbone:
    """Check the file of a modality's backbone, and measure it.

    Args:
        modality: with a backbone.
        samples: of its windows.
        folder: of the task file.

    Raises:
        Misconfigured: it cannot be used; the message names the modality, the file and the reason.
    """
    given = modality.backbone or Backbone()
    where = f"modality {modality.name!r}: backbone"
    if given.file is None:
        raise Misconfigured(f"{where}: file is needed: an ONNX file, relative to the task file")
    path = folder / given.file
    try:
        data = read(path, given.sha256)
        made = open_model(data, modality, samples)
    except Misconfigured as error:
        raise Misconfigured(f"{where}: {error}") from None
    except Refused as error:
        hint = f"; {HINT}" if "never accepted" in error.detail else ""
        raise Misconfigured(f"{where}: {path}: {error.detail}{hint}") from None
    if given.size not in {None, len(data)}:
        raise Misconfigured(f"{where}: {path} has {len(data)} bytes, not {given.size} (backbone.size)")
    found = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "features": made.features}
    return given.model_copy(update=found)


def measure_in(folder: Path) -> Measure:
    """:func:`measure` of task files in a folder."""
    return lambda modality, samples: measure(modality, samples, folder)


def prepare(task: Task, folder: Path) -> Task:
    """A task from a file in that folder, with its backbones measured in this process.

    Raises:
        Misconfigured: a backbone cannot be used, or the task does not fit it.
    """
    return prepared(task, measure_in(folder))
