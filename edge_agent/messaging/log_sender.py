"""Answers the coordinator's question for the last log lines (``up/log``), if the owner permits it."""

import asyncio
from typing import Any, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.secret_values import secrets_of
from edge_agent.ports import TaskLink
from protocol.errors import Refused, Transient
from protocol.log_lines import MAX_LINES, MAX_LOG_BYTES, LogLine, LogLines
from protocol.messages import Command, encode
from protocol.topics import Kind, device_topic
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.diagnosis.recent_lines import RecentLine, RecentLines
from runtime.diagnosis.redaction import redacted
from runtime.pacing import TokenBucket
from runtime.text import one_line
from runtime.waits import StatusPart

_log = structlog.get_logger(__name__)
BURST: Final = 3.0
PER_SECOND: Final = 0.1
"""Answers, after the first ones: whoever controls the coordinator cannot make a device talk all day."""
_LEAST_BYTES: Final = 1024
NOT_PERMITTED: Final = "its owner does not permit it: set send_logs = true in [diagnosis] of its agent.toml"
NONE_STORED: Final = "this agent stores no log lines"


class LogSender(StatusPart):
    """One service.

    Args:
        settings: of the agent.
        link: to the coordinator.
        recent: the last lines; None: none are stored.
        clock: paces the answers.
    """

    def __init__(
        self, settings: AgentSettings, link: TaskLink, recent: RecentLines | None, clock: Clock
    ) -> None:
        self._settings = settings
        self._link = link
        self._recent = recent
        self._clock = clock
        self._asked = Signal()
        self._rate = TokenBucket(BURST, PER_SECOND)
        self.answers = 0

    def on_request(self, _command: Command) -> None:
        """Answer soon; several questions get one answer."""
        self._asked.set()

    async def run(self) -> None:
        """Answer for ever; an answer that is lost is not repeated."""
        topic = device_topic(self._settings.fleet, self._settings.device, Kind.LOG)
        while True:
            await self._asked.wait()
            await self._clock.sleep(self._rate.wait_s(self._clock.now()))
            self._rate.take(self._clock.now())
            self._asked.clear()
            try:
                answer = await asyncio.to_thread(self.answer)
                _log.info("logs_asked_for", lines=len(answer.lines), refused=answer.refused)
                await self._link.publish(topic, encode(answer))
                self.answers += 1
            except (Transient, Refused) as error:
                _log.debug("logs_not_sent", why=str(error))

    def answer(self) -> LogLines:
        """The message: the newest lines without secrets, or why not. Reads files."""
        device = self._settings.device
        if not self._settings.diagnosis.send_logs:
            return LogLines(device=device, refused=NOT_PERMITTED)
        if self._recent is None:
            return LogLines(device=device, refused=NONE_STORED)
        lines, secrets = self._recent.newest(MAX_LOG_BYTES, MAX_LINES), secrets_of(self._settings)
        found = [line for line in (_sent(one, secrets) for one in lines) if line is not None]
        count = self._recent.count
        while True:
            message = LogLines(device=device, lines=tuple(found), earlier=max(0, count - len(found)))
            over = len(encode(message)) - MAX_LOG_BYTES
            if over <= 0 or not found:
                return message
            del found[: max(1, over // _LEAST_BYTES)]

    def status(self) -> dict[str, Any]:
        """Whether log lines may be asked for, and how often they were."""
        permitted = self._settings.diagnosis.send_logs
        return {"diagnosis": {"send_logs": permitted, "answers": self.answers}}


def _sent(line: RecentLine, secrets: set[str]) -> LogLine | None:
    """A line as it travels; None if it cannot."""
    text = "".join(c for c in one_line(redacted(line.text, secrets), 1000) if c.isprintable())
    try:
        return LogLine(at=max(0.0, line.at), level=line.level, text=text)
    except ValueError:  # a level that is no word, or a clock far off
        return None
