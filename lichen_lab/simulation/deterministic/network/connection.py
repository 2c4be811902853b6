"""One simulated connection between a client and the broker: two ordered pipes, and how they break.

The two ends may disagree for a while: after a power cut the broker still believes in the connection, until a
keepalive runs out or the client comes back.
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol

from lichen_lab.simulation.deterministic.network.broker import BREACH, SimBroker
from lichen_lab.simulation.deterministic.network.session import BrokerSession, Loss, Packet
from runtime.mqtt.connection import Will
from runtime.mqtt.session import packet_bytes

_AFTER_S: Final = 1e-3
"""Delay of held messages after the end of a partition."""
_BREAKS: Final = (Loss.RESET, Loss.RESET, Loss.CLOSED, Loss.UNHEARD)


class ClientEnd(Protocol):
    """The client's end of a connection."""

    def accepted(self, *, present: bool) -> None:
        """CONNACK came."""

    def acknowledged(self, mid: int) -> None:
        """PUBACK came (QoS 0: the packet is sent)."""

    def subscribed(self, mid: int, granted: Sequence[int]) -> None:
        """SUBACK came, with the QoS of each filter."""

    def arrived(self, packet: Packet) -> None:
        """A message came."""

    def lost(self, how: Loss) -> None:
        """The connection is over."""


