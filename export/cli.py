"""Makes a bundle from a coordinator's blobs, for ``lichen export``."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import ValidationError

from export.job import require_parts
from models import packages
from models.backbones.views import backbones
from models.contract import Blobs, Profile, RoutedServer, WindowSet
from models.registry import admit, method
from protocol.bundle import BundleManifest
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import decode_frame, digest
from protocol.frames.headers import BlobHeader, Manifest
from protocol.tasks.task import Task
from runtime.outputs import writing
from runtime.storage.files import replace_file

if TYPE_CHECKING:
    from export.completion import CompletionParity
    from export.parity.gate import Parity


@dataclass(frozen=True)
class ExportChoice:
    """The version to export.

    Attributes:
        task: of the version.
        version: its manifest.
        base: the manifest's digest.
        blobs: the store's folder.
        packages: names of those that the task may use.
        backbones: the files of the task's backbones, by modality, if they are asked for.
    """

    task: Task
    version: Manifest
    base: str
    blobs: Path
    packages: tuple[str, ...] = ()
    backbones: Mapping[str, Path] = field(default_factory=dict)


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """A global version's manifest and its digest.

    Raises:
        Misconfigured: the file is missing or no manifest; the message names file and field.
    """
    try:
        data = path.read_bytes()
        return Manifest.model_validate_json(data), digest(data)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror or error}; give a manifest with --manifest") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "not JSON"
        raise Misconfigured(f"{path}: no manifest of a global version: {field}: {first['msg']}") from None


def read_state(manifest: Manifest, blobs: Path, route: Collection[str] | None = None) -> Blobs:
    """The global state that a manifest names.

    Args:
        manifest: of the version.
        blobs: the store's folder.
        route: only the blobs of these names; None: all.

    Raises:
        Misconfigured: a blob is missing; the message names it.
        Refused: a blob is corrupt, or holds another part.
    """
    if not blobs.is_dir():
        raise Misconfigured(f"{blobs}: no such folder; give the coordinator's blobs with --blobs")
    state: Blobs = {}
    for name in manifest.blobs if route is None else route:
        ref = manifest.blobs.get(name)
        if ref is None:
            raise Misconfigured(
                f"version {manifest.version} of {manifest.task} has no blob {name!r}: the task's network has "
                "changed since; see --task"
            )
        # Reads the layout of runtime.storage.blob_store directly: a BlobStore deletes files as it opens,
        # which must not happen to the store of a running coordinator.
        path = blobs / ref.digest[:2] / ref.digest
        try:
            data = path.read_bytes()
        except OSError as error:
            what = f"blob {name!r} of version {manifest.version}"
            raise Misconfigured(f"{path}: {what}: {error.strerror or error}; see --blobs") from None
        if digest(data) != ref.digest:
            raise Refused(Reason.WRONG_DIGEST, f"{path}: blob {name!r} differs from its digest")
        header, state[name] = decode_frame(data, BlobHeader)
        if header.name != name:
            raise Refused(Reason.WRONG_TENSORS, f"{path}: holds {header.name!r}, the manifest says {name!r}")
    return state


def route_of(task: Task, inputs: Sequence[str], targets: Sequence[str]) -> tuple[str, ...] | None:
    """The blobs to export: for a routed method those of a device with this profile; None: all.

    Args:
        task: names and options.
        inputs: modalities; empty: all that may be read.
        targets: empty: all.

    Raises:
        Misconfigured: the task has no such modality or target, or its method has one model for all.
    """
    spec = method(task.method)
    spec.configure(task)
    if not spec.routed:
        if inputs or targets:
            raise Misconfigured(
                f"--input and --target choose a part of the model; method {task.method!r} has one for all"
            )
        return None
    for option, names, known in (
        ("--input", inputs, task.input_names),
        ("--target", targets, task.target_names),
    ):
        if stray := [name for name in names if name not in known]:
            raise Misconfigured(f"{option} {stray[0]}: task {task.name!r} has {', '.join(known)}")
    profile = Profile(
        tuple(name for name in task.input_names if not inputs or name in inputs),
        tuple(name for name in task.target_names if not targets or name in targets),
    )
    return cast("RoutedServer", spec.server()).serving_route(task, profile, None)


def for_all(task: Task, version: Manifest) -> tuple[str, ...]:
    """The blobs of a version that are shared, not owned by single devices."""
    owned = method(task.method).owned
    return tuple(name for name in version.blobs if name.split("/", maxsplit=1)[0] not in owned)


def make(
    chosen: ExportChoice, out: Path, inputs: Sequence[str], targets: Sequence[str], calibrate: Path | None
) -> "tuple[bytes, Parity | CompletionParity]":
    """Make the bundle and write it.

    Args:
        chosen: the version to export.
        out: the file.
        inputs: for a routed method, modalities that are read; empty: all.
        targets: likewise.
        calibrate: windows for an int8 variant; None makes none.

    Raises:
        Misconfigured: a part is missing, or windows do not fit; the message names it.
        Refused: a blob is damaged, or the ONNX model differs from torch.
        NotWritten: the file cannot be written.
    """
    task, version, state = chosen.task, chosen.version, _state(chosen, inputs, targets)
    windows = None if calibrate is None else _windows(task, calibrate)
    import torch  # noqa: PLC0415 - it takes a second to load, and --help must not wait for it

    from export.bundle_builder import Lineage, make_bundle  # noqa: PLC0415 - imports torch too

    torch.set_num_threads(1)  # small networks run slower on several threads
    lineage = Lineage(version.version, version.version, chosen.base, version.parent, {})
    bundle, parity = make_bundle(task, state, lineage, windows)
    with writing(out):
        replace_file(out, bundle)
    return bundle, parity


def _state(chosen: ExportChoice, inputs: Sequence[str], targets: Sequence[str]) -> Blobs:
    """The state to export, after all checks that take no time."""
    task, version = chosen.task, chosen.version
    packages.permit(chosen.packages)
    packages.require_permitted(task)
    admit(task, chosen.packages)
    route = route_of(task, inputs, targets)
    state = read_state(version, chosen.blobs, for_all(task, version) if route is None else route)
    require_parts()
    return state


def make_joined(
    chosen: ExportChoice, out: Path, inputs: Sequence[str], targets: Sequence[str]
) -> "tuple[bytes, Parity]":
    """Make one ONNX model of backbones and head, and write it.

    Args:
        chosen: the version to export, with the files of its backbones.
        out: the file.
        inputs: for a routed method, modalities that are read; empty: all.
        targets: likewise.

    Raises:
        Misconfigured: a part is missing, or the task has no backbone; the message names it.
        Refused: a blob or a file is damaged, or the parts cannot be joined.
        NotWritten: the file cannot be written.
    """
    if not backbones(chosen.task):
        raise Misconfigured(f"--merge-backbone: task {chosen.task.name!r} has no backbone; leave it out")
    state = _state(chosen, inputs, targets)
    import torch  # noqa: PLC0415 - as in make()

    from export.joined import joined  # noqa: PLC0415 - imports torch too

    torch.set_num_threads(1)
    model, parity = joined(chosen.task, state, chosen.backbones, chosen.version.version, chosen.base)
    with writing(out):
        replace_file(out, model)
    return model, parity


def _windows(task: Task, file: Path) -> WindowSet:
    if task.graph is not None:
        raise Misconfigured(
            f"--calibrate: task {task.name!r} is of knowledge graphs, whose models have no int8 variant"
        )
    if not file.is_file():
        raise Misconfigured(f"--calibrate {file}: no such file; give a window set or a recording")
    from export.int8.calibration import read  # noqa: PLC0415 - imports onnx

    return read(task, file)


def does(made: BundleManifest) -> str:
    """Inputs and outputs of a bundle, for people."""
    if made.graph is None:
        return f"reads {', '.join(made.inputs[1:])} and predicts {', '.join(t.name for t in made.predicted)}"
    return (
        f"answers (head, relation) with the best {made.graph.top_k} tails, from each device's own embeddings"
    )
