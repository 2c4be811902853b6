"""Broker and links of one simulation, and their faults."""

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, Final

from lichen_lab.simulation.deterministic.machine.node import Node
from lichen_lab.simulation.deterministic.network.broker import BREACH, SimBroker
from lichen_lab.simulation.deterministic.network.link import SimConnection
from lichen_lab.simulation.deterministic.network.message_faults import MessageFaults
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Violation
from lichen_lab.simulation.deterministic.scenario.scenario import FaultKind, Scenario, ScheduledFault
from protocol.frames.frame import is_frame
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings

_KEEP: Final = {FaultKind.BROKER_CRASH: "all", FaultKind.BROKER_LOSS: "nothing"}
_WAYS: Final = ("both", "up", "down")
_SHOWN: Final = 24
_TORN: Final = 0.3
"""Share of damaged frames that are cut; in the others bits flip."""


class FrameFaults(MessageFaults):
    """Any bits of a chunk (it has a digest) and of a frame (a checksum); else what breaks the form.

    A control message carries no checksum of its own: flipped bits that leave the form whole are TCP's and
    TLS's to find.
    """

    def damaged(self, payload: bytes) -> bytes:
        """The payload with bits flipped; see the base class."""
        if payload[:1] == b"{":
            at = self.random.randrange(len(payload))
            return payload[:at] + bytes([payload[at] | 0x80]) + payload[at + 1 :]
        if is_frame(payload) and self.random.random() < _TORN:
            return payload[: self.random.randrange(3, len(payload))]
        return super().damaged(payload)


class SimNetwork:
    """MessageFaults, broker and links.

    Args:
        scenario: of the simulation.
        say: writes a line of the trace.
        fail: ends the simulation with a broken promise.
    """

    def __init__(
        self, scenario: Scenario, say: Callable[[str], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._say = say
        self._fail = fail
        plan = scenario.weather
        self.weather = FrameFaults(
            seed=scenario.seed,
            delay_s=plan.delay_s,
            duplicate=plan.duplicate,
            reorder=plan.reorder,
            corrupt=plan.corrupt,
            lose=plan.lose,
            cut=plan.cut,
            slow=plan.slow,
        )
        told = {"ReceiveMaximum": scenario.receive_maximum, "MaximumPacketSize": scenario.max_packet_bytes}
        limits = {name: limit for name, limit in told.items() if limit is not None}
        self.broker = SimBroker(self.weather, limits=limits, listener=self._heard)
        self.messages = 0
        self._ids: dict[str, str] = {}
        """Client id by node."""

    def link_maker(self, node: Node) -> Callable[..., Any]:
        """Makes the links of a node, as the constructor of ``runtime.mqtt.link.Link``."""

        def make(settings: MqttSettings, client_id: str, **rest: Any) -> Link:
            self._ids[node.name] = client_id
            connect = partial(SimConnection, broker=self.broker)
            return Link(settings, client_id, connect=connect, clock=node.clock, **rest)

        return make

    def _heard(self, what: str, client_id: str, topic: str, payload: bytes) -> None:
        if what == "delivered":
            self.messages += 1
        elif what.startswith(BREACH):
            self._fail(Violation(f"{client_id} sent on {topic} what the broker does not take: {what}"))
        tail = topic.split("/", 3)[-1]
        self._say(f"{what} {client_id.rsplit('-', 1)[-1]} {tail[:_SHOWN]} {len(payload)}")

    def strike(self, fault: ScheduledFault) -> bool:
        """Carry out a fault of the broker or of a link; False if it had no effect."""
        broker = self.broker
        if fault.kind in _KEEP:
            if not broker.up:
                return False
            broker.crash(_KEEP[fault.kind])
            broker.loop.call_later(fault.span_s, broker.restart, context=Context())
            return True
        client = self._ids.get(fault.node, "")
        if fault.kind is FaultKind.DROP:
            return broker.cut(client)
        if fault.kind is FaultKind.HALF_OPEN:
            return broker.half_open(client, pings_answered=True)
        if fault.kind in {FaultKind.PARTITION, FaultKind.ONE_WAY} and client:
            way = "both" if fault.kind is FaultKind.PARTITION else _WAYS[1 + int(fault.amount) % 2]
            broker.partition(client, fault.span_s, way)
            return True
        return False

    def silence(self, node: str, seconds: float) -> None:
        """A process is stopped for so long: nothing passes, and its keepalive may run out."""
        self.broker.partition(self._ids.get(node, ""), seconds)

    def clear(self) -> None:
        """End all faults: messages arrive once and whole, all links work, the broker runs."""
        self.weather.calm()
        self.broker.heal()
        self.broker.restart()