class SimulatedConnection:
    """See the module.

    Args:
        broker: at the other end.
        client: at this end.
        client_id: who.
        receive_maximum: messages that the client takes without acknowledgement.
        keepalive_s: as in CONNECT.
    """

    def __init__(
        self,
        broker: SimBroker,
        client: ClientEnd,
        client_id: str,
        *,
        receive_maximum: int,
        keepalive_s: float,
    ) -> None:
        self._broker = broker
        self._client = client
        self.client_id = client_id
        self.receive_maximum = receive_maximum
        self.keepalive_s = keepalive_s
        self.session: BrokerSession | None = None
        self.open = True
        """As the client sees it."""
        self._last_up = self._last_down = self._connack_at = 0.0
        self._unacked = 0
        self._deaf = False

    def blocked_until(self) -> float:
        """Time at which both directions pass again."""
        return max(self._broker.blocked.get(self.client_id, {}).values(), default=0.0)

    def _up_at(self) -> float:
        """Time of arrival at the broker of what the client sends now."""
        when, in_order = self._hop("up")
        if in_order:
            when = self._last_up = max(self._last_up, when)
        return when

    def _down_at(self) -> float:
        """Time of arrival at the client of what the broker sends now: never before CONNACK."""
        when, in_order = self._hop("down")
        if in_order:
            when = self._last_down = max(self._last_down, when)
        return max(when, self._connack_at)

    def _hop(self, way: str) -> tuple[float, bool]:
        broker, weather = self._broker, self._broker.weather
        when = broker.loop.time() + weather.takes()
        if broker.blocked:
            when = max(when, broker.blocked.get(self.client_id, {}).get(way, 0.0) + _AFTER_S)
        return when, not weather.strikes("reorder", weather.reorder)

    @property
    def known(self) -> bool:
        """Whether the broker believes in this connection."""
        return self.session is not None and self.session.connection is self

    def _passes(self) -> bool:
        """Whether the broker takes packets of the client."""
        return self.known and not self._deaf

    def _heard(self) -> bool:
        """Whether the client takes packets of the broker."""
        return self.open and not self._deaf

    def _cut(self) -> bool:
        """Whether message faults break the connection now."""
        weather = self._broker.weather
        cut = weather.strikes("cut", weather.cut)
        if cut:
            self._broker.at(self._broker.loop.time(), self.break_off)
        return cut

    def connect(self, will: Will | None, expiry_s: float) -> None:
        """CONNECT from the client."""
        if not self._cut():
            self._broker.at(self._up_at(), self._connect, will, expiry_s)

    def _connect(self, will: Will | None, expiry_s: float) -> None:
        if self.open and self._broker.up:
            self._broker.open(self, self.client_id, will, expiry_s=expiry_s)
        else:
            self.refuse_further(Loss.RESET)

    def accept(self, *, present: bool) -> None:
        """CONNACK to the client."""
        self._connack_at = self._down_at()
        self._broker.at(self._connack_at, self._accepted, present)

    def _accepted(self, present: bool) -> None:  # noqa: FBT001 - a callback
        if self._heard():
            self._client.accepted(present=present)

    def subscribe(self, filters: Sequence[tuple[str, int]], mid: int) -> None:
        """SUBSCRIBE from the client."""
        if not self._cut():
            self._broker.at(self._up_at(), self._subscribe, filters, mid)

    def _subscribe(self, filters: Sequence[tuple[str, int]], mid: int) -> None:
        if self._passes() and self.session is not None:
            self._broker.at(self._down_at(), self._subscribed, mid, [qos for _, qos in filters])
            self._broker.subscribe(self.session, filters)

    def _subscribed(self, mid: int, granted: Sequence[int]) -> None:
        if self._heard():
            self._client.subscribed(mid, granted)

    def send_up(self, packet: Packet, mid: int) -> None:
        """PUBLISH from the client; its end hears of PUBACK (QoS 0: at once)."""
        broker, weather = self._broker, self._broker.weather
        self._check(packet)
        if self._cut():
            return
        if weather.strikes("corrupt", weather.corrupt):
            packet = Packet(packet.topic, weather.damaged(packet.payload), packet.qos, packet.retain)
        if packet.qos == 0:
            broker.at(broker.loop.time(), self._puback, mid, 0)
        self._unacked += packet.qos
        broker.at(self._up_at(), self._at_broker, packet, mid)

    def _check(self, packet: Packet) -> None:
        """Whether the client keeps to the limits of CONNACK."""
        broker, unacked = self._broker, self._unacked + packet.qos
        size = packet_bytes(packet.topic, len(packet.payload), packet.qos, mqtt5=True)
        for limit, used in (("MaximumPacketSize", size), ("ReceiveMaximum", unacked)):
            if used > (most := broker.limits.get(limit, used)):
                broker.say(f"{BREACH}{limit} is {most}, this is {used}", self.client_id, packet.topic)

    def _at_broker(self, packet: Packet, mid: int) -> None:
        broker, weather = self._broker, self._broker.weather
        if not self._passes():
            return
        for _ in range(1 + (packet.qos > 0 and weather.strikes("duplicate", weather.duplicate))):
            broker.publish(self.client_id, packet)
        if packet.qos:
            broker.at(self._down_at(), self._puback, mid, 1)

    def _puback(self, mid: int, qos: int) -> None:
        if self._heard():
            self._unacked -= qos
            self._client.acknowledged(mid)

    def send_down(self, packet: Packet) -> None:
        """PUBLISH to the client."""
        weather = self._broker.weather
        if self._cut():
            return
        for _ in range(1 + (packet.qos > 0 and weather.strikes("duplicate", weather.duplicate))):
            self._broker.at(self._down_at(), self._at_client, packet)

    def _at_client(self, packet: Packet) -> None:
        if self._heard():
            self._client.arrived(packet)

    def acknowledge(self, packet: Packet) -> None:
        """PUBACK from the client."""
        if self._heard():
            self._broker.at(self._up_at(), self._broker.acknowledged, self, packet)

    def break_off(self, how: Loss | None = None) -> None:
        """Both ends notice the end at once; None: drawn how."""
        self._end(self._broker.weather.random.choice(_BREAKS) if how is None else how)
        self._broker.gone(self)

    def refuse_further(self, how: Loss) -> None:
        """The broker has ended it; the client hears of it after a hop."""
        self._broker.at(self._broker.loop.time() + self._broker.weather.takes(), self._end, how)

    def say_goodbye(self) -> None:
        """DISCONNECT from the client: no will."""
        if not self.open:
            return
        self.open = False
        if not self._deaf:
            self._broker.at(self._up_at(), self._goodbye)

    def _goodbye(self) -> None:
        self._broker.gone(self, goodbye=True)

    def vanish(self, *, power: bool) -> None:
        """The client's process is gone. Killed: its system closes the socket. Power cut: silence."""
        if not self.open:
            return
        self.open = False
        broker = self._broker
        after = 1.5 * self.keepalive_s if power else broker.weather.takes()
        broker.at(broker.loop.time() + after, broker.gone, self)

    def watch_keepalive(self, blocked_until: float, *, pings_answered: bool = False) -> None:
        """Nothing passes until then: an end whose keepalive runs out before gives up.

        A client sends PINGREQ after a silent ``keepalive_s``, and waits as long for PINGRESP.
        """
        broker, now = self._broker, self._broker.loop.time()
        ends = [(1.5 * self.keepalive_s, self._broker_waits)]
        if not pings_answered:
            ends.append((2 * self.keepalive_s, self._client_waits))
        for after, look in ends:
            if blocked_until > now + after:
                broker.at(now + after, look)

    def go_deaf(self, *, pings_answered: bool) -> None:
        """From now on no message passes, silently; the ends give up after their timeouts."""
        self._deaf = True
        self.watch_keepalive(math.inf, pings_answered=pings_answered)

    def _blocked(self, *ways: str) -> bool:
        now, blocked = self._broker.loop.time(), self._broker.blocked.get(self.client_id, {})
        return self._deaf or any(blocked.get(way, 0.0) > now for way in ways)

    def _broker_waits(self) -> None:
        if self._blocked("up"):
            self._broker.gone(self)

    def _client_waits(self) -> None:
        if self._blocked("up", "down"):
            self._end(Loss.NO_PINGRESP)

    def _end(self, how: Loss) -> None:
        if self.open:
            self.open = False
            self._client.lost(how)
