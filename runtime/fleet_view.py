"""The state of a fleet as the broker has it, from the retained messages of devices and rounds.

``FleetView`` is pure: ``apply(topic, payload)``. The demo's screen, its report and ``lichen status`` use it.
"""

from dataclasses import dataclass, field
from typing import Final

from protocol import messages
from protocol.base import Wire
from protocol.errors import Refused
from protocol.messages import (
    Metric,
    ModalityState,
    ModelPointer,
    Receipt,
    RoundAnnouncement,
    State,
)
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic, parse
from runtime.text import one_line

_DONE: Final = {"trial": "is being loaded", "rolled_back": "was rolled back", "refused": "was refused"}
_UNJUDGED: Final = frozenset({"initialising", "aggregating", "evaluating"})


class _Nothing(Wire):
    """No message is one."""


_CARRIES: Final[dict[Kind, type[Wire]]] = {
    Kind.STATE: State,
    Kind.METRIC: Metric,
    Kind.TASK: TaskAnnouncement,
    Kind.ROUND: RoundAnnouncement,
    Kind.FLEET_MODEL: ModelPointer,
    Kind.RECEIPT: Receipt,
}


@dataclass
class DeviceView:
    """The last report of a device."""

    name: str
    status: str = "unknown"
    windows: int | None = None
    """Windows in its store to learn from; None if only its absence is known."""
    modalities: dict[str, ModalityState] = field(default_factory=dict)
    model: str | None = None
    fleet_secret: str | None = None
    """The fingerprint of its secret for entity names."""
    refuses: str | None = None
    """Why it does not do the announced task."""
    no_model: str | None = None
    """Why a device that should infer runs no model, in its own words; empty if it gives no reason; None: it
    runs one, or should not."""
    round: int | None = None
    """The last round in which it has measured its own model."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundMark:
    """An evaluated version: its metrics, and the payload bytes until then."""

    round: int
    metrics: dict[str, float]
    bytes_up: int
    bytes_down: int


@dataclass
class FleetView:
    """A fleet's state according to the broker."""

    fleet: str
    task: Task | None = None
    round: RoundAnnouncement | None = None
    model: ModelPointer | None = None
    devices: dict[str, DeviceView] = field(default_factory=dict)
    history: dict[int, RoundMark] = field(default_factory=dict)
    """Version -> the first announcement of it with metrics."""
    receipts: dict[int, set[str]] = field(default_factory=dict)
    """Round -> the devices whose update has a receipt (announcements may skip the last ones)."""
    heard: bool = False
    """Whether the coordinator sent something while we listened, besides retained messages."""
    selected: dict[int, frozenset[str]] = field(default_factory=dict)
    """Round -> all devices that were ever selected in it (a restarted coordinator may select others)."""
    refused: int = 0
    """Messages that could not be read."""

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS. Wildcards over retained messages use QoS 0."""
        root = f"lichen/v1/{self.fleet}"
        return (
            (broadcast_topic(self.fleet, Kind.TASK), 1),
            (broadcast_topic(self.fleet, Kind.ROUND), 1),
            (broadcast_topic(self.fleet, Kind.FLEET_MODEL), 1),
            (f"{root}/d/+/up/state", 0),
            (f"{root}/d/+/up/metric", 0),
            (f"{root}/d/+/down/receipt", 0),
        )

    def apply(self, topic: str, payload: bytes) -> bool:
        """Apply one message; True if the state changed. Unreadable messages are counted."""
        try:
            route = parse(topic)
            # The other topics carry nothing for observers.
            message = messages.decode(payload, _CARRIES.get(route.kind, _Nothing))
        except Refused:
            self.refused += 1
            return False
        if route.device is not None and isinstance(message, State | Metric):
            self._device(route.device, message)
        elif route.device is not None and isinstance(message, Receipt):
            if message.status == "accepted":
                self.receipts.setdefault(message.round, set()).add(route.device)
        elif isinstance(message, TaskAnnouncement):
            return self._task(message)
        elif isinstance(message, ModelPointer):
            self.model = message
        elif isinstance(message, RoundAnnouncement):
            self._round(message)
        return True

    def _task(self, message: TaskAnnouncement) -> bool:
        try:
            self.task = message.read()
        except Refused:  # from a newer lichen
            self.refused += 1
            return False
        return True

    def _device(self, name: str, message: State | Metric) -> None:
        device = self.devices.setdefault(name, DeviceView(name))
        if isinstance(message, Metric):
            device.metrics = {**device.metrics, **message.metrics}
            if message.round is not None:
                device.round = message.round
            return
        device.status = message.status
        # A will says nothing else; a farewell repeats the last state.
        if message.status != "offline":
            device.windows = message.windows
            device.modalities = dict(message.modalities) or device.modalities
            device.model = message.model
            device.fleet_secret, device.refuses = message.fleet_secret, message.refuses
            device.no_model = _no_model(message)

    def _round(self, message: RoundAnnouncement) -> None:
        self.round = message
        asked = self.selected.get(message.round, frozenset())
        self.selected[message.round] = asked | frozenset(message.selected)
        # While a new version is made and evaluated, the metrics are still those of an older one.
        if message.metrics and message.phase not in _UNJUDGED:
            self.history.setdefault(
                message.version,
                RoundMark(message.version, dict(message.metrics), message.bytes_up, message.bytes_down),
            )

    def delivered(self) -> frozenset[str]:
        """Devices whose update of the current round was accepted."""
        if self.round is None:
            return frozenset()
        return frozenset(self.round.accepted) | self.receipts.get(self.round.round, set())

    def accuracy(self) -> float | None:
        """The newest announced accuracy."""
        for number in sorted(self.history, reverse=True):
            if "accuracy" in self.history[number].metrics:
                return self.history[number].metrics["accuracy"]
        return None


def _no_model(state: State) -> str | None:
    """See :attr:`DeviceView.no_model`."""
    hindered, trial = state.hindered, state.trial
    if state.model is not None or (hindered is None and "observe" not in state.roles):
        return None
    if hindered is not None:
        version = "" if hindered.version is None else f"version {hindered.version} is not here yet: "
        return one_line(f"{version}{hindered.why}")
    if trial is None or trial.phase == "committed":
        return ""
    return one_line(f"version {trial.version} {_DONE[trial.phase]}{f': {trial.why}' if trial.why else ''}")
