"""Checks whether a bundle fits this device: pure."""

from collections.abc import Sequence

from models.data.streams.frame_sizes import size_of
from protocol.bundle import BundleManifest
from protocol.errors import Reason, Refused
from protocol.tasks.task import Modality, Target, Task

FLOAT32 = "float32"
MODEL_FILE = "model.onnx"
ONNX_SUFFIX = ".onnx"
PRESENT = "present"


def require_compatible(manifest: BundleManifest, task: Task, modalities: Sequence[str]) -> None:
    """Compare a bundle's inputs and outputs with the device's task and modalities.

    Args:
        manifest: the bundle's.
        task: the device's task; its windows feed the model.
        modalities: those of the task that this device has.

    Raises:
        Refused: it is for another task, other modalities, channels, window, labels or targets; the detail
            names which.
    """
    if manifest.task != task.name:
        raise Refused(
            Reason.UNKNOWN_TASK, f"the model is for task {manifest.task!r}, the device runs {task.name!r}"
        )
    if MODEL_FILE not in manifest.files:
        raise Refused(
            Reason.MALFORMED, f"the bundle has no {MODEL_FILE} (it has {', '.join(manifest.files)})"
        )
    _require_variants(manifest)
    if manifest.graph is not None or task.graph is not None:
        _require_same_answers(manifest, task)
        return
    names = [m.name for m in manifest.modalities]
    foreign = sorted(set(names) - set(task.input_names))
    if foreign:
        raise Refused(
            Reason.WRONG_MODALITY,
            f"the model reads {', '.join(foreign)}, which task {task.name!r} does not have "
            f"(it has {', '.join(task.input_names)})",
        )
    if not set(names) & set(modalities):
        raise Refused(
            Reason.WRONG_MODALITY,
            f"the model reads {', '.join(names)}; this device has {', '.join(modalities) or 'none'} of them",
        )
    for theirs in manifest.modalities:
        _require_same_input(manifest, task, theirs)
    if manifest.labels != task.labels:
        raise Refused(
            Reason.WRONG_TENSORS, f"the model's labels {manifest.labels} are not the task's {task.labels}"
        )
    for target in manifest.predicted:
        _require_same_target(target, task)
    for made in manifest.generated or ():
        _require_same_input(manifest, task, made)


def _require_variants(manifest: BundleManifest) -> None:
    """Each variant is a file of its own; its answers are measured before it is used."""
    files = [variant.file for variant in (manifest.variants or {}).values()]
    for file in files:
        if not file.endswith(ONNX_SUFFIX):  # ONNX Runtime may choose another format by the file's name
            raise Refused(Reason.MALFORMED, f"the bundle's variant {file!r} is no {ONNX_SUFFIX} file")
        if file not in manifest.files or file == MODEL_FILE or files.count(file) > 1:
            raise Refused(
                Reason.MALFORMED, f"the bundle calls {file!r} a variant, and has no file of its own for it"
            )


def _require_same_answers(manifest: BundleManifest, task: Task) -> None:
    """Embeddings are the device's own, computed from whichever of its modalities."""
    what = {True: "completes knowledge graphs", False: "reads windows"}
    theirs, ours = manifest.graph, task.graph
    if theirs is None or ours is None:
        raise Refused(
            Reason.WRONG_TENSORS,
            f"the model {what[theirs is not None]}, task {task.name!r} {what[ours is not None]}",
        )
    if theirs.top_k != ours.top_k:
        raise Refused(
            Reason.WRONG_TENSORS, f"the model gives {theirs.top_k} answers, the task says {ours.top_k}"
        )


def _require_same_target(theirs: Target, task: Task) -> None:
    """Same name, kind and classes; offset and scale do not count: the ONNX model answers in the unit."""
    if theirs.name not in task.target_names:
        raise Refused(
            Reason.WRONG_TENSORS,
            f"the model predicts {theirs.name!r}, which task {task.name!r} does not have "
            f"(it has {', '.join(task.target_names)})",
        )
    ours = task.target(theirs.name)
    for field in ("kind", "labels", "modality", "unit"):
        if (mine := getattr(ours, field)) != (other := getattr(theirs, field)):
            raise Refused(
                Reason.WRONG_TENSORS,
                f"the model's target {theirs.name!r} has {field} {other}, the task's {mine}",
            )


def _require_same_input(manifest: BundleManifest, task: Task, theirs: Modality) -> None:
    name = theirs.name
    if name not in task.modality_names:
        raise Refused(
            Reason.WRONG_MODALITY, f"the model makes {name!r}, which task {task.name!r} does not have"
        )
    ours = task.modality(name)
    if (theirs.kind, theirs.height, theirs.width) != (ours.kind, ours.height, ours.width):
        raise Refused(
            Reason.WRONG_TENSORS,
            f"the model's {name!r} is of kind {theirs.kind!r} ({size_of(theirs)}), the device's of kind "
            f"{ours.kind!r} ({size_of(ours)})",
        )
    if (theirs.channels, manifest.samples.get(name)) != (ours.channels, task.samples(name)):
        raise Refused(
            Reason.WRONG_TENSORS,
            f"the model's windows of {name!r} have {theirs.channels} channels and "
            f"{manifest.samples.get(name)} samples, the device's {ours.channels} and {task.samples(name)}",
        )
