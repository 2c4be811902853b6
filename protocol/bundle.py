"""The bundle: one file with an exported model and all that a device needs to run it.

A ZIP of stored (never compressed) entries: ``manifest.json`` first, then the files it lists, each with size
and SHA-256. The same content gives the same bytes, so that a bundle's digest names its content. The manifest
describes the inputs (modalities, window, order), the outputs (labels) and the model's origin.
"""

import io
import re
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from protocol.base import Count, Digest, Label, Name, Wire, Word, first_fault
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import MAX_MESSAGE_BYTES, BlobRef, Metrics
from protocol.tasks.task import LABEL, Modality, Target, Window

MANIFEST_NAME: Final = "manifest.json"
MAX_BUNDLE_BYTES: Final = 256 * 1024 * 1024
MAX_FILES: Final = 64
HEAD_BYTES: Final = MAX_MESSAGE_BYTES + 1024
"""The begin of a bundle that holds its manifest."""
_HEADER_BYTES: Final = 30
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest a ZIP can say: a bundle has no time of its own
_UNIX: Final = 3
_PLAIN_FILE: Final = 0o100644 << 16
_ENCRYPTED: Final = 1
_SAID_BY_PLACE: Final = {"modalities": {"__all__": {"input"}}}
"""A manifest's ``modalities`` are inputs: bundles have the bytes that they had before some were not."""
# zipfile raises these for bytes that are no archive, or that claim an unsupported feature or offset.
_ZIP_ERRORS: Final = (zipfile.BadZipFile, RuntimeError, EOFError, ValueError, struct.error, OverflowError)

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""One path level: a bundle has no folders, and no path leads out of it."""

TensorName = Annotated[str, Field(min_length=1, max_length=200)]

COMPLETION_INPUTS: Final = ("head", "relation", "entities", "relations")
COMPLETION_OUTPUTS: Final = ("tails", "scores")
"""Inputs of the ONNX model that :class:`Completion` describes."""


class Completion(Wire):
    """A model on knowledge graphs: it ranks tails for a head and a relation.

    Entity and relation embeddings are inputs: each device feeds its own. Shapes: B questions, V views, E
    entities, R relations (inverse ones too), k answers.

    Inputs: ``head`` (B,) and ``relation`` (B,) int64 (the inverse of relation r is r + R / 2), ``entities``
    (E, V, D), ``relations`` (R, V * C). Outputs: ``tails`` (B, k) int64, -1 where there are fewer than k
    entities, ``scores`` (B, k), the highest first.
    """

    top_k: Annotated[int, Field(ge=1, le=1000)]
    views: Annotated[int, Field(ge=1, le=16)]
    entity_dim: Annotated[int, Field(ge=1, le=65536)]
    """D."""
    relation_dim: Annotated[int, Field(ge=1, le=65536)]
    """C."""


class Variant(Wire):
    """The same model in another file: other arithmetic, the same inputs and outputs."""

    file: FileName
    precision: Word
    """``int8``; devices ignore variants of unknown arithmetic."""
    measured: Annotated[dict[Label, float], Field(max_length=32, default_factory=dict)]
    """Measured against the float32 model, on real windows given to the exporter: ``windows``, ``bytes``,
    ``agreement`` (share of windows with equal answers), ``agreement_missing`` (its minimum with one modality
    missing), ``max_difference`` and ``mean_difference`` of a probability; of labelled ones ``accuracy`` and
    ``accuracy_float32``. Which are present depends on the inputs and targets."""


class BundleManifest(Wire):
    """Describes a bundle. :func:`pack` fills in ``files``."""

    format: Literal[1] = 1
    task: Name
    method: Name
    version: Count
    """Version of the global model; 0 is the initial one."""
    labels: Annotated[tuple[Label, ...], Field(max_length=1024)] = ()
    """In the order of the outputs' columns; two or more, none for a knowledge graph."""
    modalities: Annotated[tuple[Modality, ...], Field(max_length=16)] = ()
    """In the order of the columns of the input ``present``; one or more, none for a knowledge graph."""
    window: Window = Window()
    """Ignored if there is ``graph``."""
    samples: Annotated[dict[Name, Annotated[int, Field(ge=1)]], Field(max_length=16, default_factory=dict)]
    """Samples of a window (T of ``x_BCT``), by modality that is read or generated."""
    inputs: Annotated[tuple[Label, ...], Field(max_length=32)]
    """Names of the ONNX model's inputs."""
    outputs: Annotated[tuple[Label, ...], Field(max_length=64)]
    targets: Annotated[tuple[Target, ...], Field(max_length=16)] | None = None
    """Predicted targets, in the order of the outputs (:mod:`.output_names`); None: ``label`` alone."""
    generated: Annotated[tuple[Modality, ...], Field(max_length=15)] | None = None
    """Modalities that ``targets`` of kind ``generation`` produce; None: there are none."""
    overridable: Annotated[tuple[TensorName, ...], Field(max_length=1024)] = ()
    """Tensors that a device may replace, by wire name: further inputs with defaults. Each is also an output
    that gives the default."""
    round: Count
    """The round that made this version."""
    base: Digest
    """The global version's manifest (``protocol.frames.headers.Manifest``)."""
    parent: Digest | None = None
    """The manifest of the version before; None for the initial model."""
    metrics: Metrics = Field(default_factory=dict)
    privacy: Annotated[dict[Name, JsonValue], Field(max_length=32)] | None = None
    """What versions up to this one tell of a device: epsilon, delta, unit, and ``words``; None: no bound."""
    secure_aggregation: Annotated[dict[Name, JsonValue], Field(max_length=32)] | None = None
    """Of a version that was made in a secure round: ``devices`` in the sum, ``min_devices``, and ``words``;
    None: the coordinator saw single updates."""
    files: Annotated[dict[FileName, BlobRef], Field(max_length=MAX_FILES, default_factory=dict)]
    parity: Annotated[dict[str, JsonValue], Field(max_length=64, default_factory=dict)]
    """Measured by the parity gate: the ONNX model against the network it was exported from."""
    graph: Completion | None = None
    """The model completes knowledge graphs and reads no windows."""
    variants: Annotated[dict[Name, Variant], Field(max_length=8)] | None = None
    """Besides ``model.onnx`` (float32), by name; a device measures them and runs the fastest that agrees."""

    @model_validator(mode="after")
    def _require_one_material(self) -> Self:
        if self.graph is None and (len(self.labels) < 2 or not self.modalities):  # noqa: PLR2004 - classes
            raise ValueError("labels, modalities: a model of windows has two labels and a modality at least")
        if self.graph is not None and (self.labels or self.modalities):
            raise ValueError("graph: a model of knowledge graphs has neither labels nor modalities")
        return self

    @property
    def predicted(self) -> tuple[Target, ...]:
        """:attr:`targets`, or the target of ``labels`` if there are none."""
        if self.graph is not None:
            return ()
        return (Target(name=LABEL, labels=self.labels),) if self.targets is None else self.targets


