"""Hands each message to the handler of its kind, and acknowledges it after it was handled."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from edge_agent.messaging.contact import Contact
from edge_agent.ports import TaskLink
from protocol.errors import Reason, Refused, Transient
from protocol.messages import Command, decode
from protocol.topics import Kind, Route, parse
from runtime.clock import Clock
from runtime.logs import LineRateLimiter
from runtime.mqtt.link import Message
from runtime.process.daemon import Progress
from runtime.waits import StatusPart

_log = structlog.get_logger(__name__)
_MAY_BE_EMPTY: Final = frozenset({Kind.MODEL, Kind.FLEET_MODEL, Kind.OFFER, Kind.TASK})
"""Handlers of these kinds also get an empty payload: the topic's message was deleted."""
Handler = Callable[[Route, bytes], Awaitable[None]]


@dataclass(eq=False, repr=False)
class MessageDispatcher(StatusPart):
    """One service.

    Args:
        link: source of the messages.
        handlers: by kind of message; other kinds are ignored.
        contact: noted at each message that is not retained.
        refused: counts refusals by reason.
        progress: each message counts as a piece of work.
        clock: paces the log.
    """

    link: TaskLink
    handlers: Mapping[Kind, Handler]
    contact: Contact
    refused: Counter[str]
    """Refused messages, by reason."""
    progress: Progress
    clock: Clock

    def __post_init__(self) -> None:
        self._sparing = LineRateLimiter(self.clock.now)

    async def run(self) -> None:
        """Handle messages for ever."""
        async for message in self.link.messages():
            with self.progress.work("a message"):
                await self._take(message)
            message.ack()

    async def _take(self, message: Message) -> None:
        try:
            await self.handle(message)
        except Refused as error:
            self.refused[error.reason] += 1
            if error.reason is Reason.UNKNOWN_KIND:
                _log.debug("message_refused", topic=message.topic, why=str(error))
            else:
                self._warn("message_refused", message.topic, error)
        except Transient as error:  # the peer resends what matters
            self._warn("message_not_handled", message.topic, error)

    def _warn(self, event: str, topic: str, error: Exception) -> None:
        if (unsaid := self._sparing.unsaid()) is not None:
            _log.warning(event, topic=topic, why=str(error), **unsaid)

    async def handle(self, message: Message) -> None:
        """Hand one message to its handler.

        Raises:
            Refused: it is for another device, or malformed.
            Transient: the disk is full.
        """
        route = parse(message.topic)
        if not message.retain:
            self.contact.note_heard()
        if not message.payload and message.retain and route.kind not in _MAY_BE_EMPTY:
            return  # the retained message was deleted
        handler = self.handlers.get(route.kind)
        if handler is None:
            _log.debug("message_ignored", topic=route.kind)
        else:
            await handler(route, message.payload)

    def status(self) -> dict[str, Any]:
        """Counts of refused messages."""
        return {"refused_messages": self.refused}


def commands(known: Mapping[str, Callable[[Command], None]]) -> Handler:
    """The handler of commands, by command name."""

    async def handle(_route: Route, payload: bytes) -> None:
        command = decode(payload, Command)
        if command.command not in known:
            raise Refused(Reason.UNKNOWN_KIND, f"command {command.command!r} is unknown to this lichen")
        known[command.command](command)

    return handle
