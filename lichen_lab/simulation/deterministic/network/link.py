"""The connection under ``runtime.mqtt.link.Link`` in a simulated world: a wire to the simulated broker."""

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Final

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from lichen_lab.simulation.deterministic.machine.process_life import LIFE
from lichen_lab.simulation.deterministic.network.broker import SimBroker
from lichen_lab.simulation.deterministic.network.connection import SimulatedConnection
from lichen_lab.simulation.deterministic.network.session import Loss, Packet
from protocol.errors import Transient
from runtime.mqtt.connection import AckOrder, Arrival, ConnectOptions, Events, fail, no_ack, succeed
from runtime.mqtt.errors import ConnectFailed, dial_words
from runtime.settings.load import MqttSettings

_CONNACK: Final = ReasonCode(PacketTypes.CONNACK, "Success")
_PUBACK: Final = ReasonCode(PacketTypes.PUBACK, "Success")
_GRANTED: Final = tuple(ReasonCode(PacketTypes.SUBACK, f"Granted QoS {qos}") for qos in (0, 1))


class SimConnection:
    """One connection of the life that opens it; it ends with that life.

    ``functools.partial(SimConnection, broker=broker)`` is a ``runtime.mqtt.connection.Connect``.

    Args:
        settings: keepalive, waits.
        identity: client id and will.
        receive_maximum: ours.
        events: is told what happens.
        broker: where to.
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: ConnectOptions,
        receive_maximum: int,
        events: Events,
        *,
        broker: SimBroker,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._events = events
        self._broker = broker
        self._order = AckOrder()
        self._mids = itertools.count(1)
        self._wire = SimulatedConnection(
            broker,
            self,
            identity.client_id,
            receive_maximum=receive_maximum,
            keepalive_s=settings.keepalive_s,
        )
        self.closed_by_peer = False
        self.dead = False
        self._life = LIFE.get()
        if self._life is not None:
            self._life.on_end.append(self._vanish)

    def dial(self) -> asyncio.Future[None]:
        """Begin to connect: two hops, or longer if nothing answers."""
        broker = self._broker
        dialled: asyncio.Future[None] = broker.loop.create_future()
        now, limit = broker.loop.time(), self._settings.connect_timeout_s
        there = max(now + 2 * broker.weather.takes(), self._wire.blocked_until())
        broker.at(min(there, now + limit), self._dialled, dialled, there > now + limit)
        return dialled

    def _dialled(self, dialled: asyncio.Future[None], late: bool) -> None:  # noqa: FBT001 - a callback
        if late or not self._broker.up:
            error = TimeoutError() if late else ConnectionRefusedError()
            fail(dialled, ConnectFailed(dial_words(self._settings, error)))
        elif self._wire.open:
            self._wire.connect(self._identity.will, self._settings.session_expiry_s)
            succeed(dialled)

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> int:
        """Send a packet; returns its id.

        Raises:
            Transient: the connection is over.
        """
        if not self._wire.open:
            raise Transient(f"{topic} was not published: the connection is over")
        if self._life is not None:
            self._life.moment(f"publish {topic}")
        mid = next(self._mids)
        self._wire.send_up(Packet(topic, payload, qos, retain), mid)
        return mid

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> int:
        """Send SUBSCRIBE; returns its id.

        Raises:
            ConnectFailed: the connection is over.
        """
        if not self._wire.open:
            raise ConnectFailed(f"the connection to the broker at {self._settings.where} ended at once")
        mid = next(self._mids)
        self._wire.subscribe(filters, mid)
        return mid

    async def close(self) -> None:
        """Send DISCONNECT if possible; a dead process sends nothing."""
        self._order.closed = True
        self._wire.say_goodbye()
        if self._life is not None and not self._life.dead:
            self._life.on_end.remove(self._vanish)

    def _vanish(self, _: str) -> None:
        """The process is gone, without DISCONNECT."""
        self._wire.vanish(power=self._life is not None and self._life.power)

    def accepted(self, *, present: bool) -> None:
        """CONNACK came."""
        self._events.connected(present, _CONNACK, SimpleNamespace(**self._broker.limits))

    def acknowledged(self, mid: int) -> None:
        """PUBACK came."""
        self._events.acknowledged(mid, _PUBACK)

    def subscribed(self, mid: int, granted: Sequence[int]) -> None:
        """SUBACK came."""
        self._events.subscribed(mid, [_GRANTED[qos] for qos in granted])

    def arrived(self, packet: Packet) -> None:
        """A message came."""
        topic, payload, weather = packet.topic, packet.payload, self._broker.weather
        if weather.strikes("corrupt", weather.corrupt):
            payload = weather.damaged(payload)
        self._broker.say("delivered", self._identity.client_id, topic, payload)
        acknowledge = self._order.expect(partial(self._wire.acknowledge, packet)) if packet.qos else no_ack
        size = len(payload) + len(topic) + 5
        self._events.arrived(Arrival(topic, payload, packet.retain, packet.qos, size, acknowledge))

    def lost(self, how: Loss) -> None:
        """The connection is over."""
        words, self.closed_by_peer = how.value
        if how is Loss.UNHEARD:
            self.dead = True
        else:
            self._events.lost(False, ReasonCode(PacketTypes.DISCONNECT, words))
