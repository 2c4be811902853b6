"""A simulated MQTT broker: QoS 1, retained messages, wills, sessions, shared subscriptions, crashes.

It behaves as the brokers of ``tests/e2e`` (as Mosquitto if they differ). Each client comes through a
:class:`SimConnection` of ``link.py``; between the two stands a :class:`Wire` of ``connection.py``.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Final

from lichen_lab.simulation.deterministic.network.message_faults import MessageFaults
from lichen_lab.simulation.deterministic.network.session import (
    BrokerSession,
    Line,
    Loss,
    Packet,
    SavedState,
    matches,
    unshared,
)
from runtime.mqtt.connection import Will

Listener = Callable[[str, str, str, bytes], None]
"""Told of (what, client id, topic, payload). ``what``: published, delivered, acked, will, lost, or
:data:`BREACH` and which limit of CONNACK a client breaks."""
BREACH: Final = "breach: "
_MAX_TOPICS: Final = 4096


@dataclass(frozen=True, slots=True)
class _Route:
    """Who gets the messages of a topic: all of some sessions, and one of each group."""

    all: list[tuple[BrokerSession, int]]
    groups: list[tuple[str, list[tuple[BrokerSession, int]]]]


class SimBroker:
    """A broker on the running loop.

    Args:
        weather: message faults of all connections.
        max_queued: messages kept for a client that is away; more are lost, as at Mosquitto, whose default is
            1000.
        limits: sent at CONNACK, by MQTT's names: ``ReceiveMaximum``, ``MaximumPacketSize``.
        listener: see :data:`Listener`.
    """

    def __init__(
        self,
        weather: MessageFaults,
        *,
        max_queued: int = 1000,
        limits: Mapping[str, int] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.weather = weather
        self.max_queued = max_queued
        self.limits = dict(limits or {})
        self.up = True
        self.retained: dict[str, bytes] = {}
        self.sessions: dict[str, BrokerSession] = {}
        self.listener = listener
        self.blocked: dict[str, dict[str, float]] = {}
        """Client id -> direction (``up``, ``down``) -> until when nothing passes."""
        self._context = Context()  # the broker's callbacks belong to no life
        self._routes: dict[str, _Route] = {}
        self._turns: dict[str, int] = {}
        """Group -> messages that its members got so far."""
        self._saved = SavedState({}, {})

    def say(self, what: str, client_id: str, topic: str = "", payload: bytes = b"") -> None:
        """Call the listener."""
        if self.listener is not None:
            self.listener(what, client_id, topic, payload)

    def at(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """Call a function at a virtual time, in no life."""
        self.loop.call_at(when, callback, *args, context=self._context)

    def open(self, connection: Line, client_id: str, will: Will | None, *, expiry_s: float) -> None:
        """CONNECT came: take over an older connection of that id, answer, and send queued messages."""
        session = self.sessions.get(client_id)
        if session is not None and session.connection is not None:
            if not self.weather.will_at_takeover:
                session.will = None
            old = session.connection
            self.gone(old)
            old.refuse_further(Loss.CLOSED)
        if session is not None and self.loop.time() - session.left_at > session.expiry_s:
            del self.sessions[client_id]
            self._routes.clear()
            session = None
        present = session is not None
        if session is None:
            session = self.sessions[client_id] = BrokerSession(client_id)
        session.connection, session.will, session.expiry_s = connection, will, expiry_s
        connection.session = session
        connection.accept(present=present)
        self._pump(session)

    def subscribe(self, session: BrokerSession, filters: Sequence[tuple[str, int]]) -> None:
        """SUBSCRIBE came: retained messages follow, at every time."""
        wanted = session.filters | dict(filters)
        if session.filters != wanted:
            session.filters = wanted
            self._routes.clear()
        for topic in sorted(self.retained):
            granted = [qos for name, qos in filters if matches(name, topic)]
            if granted:
                self._give(session, Packet(topic, self.retained[topic], max(granted), retain=True))

    def publish(self, client_id: str, packet: Packet) -> None:
        """PUBLISH came: keep it if it is retained, and pass it to subscribers."""
        topic, payload = packet.topic, packet.payload
        self.say("published", client_id, topic, payload)
        if packet.retain:
            if payload:
                self.retained[topic] = payload
            else:
                self.retained.pop(topic, None)
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) > _MAX_TOPICS:
                self._routes.clear()
            route = self._routes[topic] = self._route(topic)
        for session, granted in (*route.all, *(self._member(*group) for group in route.groups)):
            if self.weather.strikes("lose", self.weather.lose):
                self.say("lost", session.client_id, topic, payload)
            else:
                self._give(session, Packet(topic, payload, min(packet.qos, granted)))

    def _route(self, topic: str) -> "_Route":
        everybody: list[tuple[BrokerSession, int]] = []
        groups: dict[str, list[tuple[BrokerSession, int]]] = {}
        for _, session in sorted(self.sessions.items()):
            granted: dict[str, int] = {}
            for name, qos in session.filters.items():
                group, pattern = unshared(name)
                if matches(pattern, topic):
                    granted[group] = max(qos, granted.get(group, 0))
            for group, qos in granted.items():
                (groups.setdefault(group, []) if group else everybody).append((session, qos))
        return _Route(everybody, list(groups.items()))

    def _member(self, group: str, members: list[tuple[BrokerSession, int]]) -> tuple[BrokerSession, int]:
        """The member of a shared subscription whose turn it is; one with a connection, if there is one."""
        self._turns[group] = turn = self._turns.get(group, 0) + 1
        there = [member for member in members if member[0].connection is not None] or members
        return there[turn % len(there)]

    def _give(self, session: BrokerSession, packet: Packet) -> None:
        if session.connection is None and packet.qos == 0:
            return
        if session.connection is None and len(session.queue) >= self.max_queued:
            self.say("lost", session.client_id, packet.topic, packet.payload)
            return
        session.queue.append(packet)
        self._pump(session)

    def _pump(self, session: BrokerSession) -> None:
        """Send as much as the client's Receive Maximum allows."""
        connection = session.connection
        while (
            connection is not None
            and session.queue
            and (self.weather.overruns or len(session.sent) < connection.receive_maximum)
        ):
            packet = session.queue.popleft()
            if packet.qos:
                session.sent.append(packet)
            connection.send_down(packet)

    def acknowledged(self, connection: Line, packet: Packet) -> None:
        """PUBACK came from a subscriber: the broker forgets the message."""
        session = connection.session
        if session is None or session.connection is not connection or packet not in session.sent:
            return
        session.sent.remove(packet)
        self.say("acked", session.client_id, packet.topic, packet.payload)
        self._pump(session)

    def gone(self, connection: Line, *, goodbye: bool = False) -> None:
        """A connection is over for the broker; without DISCONNECT its will is published."""
        session = connection.session
        if session is None or session.connection is not connection:
            return
        session.connection, session.left_at = None, self.loop.time()
        will, session.will = session.will, None
        session.requeue()
        if session.expiry_s == 0:
            del self.sessions[session.client_id]
            self._routes.clear()
        if will is not None and not goodbye:
            self.say("will", session.client_id, will.topic, will.payload)
            self.publish(session.client_id, Packet(will.topic, will.payload, will.qos, will.retain))

    def save(self) -> None:
        """As Mosquitto does every ``autosave_interval``: a crash with ``keep="saved"`` goes back to here."""
        self._saved = self._state()

    def crash(self, keep: str = "all") -> None:
        """Crash: every connection breaks, messages in flight are lost.

        Args:
            keep: ``all`` (persistence that syncs), ``saved`` (the state of the last :meth:`save`) or
                ``nothing`` (no persistence).
        """
        connections = [s.connection for _, s in sorted(self.sessions.items()) if s.connection is not None]
        for session in self.sessions.values():
            session.connection, session.will, session.left_at = None, None, self.loop.time()
            session.requeue()
        if keep != "all":
            saved = self._saved if keep == "saved" else SavedState({}, {})
            self.retained = dict(saved.retained)
            self.sessions = {name: session.copy() for name, session in saved.sessions.items()}
        self._routes.clear()
        self.up = False
        for connection in connections:
            connection.refuse_further(Loss.CLOSED)

    def restart(self) -> None:
        """Start again."""
        self.up = True

    def _state(self) -> SavedState:
        return SavedState(dict(self.retained), {n: s.copy() for n, s in self.sessions.items()})

    def connection_of(self, client_id: str) -> Line | None:
        """The connection that the broker has of a client."""
        session = self.sessions.get(client_id)
        return None if session is None else session.connection

    def cut(self, client_id: str) -> bool:
        """Break a client's connection; False if there is none."""
        connection = self.connection_of(client_id)
        if connection is None:
            return False
        connection.break_off()
        return True

    def partition(self, client_id: str, seconds: float, direction: str = "both") -> None:
        """Let nothing pass for a while; TCP holds it back, and a keepalive that runs out ends the connection.

        Args:
            client_id: whose link.
            seconds: how long.
            direction: ``up`` (from the client), ``down`` or ``both``.
        """
        until = self.loop.time() + seconds
        blocked = self.blocked.setdefault(client_id, {})
        for way in ("up", "down") if direction == "both" else (direction,):
            blocked[way] = max(until, blocked.get(way, 0.0))
        connection = self.connection_of(client_id)
        if connection is not None:
            connection.watch_keepalive(until)

    def half_open(self, client_id: str, *, pings_answered: bool = False) -> bool:
        """Silently pass no further message on this connection; False if there is none.

        Args:
            client_id: whose.
            pings_answered: MQTT's own pings are still answered.
        """
        connection = self.connection_of(client_id)
        if connection is not None:
            connection.go_deaf(pings_answered=pings_answered)
        return connection is not None

    def heal(self, client_id: str | None = None) -> None:
        """End the partitions of a client, or all."""
        if client_id is None:
            self.blocked.clear()
        else:
            self.blocked.pop(client_id, None)

    def queued(self) -> dict[str, int]:
        """Client id -> messages that wait for it, sent ones included."""
        return {name: len(s.queue) + len(s.sent) for name, s in self.sessions.items()}
