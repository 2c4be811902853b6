"""Where each message goes. It is acknowledged after it was handled."""

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from pydantic_core import from_json

from protocol.errors import Reason, Refused, Transient
from protocol.messages import Command, ModelPointer, Offer, Receipt, Want, decode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from protocol.topics import Kind, parse
from runtime.clock import Clock
from runtime.log_rate_limit import Sparing
from runtime.mqtt.link import Message

if TYPE_CHECKING:
    from edge_agent.agent import Agent

_log = structlog.get_logger("edge_agent")
_POINTERS: Final = frozenset({Kind.MODEL, Kind.FLEET_MODEL})


class Router:
    """One service.

    Args:
        agent: whose parts are given the messages.
        clock: stamps what is heard.
    """

    def __init__(self, agent: "Agent", clock: Clock) -> None:
        self._agent = agent
        self._clock = clock
        self.heard: float | None = None
        """When something came from the coordinator, unix seconds; what the broker retained tells nothing."""
        self.refused: dict[str, int] = {}
        """Messages that were refused, by reason."""
        self._sparing = Sparing(clock.now)

    async def run(self) -> None:
        """Handle what comes, for ever."""
        agent = self._agent
        async for message in agent.link.messages():
            with agent.progress.work("a message"):
                await self._take(message)
            message.ack()

    async def _take(self, message: Message) -> None:
        try:
            await self.handle(message)
        except Refused as error:
            self.refused[error.reason] = self.refused.get(error.reason, 0) + 1
            if error.reason is Reason.UNKNOWN_KIND:
                _log.debug("a message was refused", topic=message.topic, why=str(error))
            else:
                self._warn("a message was refused", message.topic, error)
        except Transient as error:  # the peer sends again what matters
            self._warn("a message could not be handled", message.topic, error)

    def _warn(self, event: str, topic: str, error: Exception) -> None:
        if (unsaid := self._sparing.unsaid()) is not None:
            _log.warning(event, topic=topic, why=str(error), **unsaid)

    async def handle(self, message: Message) -> None:
        """Give one message to whom it concerns.

        Raises:
            Refused: it is not for us, or malformed.
            Transient: the disk is full.
        """
        route = parse(message.topic)
        if not message.retain:
            self.heard = self._clock.wall()
        if not message.payload and (message.retain or route.kind in _POINTERS):
            self._cleared(route.kind)
            return
        match route.kind:
            case Kind.DOWN_BLOB:
                self._agent.fetcher.on_chunk(route.digest or "", route.index or 0, message.payload)
            case Kind.RECEIPT:
                await self._on_receipt(message.payload)
            case Kind.OFFER:
                await self._verified(decode(message.payload, Offer))
            case Kind.TASK:
                await self._on_task(message.payload)
            case Kind.MODEL | Kind.FLEET_MODEL:
                pointer = decode(message.payload, ModelPointer)
                self._agent.deployment.offer(pointer, own=route.kind is Kind.MODEL)
            case Kind.CMD:
                self._on_command(decode(message.payload, Command))
            case _:
                _log.debug("nothing to do", topic=route.kind)

    def _cleared(self, kind: Kind) -> None:
        """A retained topic says nothing any more."""
        if kind in _POINTERS:
            self._agent.deployment.cleared(own=kind is Kind.MODEL)

    async def _on_receipt(self, payload: bytes) -> None:
        answer = decode(payload, Receipt, Want)
        if isinstance(answer, Want):
            self._agent.outbox.on_want(answer)
        elif isinstance(answer, Receipt):
            # The ledger first: cut off in between, the update is sent once more and not trained once more.
            waiting = await asyncio.to_thread(self._agent.spool.pending)
            if any(entry.digest == answer.digest for entry in waiting):
                await asyncio.to_thread(self._agent.learner.settled, answer)
            if not await self._agent.outbox.on_receipt(answer) and answer.status == "refused":
                await self._on_withdrawn(answer)

    async def _on_withdrawn(self, receipt: Receipt) -> None:
        """Refused after it had left the spool: accepted before, as far as the ledger knows it."""
        agent = self._agent
        if await asyncio.to_thread(agent.learner.withdrawn, receipt):
            agent.outbox.on_withdrawn(receipt)
        agent.session.confirm_withdrawn(receipt.digest)

    async def _on_task(self, payload: bytes) -> None:
        try:
            announcement = decode(payload, TaskAnnouncement)
        except Refused as error:
            if _is_json(payload):  # of a newer release; what is no JSON was damaged on the way
                self._agent.session.refuse_task(error.words)
            raise
        await self._verified(announcement)

    async def _verified(self, work: TaskAnnouncement | Offer) -> None:
        """Act on it; with a root, :meth:`run_verified` does so after its signature was verified."""
        if self._agent.verifier.active:
            self._agent.verifier.give(work)
        else:
            await self._act_on(work)

    async def run_verified(self) -> None:
        """Act on tasks and offers that were verified, for ever."""
        while True:
            try:
                await self._act_on(await self._agent.verifier.next())
            except Refused as error:
                self.refused[error.reason] = self.refused.get(error.reason, 0) + 1
            except Transient as error:
                _log.warning("a task or an offer waits", why=str(error))
            self._agent.session.touch()

    async def _act_on(self, work: TaskAnnouncement | Offer) -> None:
        if isinstance(work, Offer):
            self._agent.learner.offer(work)
            return
        announcement = work
        if await self._agent.session.on_task(announcement, self._use):
            self._agent.deployment.task_changed()

    async def _use(self, task: Task) -> None:
        """Another task than before: what is trained for that one is of no use."""
        self._agent.learner.cancel()
        await self._agent.use(task)

    def _on_command(self, command: Command) -> None:
        if command.command == "no_such_blob" and command.digest is not None:
            self._agent.fetcher.on_no_such_blob(command.digest)
        elif command.command == "send_state":
            self._agent.session.send_soon()
        elif command.command != "no_such_blob":
            raise Refused(Reason.UNKNOWN_KIND, f"command {command.command!r} is unknown to this lichen")


def _is_json(payload: bytes) -> bool:
    try:
        from_json(payload)
    except ValueError:
        return False
    return True
