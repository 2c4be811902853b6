"""Control messages: JSON of frozen pydantic models (docs/protocol/README.md).

No message carries a wall-clock deadline: a Pi's clock may be an hour off at boot. Times are durations that
start when the message arrives; the coordinator sends them again with the remaining time.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, ValidationError, model_serializer

from protocol.base import (
    WORD_PATTERN,
    Count,
    Digest,
    Label,
    Name,
    ReasonWord,
    Seconds,
    Share,
    Wire,
    Word,
    first_fault,
)
from protocol.errors import Reason, Refused
from protocol.rollout import Hindrance, Trial, TrialReport
from protocol.tasks.announcement import MAX_NEXT_ROOTS, MAX_SIGNED_OFFER_BYTES, TaskAnnouncement
from protocol.tasks.task import ModalityName

MAX_MESSAGE_BYTES: Final = 128 * 1024
"""No control message is larger; more is refused before it is parsed."""
MAX_MANIFEST_BYTES: Final = 1024 * 1024
"""Of a version: it is a blob, and names up to 4,096 others, each in 168 bytes at most."""
MAX_DECISION_BYTES: Final = 4096
MAX_BLOB_BYTES: Final = 512 * 1024 * 1024
MAX_CHUNKS: Final = 1 << 20

PerClass = Annotated[tuple[Count, ...], Field(max_length=1024)]
Metrics = Annotated[dict[Label, float], Field(max_length=128)]
Role = Literal["observe", "prototype", "train"]
"""Those that this lichen knows; on the wire a :data:`Word`."""
MAX_WORDS: Final = 240
_UNSEEN: Final = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
Words = Annotated[str, Field(min_length=1, max_length=MAX_WORDS, pattern=f"^[^{_UNSEEN}]+$")]
"""One line for people: without what a terminal obeys, and what turns text round or cannot be seen."""
SecretPrint = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class BlobRef(Wire):
    """Some bytes, named by their SHA-256."""

    digest: Digest
    size: Annotated[int, Field(ge=0, le=MAX_BLOB_BYTES)]


class ModalityState(Wire):
    """Of a modality: counts per class in the store, share missing, mean quality (0 to 1) where one has it."""

    windows: PerClass = ()
    """Of a graph one number: triples of which an entity has it."""
    missing: Share = 0.0
    quality: Share | None = None
    reasons: Annotated[tuple[Label, ...], Field(max_length=16)] = ()


class State(Wire):
    """``up/state``, retained: ``online`` at each connect, ``stopped`` on clean exit, ``offline`` by will."""

    kind: Literal["state"] = "state"
    status: Word
    """``online``, ``stopped`` or ``offline``; a device of any other status is not asked for anything."""
    device: Name
    roles: Annotated[tuple[Word, ...], Field(max_length=16)] = ()
    """``observe``, ``prototype``, ``train``; others are left aside."""
    modalities: Annotated[dict[Name, ModalityState], Field(max_length=16, default_factory=dict)]
    """Those that it reads to predict."""
    targets: Annotated[tuple[ModalityName, ...], Field(max_length=16)] | None = None
    """Those that it learns (where it learns nothing: is to predict), in the task's order; None: ``label``
    alone."""
    windows: Count = 0
    """Windows in the store to learn from: labelled ones, where the method learns from labels on devices; on
    graphs, triples."""
    model: Digest | None = None
    """The bundle that infers now."""
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 65536
    """The largest chunk this device takes."""
    version: Label = "0"
    fleet_secret: SecretPrint | None = None
    """Of the secret under which it names entities: tells secrets apart. Left out where it has no graph."""
    refuses: Words | None = None
    """Why it does not do the task that was announced last; left out where it does, or knows of none."""
    trial: TrialReport | None = None
    """How it fares with the model that it was pointed to last; left out where it was pointed to none."""
    hindered: Hindrance | None = None
    """Why it does not follow its pointer yet, or can run no model; left out where nothing is in the way."""
    withdrawn: Annotated[tuple[Digest, ...], Field(max_length=16)] | None = None
    """The newest updates whose refusal came after they had left its outbox: it need not be said again."""
    distrusts: Words | None = None
    """Why it does not act on the task or the offer that came last, where it has a root; else left out."""
    labels: Annotated[dict[Name, Label], Field(max_length=16)] | None = None
    """The operator's words for it (``[labels]`` of its configuration), as ``site: barn``; else left out."""


