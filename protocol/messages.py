"""Control messages: JSON of frozen pydantic models (docs/protocol/README.md).

No message carries a wall-clock deadline: a Pi's clock may be an hour off at boot. Times are durations that
start when the message arrives; the coordinator sends them again with the remaining time.
"""

import re
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, TypeAdapter, ValidationError, model_serializer

from protocol.base import (
    UNSEEN,
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
from protocol.cohort import Cohort
from protocol.errors import Reason, Refused
from protocol.log_lines import LogLines
from protocol.rollout import Hindrance, Trial, TrialReport
from protocol.tasks.announcement import MAX_NEXT_ROOTS, MAX_SIGNED_OFFER_BYTES, TaskAnnouncement
from protocol.tasks.evaluation import DeviceEvaluation
from protocol.tasks.task import ModalityName
from protocol.telemetry import Telemetry

MAX_MESSAGE_BYTES: Final = 128 * 1024
"""Maximum size of a control message; larger ones are refused before parsing."""
MAX_MANIFEST_BYTES: Final = 1024 * 1024
"""Maximum size of a version's manifest: up to 4,096 blobs, at most 168 bytes each."""
MAX_DECISION_BYTES: Final = 4096
MAX_URL: Final = 4096
"""Characters; a pre-signed URL of a temporary access key has about 2,000."""
MAX_BLOB_BYTES: Final = 512 * 1024 * 1024
MAX_CHUNKS: Final = 1 << 20

PerClass = Annotated[tuple[Count, ...], Field(max_length=1024)]
Metrics = Annotated[dict[Label, float], Field(max_length=128)]
Role = Literal["observe", "prototype", "train"]
"""Known values; on the wire a :data:`Word`."""
MAX_WORDS: Final = 240
Words = Annotated[str, Field(min_length=1, max_length=MAX_WORDS, pattern=f"^[^{UNSEEN}]+$")]
"""One line for people, without control, bidirectional or invisible characters."""
SecretPrint = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class BlobRef(Wire):
    """A blob, named by its SHA-256."""

    digest: Digest
    size: Annotated[int, Field(ge=0, le=MAX_BLOB_BYTES)]


class ModalityState(Wire):
    """Windows of a modality in the store by class, missing share, and mean quality (0 to 1)."""

    windows: PerClass = ()
    """On knowledge graphs one number: triples of which an entity has it."""
    missing: Share = 0.0
    quality: Share | None = None
    reasons: Annotated[tuple[Label, ...], Field(max_length=16)] = ()


class State(Wire):
    """``up/state``, retained: ``online`` at each connect, ``stopped`` on clean exit, ``offline`` by will."""

    kind: Literal["state"] = "state"
    status: Word
    """``online``, ``stopped`` or ``offline``; a device of any other status is not selected."""
    device: Name
    roles: Annotated[tuple[Word, ...], Field(max_length=16)] = ()
    """``observe``, ``prototype``, ``train``; others are ignored."""
    modalities: Annotated[dict[Name, ModalityState], Field(max_length=16, default_factory=dict)]
    """Modalities that it reads to predict."""
    targets: Annotated[tuple[ModalityName, ...], Field(max_length=16)] | None = None
    """Targets that it learns (or predicts, if it learns nothing), in the task's order; None: ``label``
    alone."""
    windows: Count = 0
    """Windows in the store to learn from: labelled ones if the method needs labels on devices; triples on
    knowledge graphs."""
    model: Digest | None = None
    """The running bundle."""
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 65536
    """The largest chunk this device takes."""
    version: Label = "0"
    fleet_secret: SecretPrint | None = None
    """Print of its fleet secret, to compare secrets. Absent without a knowledge graph."""
    refuses: Words | None = None
    """Why it does not do the last announced task; absent if it does, or knows none."""
    trial: TrialReport | None = None
    """Trial of the last announced model; absent without one."""
    hindered: Hindrance | None = None
    """Why it does not follow its pointer yet, or can run no model; absent if nothing prevents it."""
    withdrawn: Annotated[tuple[Digest, ...], Field(max_length=16)] | None = None
    """The newest updates that were refused after they had left its outbox; need no further receipt."""
    distrusts: Words | None = None
    """Why it does not accept the last task or offer; absent if it does, or has no root."""
    labels: Annotated[dict[Name, Label], Field(max_length=16)] | None = None
    """The operator's labels (``[labels]`` of its configuration), as ``site: barn``; absent without any."""


class RoundAnnouncement(Wire):
    """``b/round``, retained: for people, dashboards and the demo. Devices act on offers, never on this.

    ``phase`` is the round machine's; or ``offline``: the coordinator's will, with round and version of its
    last connect; or ``stopped``: a clean exit before the last round was over.
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
    """Duration of the phase so far."""
    until_s: Seconds | None = None
    """Seconds until the next automatic step (the round closes, work is tried again); None: never."""
    every_s: Seconds = 0.0
    """The running coordinator repeats this at least so often; 0: never (will, ``stopped``)."""
    said_wall: Annotated[float, Field(ge=0)] | None = None
    """Time of sending by the coordinator's clock, unix seconds: shows people its age."""


class Offer(Cohort):
    """``b/offer``, retained while a round is open: the devices of its cohort learn from this version."""

    kind: Literal["offer"] = "offer"
    task: Name
    round: Count
    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    base: Digest
    """The manifest's digest; an update must name it."""
    base_size: Annotated[int, Field(ge=0, le=MAX_MANIFEST_BYTES)]
    closes_in_s: Seconds
    answer_within_s: Seconds = 0.0
    """Devices begin within this time, each at its own moment (``protocol.cohort``): a rate, and no storm."""
    graphs: Annotated[dict[ModalityName, BlobRef], Field(max_length=16)] = Field(default_factory=dict)
    """For devices whose only learning role is ``prototype``: the encoder models, by modality. They depend on
    the task alone; their weights are the base's blobs. Absent without any."""

    clip: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Of this round, where it adapts (``privacy.adaptive_clip``)."""

    signed: Annotated[str, Field(max_length=MAX_SIGNED_OFFER_BYTES)] | None = None
    """Task, round, base, cohort and encoder models, signed (``protocol.trust.signed_work``); absent if
    unsigned."""

    @model_serializer(mode="wrap")
    def _omit_empty_graphs(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return fields if self.graphs else {key: value for key, value in fields.items() if key != "graphs"}


class BlobPointer(Wire):
    """``up/update`` for an update larger than one chunk: the blob that follows on ``up/blob``."""

    kind: Literal["pointer"] = "pointer"
    task: Name
    round: Count
    blob: BlobRef
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)]


class Want(Wire):
    """``down/receipt``: the answer to a pointer; ranges [first, last] of missing chunks."""

    kind: Literal["want"] = "want"
    digest: Digest
    missing: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=64)]


class Fetch(Wire):
    """``up/fetch``: requests chunks [first, first + count) of a blob on ``down/blob``."""

    kind: Literal["fetch"] = "fetch"
    digest: Digest
    first: Annotated[int, Field(ge=0, lt=MAX_CHUNKS)]
    count: Annotated[int, Field(ge=1, le=64)]
    chunk_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)]
    download: bool | None = None
    """The device can download over HTTPS: the answer may be the command ``download`` instead of chunks."""


class Receipt(Wire):
    """``down/receipt``: the update is durable in the journal, or refused with a reason. Clears the outbox."""

    kind: Literal["receipt"] = "receipt"
    task: Name
    round: Count
    digest: Digest
    status: Word
    """``accepted``; any other value means refused."""
    reason: ReasonWord | None = None
    detail: Annotated[str, Field(max_length=500)] = ""


class Vouchers(Wire):
    """The blobs with a bundle's signed metadata (``protocol.trust.metadata``).

    Devices trust their signatures, not their mention here.
    """

    roots: Annotated[tuple[BlobRef, ...], Field(max_length=MAX_NEXT_ROOTS)] = ()
    """Versions 2, 3, ... in this order; version 1 is on the device."""
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
    """None: the coordinator does not sign."""
    serial: Count = 0
    """Number of the coordinator's decision: of ``b/model`` and ``down/model`` a device follows the higher
    serial, even if its version is lower. 0: the higher version."""
    trial: Trial | None = None
    """None: the device's own ``[deploy]`` applies."""
    decision: Annotated[str, Field(max_length=MAX_DECISION_BYTES)] | None = None
    """The pointer without metrics and trust, and its recipient, signed (``protocol.trust.decisions``)."""


class Command(Wire):
    """``down/cmd``: a fetch that cannot be answered, or a request for the state or the last log lines."""

    kind: Literal["cmd"] = "cmd"
    command: Word
    """``no_such_blob``, ``send_state``, ``send_logs``, ``download``; others are ignored."""
    digest: Digest | None = None
    url: Annotated[str, Field(max_length=MAX_URL)] | None = None
    """``download``: the blob's pre-signed URL, a secret of this device."""


class Metric(Wire):
    """``up/metric``: numbers about one finished local round, the device's telemetry, or an evaluation."""

    kind: Literal["metric"] = "metric"
    device: Name
    round: Count | None = None
    """Absent in telemetry and evaluations."""
    metrics: Metrics
    """Of the round; empty in telemetry and evaluations."""
    telemetry: Telemetry | None = None
    """What the device reports about itself at intervals; older coordinators ignore it."""
    evaluation: DeviceEvaluation | None = None
    """How often a version is right on windows that the device holds back; older coordinators ignore it."""


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
    | Metric
    | LogLines,
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
    """Whether the message is malformed, or of a newer release."""
    first = error.errors(include_url=False, include_input=False)[0]
    tag = first.get("ctx", {}).get("tag", "") if first["type"] == "union_tag_invalid" else ""
    return Reason.UNKNOWN_KIND if re.match(WORD_PATTERN, tag) else Reason.MALFORMED