def pack(manifest: BundleManifest, files: Mapping[str, bytes]) -> bytes:
    """Write a bundle; the same manifest and files give the same bytes.

    Args:
        manifest: its ``files`` is replaced by sizes and digests of ``files``.
        files: content by name.

    Raises:
        ValueError: a name is ``manifest.json`` or no plain file name, or there are too many files.
    """
    wrong = [name for name in files if name == MANIFEST_NAME or not _FILE_NAME.match(name)]
    if wrong or len(files) > MAX_FILES:
        raise ValueError(f"a bundle holds at most {MAX_FILES} files with plain names; wrong: {wrong}")
    ordered = sorted(files.items())
    refs = {name: BlobRef(digest=digest(content), size=len(content)) for name, content in ordered}
    text = manifest.model_copy(update={"files": refs}).model_dump_json(
        exclude=_SAID_BY_PLACE, exclude_none=True, indent=1
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in [(MANIFEST_NAME, text.encode()), *ordered]:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = _UNIX, _PLAIN_FILE
            archive.writestr(info, content)
    return out.getvalue()


def unpack(data: bytes, max_bytes: int = MAX_BUNDLE_BYTES) -> tuple[BundleManifest, dict[str, bytes]]:
    """Read a bundle: manifest, and content by name with sizes and digests checked.

    Raises:
        Refused: not a bundle, too large, a file is missing, unlisted, named twice, or differs from its
        digest.
    """
    if len(data) > max_bytes:
        raise Refused(Reason.TOO_LARGE, f"bundle of {len(data)} bytes, at most {max_bytes}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = _entries(archive.infolist(), len(data))
            manifest = _manifest(archive.read(MANIFEST_NAME))
            _require_listed(manifest, entries)
            files = {name: archive.read(name) for name in sorted(manifest.files)}
    except _ZIP_ERRORS as error:
        raise Refused(Reason.MALFORMED, f"bundle: not a readable archive: {error}"[:500]) from None
    for name, content in files.items():
        if digest(content) != manifest.files[name].digest:
            raise Refused(Reason.WRONG_DIGEST, f"bundle file {name!r} differs from its digest")
    return manifest, files


def read_head(head: bytes) -> BundleManifest:
    """The manifest of a bundle from its first :data:`HEAD_BYTES`; what follows is not looked at.

    Raises:
        Refused: MALFORMED: they are not the begin of a bundle.
    """
    try:
        fields = struct.unpack_from("<4s5H3L2H", head)
    except struct.error:
        raise Refused(Reason.MALFORMED, "bundle: not a readable archive") from None
    mark, _, flags, method, _, _, _, _, size, name_bytes, extra_bytes = fields
    name = head[_HEADER_BYTES : _HEADER_BYTES + name_bytes]
    begin = _HEADER_BYTES + name_bytes + extra_bytes
    if mark != b"PK\x03\x04" or flags & _ENCRYPTED or method or name != MANIFEST_NAME.encode():
        raise Refused(Reason.MALFORMED, f"bundle: it does not begin with a stored {MANIFEST_NAME}")
    if not 0 < size <= MAX_MESSAGE_BYTES or begin + size > len(head):
        raise Refused(Reason.MALFORMED, f"bundle: {MANIFEST_NAME} is empty, too large or cut off")
    return _manifest(head[begin : begin + size])


def _entries(infos: Iterable[zipfile.ZipInfo], total: int) -> dict[str, int]:
    """Sizes by name, checked before any content is read: stored entries must fit into the archive."""
    entries: dict[str, int] = {}
    for info in infos:
        name = info.filename
        if not _FILE_NAME.match(name) or name in entries:
            raise Refused(Reason.MALFORMED, f"bundle file {name[:100]!r}: not a plain name, or named twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
            raise Refused(Reason.MALFORMED, f"bundle file {name!r} is compressed or encrypted")
        if info.compress_size != info.file_size:
            raise Refused(Reason.MALFORMED, f"bundle file {name!r} claims two sizes")
        entries[name] = info.file_size
    if len(entries) > MAX_FILES + 1 or sum(entries.values()) > total:
        raise Refused(Reason.TOO_LARGE, f"bundle: {len(entries)} files claim {sum(entries.values())} bytes")
    if not 0 < entries.get(MANIFEST_NAME, 0) <= MAX_MESSAGE_BYTES:
        raise Refused(Reason.MALFORMED, f"bundle: {MANIFEST_NAME} is missing, empty or too large")
    return entries


def _manifest(text: bytes) -> BundleManifest:
    try:
        return BundleManifest.model_validate_json(text)
    except ValidationError as error:
        raise Refused(Reason.MALFORMED, f"bundle: {first_fault(error, MANIFEST_NAME)}") from None


def _require_listed(manifest: BundleManifest, entries: Mapping[str, int]) -> None:
    listed = {name: ref.size for name, ref in manifest.files.items()}
    present = {name: size for name, size in entries.items() if name != MANIFEST_NAME}
    if listed != present:
        differing = ", ".join(sorted({name for name, _ in listed.items() ^ present.items()}))
        raise Refused(Reason.MALFORMED, f"bundle: files differ from the manifest: {differing}"[:500])
