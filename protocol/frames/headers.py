"""The header of an update and the manifest of a global version."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, ValidationError, model_serializer

from protocol.base import Count, Digest, Name, Share, Wire, first_fault
from protocol.errors import Reason, Refused
from protocol.messages import MAX_MANIFEST_BYTES, BlobRef, Metrics, PerClass


class UpdateHeader(Wire):
    """Task, device, base version and material of an update; precedes the tensors in the CBOR frame.

    ``samples``: windows, or triples of a knowledge graph. ``counts``: per modality, present windows by class;
    of a knowledge graph one number, the triples of which an entity has it. ``missing`` and ``quality``: per
    modality, 0 to 1. ``extra``: the method's own message, checked by its ``messages.py``.
    """

    kind: Literal["update"] = "update"
    task: Name
    method: Name
    device: Name
    round: Count
    base: Digest
    weight: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    """Weight of this update in the fold; 1 for a plain mean."""
    samples: Count
    counts: Annotated[dict[Name, PerClass], Field(max_length=16)]
    missing: Annotated[dict[Name, Share], Field(max_length=16)]
    quality: Annotated[dict[Name, Share], Field(max_length=16)]
    metrics: Metrics = Field(default_factory=dict)
    extra: Annotated[dict[str, JsonValue], Field(max_length=64, default_factory=dict)]


class BlobHeader(Wire):
    """The header of a frame that holds one named part of a version, or of a packed one that makes it."""

    kind: Literal["blob"] = "blob"
    name: Annotated[str, Field(pattern=r"^[a-z_]+(/[A-Za-z0-9_.-]+)?$", max_length=128)]


class Difference(Wire):
    """How a device that has one blob makes another: by adding a smaller one."""

    parent: Digest
    """The blob that the device has."""
    blob: BlobRef
    """The packed blob to fetch."""


RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""Random id of one training run."""


class Manifest(Wire):
    """A global version: content-addressed blobs by name. A device fetches the blobs of its route."""

    kind: Literal["manifest"] = "manifest"
    task: Name
    method: Name
    version: Count
    """0 is the initial model; round r makes version r."""
    parent: Digest | None = None
    run: RunId | None = None
    """In version 0 alone: distinguishes training runs of a task whose version 0 has the same tensors. Later
    versions differ by their parents."""
    parent_size: Annotated[int, Field(ge=0, le=MAX_MANIFEST_BYTES)] | None = None
    """Bytes of the parent's manifest; absent where no version is reached by differences."""
    blobs: Annotated[dict[str, BlobRef], Field(max_length=4096)]
    differences: Annotated[dict[str, Difference], Field(max_length=4096)] = Field(default_factory=dict)
    """By name of a blob that changed since the parent: the shorter way from there. Absent without any."""
    packed: BlobRef | None = None
    """A :class:`BlobIndex` of packed blobs that make those of this version from nothing; absent without
    any."""
    exact: BlobRef | None = None
    """A :class:`BlobIndex` of what the coordinator folds on, where that differs from the published values:
    their rounding error is added to the next version. Absent without any."""

    @model_serializer(mode="wrap")
    def _omit_no_differences(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return fields if self.differences else {k: v for k, v in fields.items() if k != "differences"}


class BlobIndex(Wire):
    """Further blobs of a version, by the names of its own: ``Manifest.packed`` and ``Manifest.exact``."""

    kind: Literal["index"] = "index"
    blobs: Annotated[dict[str, BlobRef], Field(max_length=4096)]


class ExtraMessage(Wire):
    """A method's own message in ``UpdateHeader.extra``."""

    def extra(self) -> dict[str, Any]:
        """As JSON values, for the header."""
        return self.model_dump(mode="json")

    @classmethod
    def read(cls, extra: Mapping[str, Any]) -> Self:
        """Parse ``UpdateHeader.extra`` as strictly as the header itself.

        Raises:
            Refused: MALFORMED; the detail names the field.
        """
        try:
            return cls.model_validate_json(json.dumps(dict(extra)), strict=True)
        except ValidationError as error:
            raise Refused(Reason.MALFORMED, first_fault(error, "extra")) from None
