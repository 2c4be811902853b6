"""The MQTT topics (docs/protocol/README.md).

Only the device writes ``lichen/v1/<fleet>/d/<device>/up/...`` and reads ``.../down/...``; the coordinator
broadcasts on ``lichen/v1/<fleet>/b/...``. The device has a fixed level, so that one
broker ACL pattern binds it to its certificate's name. No topic has more than 7 slashes or 256 bytes, the
limits of AWS IoT Core (ADR 8).

The level ``<fleet>`` is a *namespace*: the fleet's name for its main task, ``<fleet>~<task>`` for a further
task of the same fleet (ADR 53). No name holds ``~``. All functions here take a namespace as ``fleet``.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from protocol.base import NAME_ERROR, NAME_PATTERN, is_name, name_trouble
from protocol.errors import Reason, Refused

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_INDEX: Final = re.compile(r"(0|[1-9][0-9]{0,6})\Z")
_NEWER: Final = re.compile(r"lichen/v1/[^/]+/(b|d/[^/]+/(up|down))/[a-z][a-z0-9_]{0,31}\Z")
"""Topics that a later release may add."""
_MAX_CHUNK_INDEX: Final = 1 << 20
MAX_TOPIC_BYTES: Final = 256
MAX_SLASHES: Final = 7
"""Limits of AWS IoT Core; a test compares the longest topic with both."""
MAX_TASK_NAME: Final = 40
"""Characters of a further task's name: with more, the longest topic would have more than 256 bytes."""
_SEPARATOR: Final = "~"
_NAMESPACE_PATTERN: Final = (
    f"{NAME_PATTERN.removesuffix('$')}({_SEPARATOR}[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_TASK_NAME - 1}}})?$"
)
_NAMESPACE: Final = re.compile(_NAMESPACE_PATTERN.replace("$", r"\Z"))


def namespace(fleet: str, task: str | None) -> str:
    """The first level of a task's topics after ``lichen/v1/``, also in what its coordinator signs.

    Args:
        fleet: its name.
        task: a further task's name; None: the fleet's main task.

    Raises:
        ValueError: one is no valid name.
    """
    return _checked(fleet if task is None else f"{fleet}{_SEPARATOR}{task}", "fleet")


def split_namespace(text: str) -> tuple[str, str | None]:
    """Fleet and further task of a namespace; the task is None for the fleet's main task.

    Raises:
        ValueError: it is no namespace.
    """
    fleet, _, task = _checked(text, "fleet").partition(_SEPARATOR)
    return fleet, task or None


def task_name_trouble(task: str) -> str:
    """Why a text cannot name a further task of a fleet; empty if it can."""
    if not (words := name_trouble(task)) and len(task) > MAX_TASK_NAME:
        words = f"{task!r} has {len(task)} characters; a further task's name has at most {MAX_TASK_NAME}"
    return words


def namespace_trouble(text: str) -> str:
    """Why a text is no namespace; empty if it is one."""
    if is_namespace(text):
        return ""
    fleet, further, task = text.partition(_SEPARATOR)
    return name_trouble(fleet) or (task_name_trouble(task) if further else "")


def is_namespace(text: str) -> bool:
    """Whether a text is a fleet's name, or a further task's namespace."""
    return _NAMESPACE.match(text) is not None


def _spaced(text: str) -> str:
    if words := namespace_trouble(text):
        raise PydanticCustomError(NAME_ERROR, "{words}", {"words": words})
    return text


Namespace = Annotated[
    str,
    AfterValidator(_spaced),
    WithJsonSchema({"type": "string", "pattern": _NAMESPACE_PATTERN}),
]
"""A fleet's name, or ``<fleet>~<task>`` (:func:`namespace`)."""