class RoundAnnouncement(Wire):
    """``b/round``, retained: for people, dashboards and the demo. Devices act on offers, never on this.

    ``phase`` is that of the round machine; or ``offline``: the coordinator's will, with round and version as
    of its last connect; or ``stopped``: it left in order before the last round was over.
    """

    kind: Literal["round"] = "round"
    task: Name
    round: Count
    rounds: Count
    phase: Label
    selected: Annotated[tuple[Name, ...], Field(max_length=100_000)] = ()
    selected_count: Count = 0
    accepted: Annotated[tuple[Name, ...], Field(max_length=100_000)] = ()
    accepted_count: Count = 0
    closes_in_s: Seconds | None = None
    version: Count = 0
    metrics: Metrics = Field(default_factory=dict)
    bytes_up: Annotated[int, Field(ge=0)] = 0
    """Payload bytes received from devices since the task began."""
    bytes_down: Annotated[int, Field(ge=0)] = 0
    waiting_for: Annotated[str, Field(max_length=1000)] = ""
    waited_s: Seconds = 0.0
    """For so long already."""
    until_s: Seconds | None = None
    """In so many seconds something happens by itself (the round closes, work is tried again); None: never."""
    every_s: Seconds = 0.0
    """While the coordinator runs it says this again at least so often; 0: it does not (will, ``stopped``)."""
    said_wall: Annotated[float, Field(ge=0)] | None = None
    """When it was said by the coordinator's clock, unix seconds: for people only, who see how old it is."""


class Offer(Wire):
    """``down/offer``: learn from this version. Sent again until the update is here or the round is over."""

    kind: Literal["offer"] = "offer"
    task: Name
    round: Count
    base: Digest
    """The manifest's digest; an update must name it."""
    base_size: Annotated[int, Field(ge=0, le=MAX_MANIFEST_BYTES)]
    closes_in_s: Seconds
    seed: Count = 0
    graphs: Annotated[dict[ModalityName, BlobRef], Field(max_length=16)] = Field(default_factory=dict)
    """For a device whose only learning role is ``prototype``: the encoders' graphs (ONNX), by modality. They
    depend on the task alone; their weights are the base's blobs. Left out where there is none."""

    signed: Annotated[str, Field(max_length=MAX_SIGNED_OFFER_BYTES)] | None = None
    """Task, round, base and graphs, signed (``protocol.trust.signed_work``); else left out."""

    @model_serializer(mode="wrap")
    def _say_no_graphs_with_silence(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        told: dict[str, Any] = handler(self)
        return told if self.graphs else {key: value for key, value in told.items() if key != "graphs"}


class BlobPointer(Wire):
    """``up/update`` for an update larger than one chunk: what will come on ``up/blob``."""

    kind: Literal["pointer"] = "pointer"
    task: Name
    round: Count
    blob: BlobRef
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)]


class Want(Wire):
    """``down/receipt``: the answer to a pointer; ranges [first, last] of chunks that are not here yet."""

    kind: Literal["want"] = "want"
    digest: Digest
    missing: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=64)]


class Fetch(Wire):
    """``up/fetch``: send me chunks [first, first + count) of this blob on ``down/blob``."""

    kind: Literal["fetch"] = "fetch"
    digest: Digest
    first: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    count: Annotated[int, Field(ge=1, le=64)]
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)]


