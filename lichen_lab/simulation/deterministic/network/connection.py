"""One simulated connection between a client and the broker: two ordered pipes, and how they break.

The two ends may disagree for a while: after a power cut the broker still believes in the connection, until a
keepalive runs out or the client comes back.
"""

import math
from typing import TYPE_CHECKING, Final, Protocol

from lichen_lab.simulation.deterministic.network.session import Packet, Session

if TYPE_CHECKING:
    import asyncio

    from lichen_lab.simulation.deterministic.network.broker import SimBroker


_AFTER_S: Final = 1e-3
"""What was held back comes so long after the end of a partition."""


class Client(Protocol):
    """The client's end of a connection."""

    def arrived(self, connection: "Connection", packet: Packet) -> None:
        """A message came."""

    def ended(self, connection: "Connection", because: str) -> None:
        """The connection is over."""


class Connection:
    """See the module.

    Args:
        broker: at the other end.
        client: at this end.
        client_id: who.
        receive_maximum: messages that the client takes without acknowledgement.
        keepalive_s: as in CONNECT.
        patience_s: after so many silent seconds the client gives the connection up.
    """

    def __init__(
        self,
        broker: "SimBroker",
        client: Client,
        client_id: str,
        *,
        receive_maximum: int,
        keepalive_s: float,
        patience_s: float,
    ) -> None:
        self._broker = broker
        self._client = client
        self.client_id = client_id
        self.receive_maximum = receive_maximum
        self.keepalive_s = keepalive_s
        self.patience_s = patience_s
        self.session: Session | None = None
        self.open = True
        """As the client sees it."""
        self._last_up = self._last_down = 0.0
        self._deaf = False

    def up_at(self) -> float:
        """When something that the client sends now is at the broker."""
        when, in_order = self._hop("up")
        if in_order:
            when = self._last_up = max(self._last_up, when)
        return when

    def down_at(self) -> float:
        """When something that the broker sends now is at the client."""
        when, in_order = self._hop("down")
        if in_order:
            when = self._last_down = max(self._last_down, when)
        return when

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

    def send_up(self, packet: Packet, puback: "asyncio.Future[None]") -> None:
        """PUBLISH from the client; ``puback`` ends when it comes back (QoS 0: at once)."""
        weather = self._broker.weather
        if weather.strikes("cut", weather.cut):
            self.break_off("the connection was reset")
            return
        if weather.strikes("corrupt", weather.corrupt):
            packet = Packet(packet.topic, weather.damaged(packet.payload), packet.qos, packet.retain)
        if packet.qos == 0:
            _done(puback)
        self._broker.at(self.up_at(), self._at_broker, packet, puback)

    def _at_broker(self, packet: Packet, puback: "asyncio.Future[None]") -> None:
        broker, weather = self._broker, self._broker.weather
        if self._deaf or not self.known:
            return
        for _ in range(1 + (packet.qos > 0 and weather.strikes("duplicate", weather.duplicate))):
            broker.publish(self.client_id, packet)
        if packet.qos:
            broker.at(self.down_at(), self._puback, puback)

    def _puback(self, puback: "asyncio.Future[None]") -> None:
        if self.open and not self._deaf:
            _done(puback)

    def send_down(self, packet: Packet) -> None:
        """PUBLISH to the client."""
        weather = self._broker.weather
        if weather.strikes("cut", weather.cut):
            self._broker.at(self._broker.loop.time(), self.break_off, "the connection was reset")
            return
        for _ in range(1 + (packet.qos > 0 and weather.strikes("duplicate", weather.duplicate))):
            self._broker.at(self.down_at(), self._at_client, packet)

    def _at_client(self, packet: Packet) -> None:
        if self.open and not self._deaf:
            self._client.arrived(self, packet)

    def acknowledge(self, packet: Packet) -> None:
        """PUBACK from the client."""
        if self.open and packet.qos and not self._deaf:
            self._broker.at(self.up_at(), self._broker.acknowledged, self, packet)

    def break_off(self, because: str) -> None:
        """Both ends see at once that it is over."""
        self._end(because)
        self._broker.gone(self)

    def refuse_further(self, because: str) -> None:
        """The broker has ended it; the client hears of it after a hop."""
        self._broker.at(self._broker.loop.time() + self._broker.weather.takes(), self._end, because)

    def say_goodbye(self) -> None:
        """DISCONNECT from the client: no will."""
        if not self.open:
            return
        self.open = False
        if not self._deaf:
            self._broker.at(self.up_at(), self._goodbye)

    def _goodbye(self) -> None:
        self._broker.gone(self, goodbye=True)

    def vanish(self, *, power: bool) -> None:
        """The client's process is gone. Killed: its system closes the socket. Power cut: nobody tells."""
        if not self.open:
            return
        self.open = False
        broker = self._broker
        after = 1.5 * self.keepalive_s if power else broker.weather.takes()
        broker.at(broker.loop.time() + after, broker.gone, self)

    def watch_keepalive(self, blocked_until: float) -> None:
        """Nothing passes from now on until then: should an end lose its patience before, it gives up."""
        broker, now = self._broker, self._broker.loop.time()
        ends = ((1.5 * self.keepalive_s, self._broker_waits), (self.patience_s, self._client_waits))
        for after, look in ends:
            if blocked_until > now + after:
                broker.at(now + after, look)

    def go_deaf(self) -> None:
        """From now on nothing passes, and nobody says so; both ends give up in their time."""
        self._deaf = True
        self.watch_keepalive(math.inf)

    def _blocked(self, *ways: str) -> bool:
        now, blocked = self._broker.loop.time(), self._broker.blocked.get(self.client_id, {})
        return self._deaf or any(blocked.get(way, 0.0) > now for way in ways)

    def _broker_waits(self) -> None:
        if self._blocked("up"):
            self._broker.gone(self)

    def _client_waits(self) -> None:
        if self._blocked("up", "down"):
            self._end("no answer to a ping")

    def _end(self, because: str) -> None:
        if self.open:
            self.open = False
            self._client.ended(self, because)


def _done(puback: "asyncio.Future[None]") -> None:
    if not puback.done():
        puback.set_result(None)