class Kind(StrEnum):
    """Kind of a topic; the value is its tail."""

    STATE = "up/state"  # retained: messages.State
    UPDATE = "up/update"  # a CBOR frame, or messages.BlobPointer for one that is larger than a chunk
    UP_BLOB = "up/blob"  # raw bytes of one chunk
    METRIC = "up/metric"  # messages.Metric
    LOG = "up/log"  # log_lines.LogLines: the answer to the command send_logs
    FETCH = "up/fetch"  # messages.Fetch: the pull of a blob (ADR 2)
    PING = "ping"  # empty: tests whether the broker answers; nobody subscribes
    RECEIPT = "down/receipt"  # messages.Receipt | messages.Want
    DOWN_BLOB = "down/blob"  # raw bytes of one chunk
    MODEL = "down/model"  # messages.ModelPointer for this device alone
    CMD = "down/cmd"  # messages.Command
    TASK = "b/task"  # retained: announcement.TaskAnnouncement
    ROUND = "b/round"  # retained: messages.RoundAnnouncement
    FLEET_MODEL = "b/model"  # retained: messages.ModelPointer
    OFFER = "b/offer"  # retained while a round is open: messages.Offer


_DEVICE_KINDS: Final = {k.value: k for k in Kind if not k.value.startswith("b/")}
_BROADCAST_KINDS: Final = {k.value: k for k in Kind if k.value.startswith("b/")}
_TAILS: Final = frozenset(kind.value.rpartition("/")[2] for kind in Kind)
_BLOB_KINDS: Final = (Kind.UP_BLOB, Kind.DOWN_BLOB)


@dataclass(frozen=True, slots=True)
class Route:
    """A parsed topic: ``fleet`` is a namespace; ``device`` is None on broadcasts.

    ``digest`` and ``index`` are set on chunks alone.
    """

    fleet: str
    kind: Kind
    device: str | None = None
    digest: str | None = None
    index: int | None = None


def _checked(value: str, what: str) -> str:
    if words := namespace_trouble(value) if what == "fleet" else name_trouble(value):
        raise ValueError(f"{what}: {words}")
    return value


def device_topic(
    fleet: str, device: str, kind: Kind, digest: str | None = None, index: int | None = None
) -> str:
    """The topic of one device; chunks also name their blob's digest and their index.

    Raises:
        ValueError: a name does not fit a topic level, ``kind`` is a broadcast, or digest and index are
            missing or superfluous.
    """
    if kind.value not in _DEVICE_KINDS:
        raise ValueError(f"{kind} is a broadcast topic")
    base = f"lichen/v1/{_checked(fleet, 'fleet')}/d/{_checked(device, 'device')}/{kind.value}"
    if kind not in _BLOB_KINDS:
        if digest is not None or index is not None:
            raise ValueError(f"{kind} names no blob")
        return base
    if digest is None or not _DIGEST.match(digest) or index is None or not 0 <= index < _MAX_CHUNK_INDEX:
        raise ValueError(
            f"{kind} needs a SHA-256 and an index below {_MAX_CHUNK_INDEX}: {digest!r}, {index!r}"
        )
    return f"{base}/{digest}-{index}"


def broadcast_topic(fleet: str, kind: Kind) -> str:
    """The coordinator's broadcast topic of a fleet.

    Raises:
        ValueError: the fleet's name does not fit a topic level, or ``kind`` belongs to a device.
    """
    if kind.value not in _BROADCAST_KINDS:
        raise ValueError(f"{kind} is a device topic")
    return f"lichen/v1/{_checked(fleet, 'fleet')}/{kind.value}"


def ping_topic(fleet: str, device: str | None = None) -> str:
    """The topic of a link's pings: the device's, or the coordinator's (``device`` None). Nobody subscribes.

    Raises:
        ValueError: a name does not fit a topic level.
    """
    if device is None:
        return f"lichen/v1/{_checked(fleet, 'fleet')}/b/ping"
    return device_topic(fleet, device, Kind.PING)


