"""The MQTT link: one stable client id, always connected or connecting, for asyncio (docs/transport.md).

Guarantees: a missing broker is no error; every wait is bounded; a publish returns at PUBACK or raises;
nothing is sent again from memory; a message is acknowledged only after the consumer handled it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final

import structlog

from protocol.errors import Misconfigured, Refused, Transient
from runtime.clock import Clock, SystemClock
from runtime.mqtt.backoff import Backoff, Ending
from runtime.mqtt.connection import Connect, ConnectOptions, Will
from runtime.mqtt.errors import ConnectFailed
from runtime.mqtt.inbox import Inbox, Message
from runtime.mqtt.paho_connection import PahoConnection
from runtime.mqtt.running_link import OnConnect, WillNow
from runtime.mqtt.session import TOPIC_ROOM, LinkCounters, Session
from runtime.mqtt.tls import TlsContexts, tls_context
from runtime.settings.load import MqttSettings

__all__ = ["Link", "LinkCounters", "Message", "OnConnect", "Will", "WillNow", "tls_context"]

_log = structlog.get_logger(__name__)
_MOST_FILTERS: Final = 8
"""Of one SUBSCRIBE: AWS IoT Core takes no more."""


class Link:
    """A connection to the broker that reconnects by itself.

    Args:
        settings: address, credentials and limits.
        client_id: stable; the broker's session has this name.
        filters: (topic filter, QoS 0 or 1); subscribed at every connect.
        ping_topic: topic of the pings that check whether the broker answers (``ping_s``); None: keepalive
            alone.
        max_queued: bound of the inbound queue, sent to MQTT 5 brokers as our Receive Maximum.
        spare_bytes: room for brokers that exceed it (:class:`runtime.mqtt.inbox.Inbox`). If that is full,
            too, a message is dropped without acknowledgement, counted and logged; for QoS 1 the link
            reconnects once there is room, so that the broker delivers it again.
        connect: makes the connection of each session.
        clock: default: the machine's.
    """

    def __init__(
        self,
        settings: MqttSettings,
        client_id: str,
        *,
        filters: Sequence[tuple[str, int]],
        ping_topic: str | None = None,
        max_queued: int = 256,
        spare_bytes: int = 32 * 1024 * 1024,
        connect: Connect = PahoConnection,
        clock: Clock | None = None,
    ) -> None:
        if any(qos not in (0, 1) for _, qos in filters):
            raise ValueError("filters take QoS 0 or 1")
        self._settings = settings
        self._client_id = client_id
        self._filters = tuple(filters)
        self._ping_topic = ping_topic
        self._clock = clock or SystemClock()
        self._inbox = Inbox(max_queued, spare_bytes)
        self._session: Session | None = None
        self._up = asyncio.Event()
        self._stop = asyncio.Event()
        self._reported = ""
        self._was_up = False
        self._dropped_said = 0
        self._random = random.Random()  # noqa: S311 - jitter
        self.counters = LinkCounters()
        self._new_session = partial(
            Session,
            settings,
            inbox=self._inbox,
            counters=self.counters,
            connect=connect,
            clock=self._clock,
        )
        self.why = "not started"
        """The current state in words; for ``status``."""
        self._began = self._clock.now()
        self.until: float | None = None
        """The time of the next attempt, Unix seconds; None while it is connected or trying."""

    @property
    def connected(self) -> bool:
        """True from the SUBACKs to the end of the connection."""
        return self._up.is_set()

    @property
    def resumed(self) -> bool:
        """Whether the broker still had our session: messages that were on their way still come."""
        return self._session is not None and self._session.session_present

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that fits into a packet: the setting, or what the broker's limit leaves."""
        limit = self._settings.max_packet_bytes if self._session is None else self._session.max_packet_bytes
        return max(1024, min(self._settings.chunk_bytes, limit - TOPIC_ROOM))

    async def wait_connected(self) -> None:
        """Return once connected; bound it with ``asyncio.timeout``."""
        await self._up.wait()

    def messages(self) -> AsyncIterator[Message]:
        """Incoming messages in order, without end; one consumer, which acknowledges every message."""
        return self._inbox.stream()

    async def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, timeout_s: float = 30.0
    ) -> None:
        """Send and return at PUBACK. A PUBACK is not a receipt (docs/protocol/README.md).

        Raises:
            Refused: TOO_LARGE, above the packet limit.
            Transient: not connected, the connection ended, or no PUBACK in ``timeout_s``.
        """
        session = self._session
        if session is None or not self.connected:
            raise Transient(f"{topic} was not published: {self.why}")
        await session.publish(topic, payload, qos=qos, retain=retain, timeout_s=timeout_s)

    async def subscribe_again(self, filters: Sequence[tuple[str, int]]) -> None:
        """Repeat some subscriptions: the broker sends their retained messages once more.

        Raises:
            Transient: the connection ended, or no SUBACK came.
        """
        if self._session is not None and self.connected:
            await self._session.subscribe(filters)

    def reconnect(self, because: str) -> None:
        """End the connection, if there is one; the next one reads the TLS files again."""
        if self._session is not None:
            self._session.end(because)

    async def close(self) -> None:
        """Make :meth:`run` disconnect in order and return."""
        self._stop.set()
        if self._session is not None:
            self._session.end("closed")

    async def run(self, *, on_connect: OnConnect | None = None, will: WillNow | None = None) -> None:
        """Stay connected until cancelled (or :meth:`close`); then disconnect in order.

        Args:
            on_connect: awaited after every connect and its SUBACKs (birth messages). After a ``Transient``
                the link reconnects; a ``Refused`` is logged.
            will: published by the broker if the connection breaks; a callable is called at each connect.

        Raises:
            Misconfigured: a password or TLS file is missing or wrong.
        """
        password = read_password(self._settings)
        trust = TlsContexts(self._settings)
        trust.context()  # an error in the files is reported before anything else
        backoff = Backoff(self._settings, self._random)
        while not self._stop.is_set():
            last_words = will() if callable(will) else will
            identity = ConnectOptions(
                self._client_id, last_words, self._settings.username, password, trust.context()
            )
            session = self._new_session(identity)
            started = self._clock.now()
            patient = False
            try:
                await self._live(session, on_connect)
            except ConnectFailed as error:
                session.end(str(error))
                patient = error.patient
            finally:
                self._up.clear()
                self._session = None
                await session.close()
            if self._stop.is_set():
                break
            lasted_s, in_order = self._clock.now() - started, session.closed_by_peer
            wait = backoff.after(
                Ending(session.was_open, lasted_s, session.taken_over, in_order, patient=patient)
            )
            guess = "" if session.taken_over or not session.was_open else backoff.suspicion
            words = session.ended_because + guess.format(id=repr(self._client_id))
            await self._pause(trust.alert or words, wait)
        self._report("info", "disconnected", f"disconnected from {self._settings.where}")

    async def _live(self, session: Session, on_connect: OnConnect | None) -> None:
        """One connection, from dialling to its end."""
        if not self._reported:
            self.why = f"connecting to {self._settings.where}"
        await session.open()
        if session.session_present:
            self._inbox.forget_repeated()
        for first in range(0, len(self._filters), _MOST_FILTERS):
            for words in await session.subscribe(self._filters[first : first + _MOST_FILTERS]):
                _log.error(
                    "subscription_refused",
                    broker=self._settings.where,
                    why=words,
                    detail="check its access list",
                )
        self._session = session
        self._up.set()
        self.counters.reconnects += self._was_up
        self._was_up = True
        self._report("info", "connected", f"connected to {self._settings.where}")
        greeting = asyncio.ensure_future(_greet(session, on_connect))
        try:
            while not await session.wait_ended():
                if greeting.done():
                    greeting.result()
                self._look(session)
                self._say_dropped()
                self._ask_again(session)
        finally:
            greeting.cancel()
            await asyncio.wait([greeting])
        if not greeting.cancelled():
            greeting.result()

    def _look(self, session: Session) -> None:
        quiet = session.look(self._ping_topic)
        self.why = f"connected to {self._settings.where}" + (f", but {quiet}" if quiet else "")

    def _say_dropped(self) -> None:
        new = self.counters.dropped - self._dropped_said
        if new:
            self._dropped_said += new
            _log.warning("messages_dropped", count=new, limit=self._inbox.limit)

    def _ask_again(self, session: Session) -> None:
        if session.withheld and len(self._inbox) <= self._inbox.limit // 2:
            session.end(f"{session.withheld} messages had no room; the broker is asked to deliver them again")

    async def _pause(self, because: str, wait: float) -> None:
        self._report("warning", "not_connected", because)
        _log.debug("reconnect_pending", in_s=round(wait, 2))
        self.until = self._clock.wall() + wait
        try:
            async with asyncio.timeout(wait):
                await self._stop.wait()
        except TimeoutError:
            pass
        self.until = None

    @property
    def since(self) -> float:
        """Since when :attr:`why` holds, in Unix seconds by the clock's present setting."""
        return self._clock.wall() - (self._clock.now() - self._began)

    def _report(self, level: str, event: str, words: str) -> None:
        """Log a change of state once, however many attempts repeat it."""
        self.why = words
        if words != self._reported:
            self._reported = words
            self._began = self._clock.now()
            getattr(_log, level)(event, why=words, client_id=self._client_id)


async def _greet(session: Session, on_connect: OnConnect | None) -> None:
    if on_connect is None:
        return
    try:
        await on_connect()
    except Refused as error:
        _log.error("greeting_refused", error=str(error))
    except Transient as error:
        session.end(f"the greeting failed: {error}")


def read_password(settings: MqttSettings) -> str | None:
    """The first line of ``mqtt.password_file``, or None.

    Raises:
        Misconfigured: the file cannot be read.
    """
    file = settings.password_file
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"mqtt.password_file: {file}: {error}") from None
    return lines[0] if lines else ""