class Receipt(Wire):
    """``down/receipt``: the update is in the journal and synced, or refused and why. Clears the outbox."""

    kind: Literal["receipt"] = "receipt"
    task: Name
    round: Count
    digest: Digest
    status: Word
    """``accepted``, else refused."""
    reason: ReasonWord | None = None
    detail: Annotated[str, Field(max_length=500)] = ""


class Vouchers(Wire):
    """Where the signed metadata of a bundle is (``protocol.trust.metadata``).

    Blobs; they are believed for their signatures, never for being named here.
    """

    roots: Annotated[tuple[BlobRef, ...], Field(max_length=MAX_NEXT_ROOTS)] = ()
    """Versions 2, 3, ... in this order; the first one is on the device."""
    timestamp: BlobRef
    snapshot: BlobRef
    targets: BlobRef


class ModelPointer(Wire):
    """``b/model`` (retained) or ``down/model``: the bundle that a device should run. Devices pull it."""

    kind: Literal["model"] = "model"
    task: Name
    version: Count
    bundle: BlobRef
    metrics: Metrics = Field(default_factory=dict)
    trust: Vouchers | None = None
    """None: this coordinator signs nothing."""
    serial: Count = 0
    """Counts the coordinator's decisions: of ``b/model`` and ``down/model`` a device goes by the one with the
    higher serial, also where its version is lower. 0: by version."""
    trial: Trial | None = None
    """None: as the device's own ``[deploy]`` says."""
    decision: Annotated[str, Field(max_length=MAX_DECISION_BYTES)] | None = None
    """All of this but metrics and trust, and whom it is for, signed (``protocol.trust.decisions``)."""


class Command(Wire):
    """``down/cmd``: a fetch that cannot be answered, for now; later, remote control."""

    kind: Literal["cmd"] = "cmd"
    command: Word
    """``no_such_blob``, ``send_state``; others are left aside."""
    digest: Digest | None = None


class Metric(Wire):
    """``up/metric``: small numbers about one finished local round, or about inference."""

    kind: Literal["metric"] = "metric"
    device: Name
    round: Count | None = None
    metrics: Metrics


Control = Annotated[
    State
    | TaskAnnouncement
    | RoundAnnouncement
    | Offer
    | BlobPointer
    | Want
    | Fetch
    | Receipt
    | ModelPointer
    | Command
    | Metric,
    Field(discriminator="kind"),
]
_ADAPTER: Final[TypeAdapter[Control]] = TypeAdapter(Control)
_M = TypeVar("_M", bound=Wire)


def encode(message: Wire) -> bytes:
    """A control message as JSON."""
    return message.model_dump_json(exclude_none=True).encode()


def decode(payload: bytes, *expected: type[_M]) -> _M:
    """Read a control message that must be one of ``expected``.

    Raises:
        Refused: too large, not JSON, of another kind, or a field is wrong (the detail names its path); of a
            kind that this lichen does not know (UNKNOWN_KIND).
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise Refused(
            Reason.TOO_LARGE, f"control message of {len(payload)} bytes, at most {MAX_MESSAGE_BYTES}"
        )
    try:
        message = _ADAPTER.validate_json(payload, strict=True)  # true and "1" are no numbers
    except ValidationError as error:
        raise Refused(_reason_of(error), first_fault(error)) from None
    if not isinstance(message, expected):
        names = " or ".join(kind.__name__ for kind in expected)
        raise Refused(Reason.MALFORMED, f"expected {names}, got {type(message).__name__}")
    return message


def _reason_of(error: ValidationError) -> Reason:
    """Whether it is damaged or wrong, or only newer than we are."""
    first = error.errors(include_url=False, include_input=False)[0]
    tag = first.get("ctx", {}).get("tag", "") if first["type"] == "union_tag_invalid" else ""
    return Reason.UNKNOWN_KIND if re.match(WORD_PATTERN, tag) else Reason.MALFORMED