def device_filters(fleet: str, device: str, *, learns: bool = True) -> tuple[tuple[str, int], ...]:
    """Subscriptions of an agent, each with its QoS: without ``b/round``, 1 MB a day that only people read.

    Offers have QoS 0: the broker must not queue those of a day for each device that is away. A device that
    comes back gets the retained one.

    Args:
        fleet: its name.
        device: its name.
        learns: whether it needs offers.

    Raises:
        ValueError: a name does not fit a topic level.
    """
    own = f"lichen/v1/{_checked(fleet, 'fleet')}/d/{_checked(device, 'device')}/down/#"
    broadcasts = ((broadcast_topic(fleet, kind), 1) for kind in (Kind.TASK, Kind.FLEET_MODEL))
    offers = ((broadcast_topic(fleet, Kind.OFFER), 0),) if learns else ()
    return ((own, 1), *broadcasts, *offers)


def coordinator_filters(fleet: str) -> tuple[str, ...]:
    """Subscriptions of the coordinator."""
    return (f"lichen/v1/{_checked(fleet, 'fleet')}/d/+/up/#",)


def leader_filters(fleet: str) -> tuple[str, ...]:
    """Subscriptions of the process that leads, where others accept updates."""
    return (f"lichen/v1/{_checked(fleet, 'fleet')}/d/+/{Kind.STATE}",)


def ingest_filters(fleet: str, *, shared: bool) -> tuple[str, ...]:
    """Subscriptions of a process that accepts updates: all that devices send, but their retained states.

    Args:
        fleet: its name.
        shared: the broker gives each message to one of the processes (MQTT 5, 4.8.2).
    """
    group = f"$share/ingest-{_checked(fleet, 'fleet')}/" if shared else ""
    tails = (Kind.UPDATE, f"{Kind.UP_BLOB}/+", Kind.METRIC, Kind.LOG, Kind.FETCH)
    return tuple(f"{group}lichen/v1/{fleet}/d/+/{tail}" for tail in tails)


def parse(topic: str) -> Route:
    """Read a topic.

    Raises:
        Refused: it is not one of lichen's topics, or one of another release (UNKNOWN_KIND).
    """
    match topic.split("/"):
        case ["lichen", "v1", fleet, "d", device, way, what] if is_namespace(fleet) and is_name(device):
            kind = _DEVICE_KINDS.get(f"{way}/{what}")
            if kind is not None and kind not in _BLOB_KINDS:
                return Route(fleet, kind, device)
        case ["lichen", "v1", fleet, "d", device, "ping"] if is_namespace(fleet) and is_name(device):
            return Route(fleet, Kind.PING, device)
        case ["lichen", "v1", fleet, "d", device, way, "blob", chunk] if is_namespace(fleet) and is_name(
            device
        ):
            kind = _DEVICE_KINDS.get(f"{way}/blob")
            digest, _, index = chunk.partition("-")
            number = int(index) if _INDEX.match(index) else _MAX_CHUNK_INDEX
            if kind is not None and _DIGEST.match(digest) and number < _MAX_CHUNK_INDEX:
                return Route(fleet, kind, device, digest, number)
        case ["lichen", "v1", fleet, "b", what] if is_namespace(fleet):
            kind = _BROADCAST_KINDS.get(f"b/{what}")
            if kind is not None:
                return Route(fleet, kind)
        case _:
            pass
    if (words := _why_not(topic)) or not _NEWER.match(topic) or topic.rpartition("/")[2] in _TAILS:
        raise Refused(Reason.MALFORMED, f"topic {topic[:200]!r} is not one of lichen's{words}")
    raise Refused(Reason.UNKNOWN_KIND, f"topic {topic[:200]!r} is not one that this lichen knows")


def _why_not(topic: str) -> str:
    """The invalid names in a topic; empty if the names are valid."""
    match topic.split("/"):
        case ["lichen", "v1", fleet, "d", device, *_]:
            words = [namespace_trouble(fleet), name_trouble(device)]
        case ["lichen", "v1", fleet, "b", *_]:
            words = [namespace_trouble(fleet)]
        case _:
            words = []
    return "".join(f"; {trouble}" for trouble in words if trouble)
