"""What the device says about itself, and which task it has.

``up/state`` is retained: ``online`` at every connect, ``stopped`` on a clean exit, ``offline`` by the will.
It is sent when it changed, at most every ``state_every_s``. What matters to the coordinator (status, model,
roles, modalities, targets, the secret's print, why the task is refused or a pointer not followed, enough
windows to train, a quarter more windows) is sent then; small changes wait ``state_idle_s``. An idle device
with two modalities and seven classes sends about 700 bytes every 10 minutes: 101 KB a day; the link adds its
pings (docs/transport.md).
"""

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable
from importlib import metadata
from typing import TYPE_CHECKING, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.knowledge_graph.workspace import BROKEN
from edge_agent.ports import Publisher
from edge_agent.sources.base import Source
from edge_agent.tasks.config_warnings import doubts
from edge_agent.tasks.profile import strangers
from edge_agent.tasks.roles import roles_of, wishes
from edge_agent.tasks.task_store import TASK_FILE, check_task, kept_misfit, unused
from edge_agent.tasks.workspace import Standing, Workspace
from edge_agent.trust.work_verifier import WorkVerifier
from models.contract import Profile
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import MAX_WORDS, Metric, State, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import LABEL, Task
from protocol.topics import Kind, device_topic
from runtime.clock import Clock
from runtime.storage.files import write_atomic

if TYPE_CHECKING:
    from protocol.rollout import Hindrance, TrialReport

_log = structlog.get_logger("edge_agent.messaging.state_reporter")
_GROWTH: Final = 1.25
_TRIES: Final = 5
_MAX_WITHDRAWN: Final = 16
_TASKLESS_S: Final = 120.0
_TASKLESS_MOST_S: Final = 3600.0


def state_topic(settings: AgentSettings) -> str:
    """Where this device's state is."""
    return device_topic(settings.fleet, settings.device, Kind.STATE)


def offline(settings: AgentSettings) -> bytes:
    """The will."""
    return encode(State(status="offline", device=settings.device, roles=roles_of(settings), modalities={}))


@functools.cache
def _version() -> str:
    """Ours; to look it up reads files."""
    return metadata.version("lichen")


class Session:
    """Keeps task and state."""

    def __init__(
        self,
        settings: AgentSettings,
        sources: list[Source],
        link: Publisher,
        *,
        clock: Clock,
        workspace: Callable[[], Workspace | None],
        model_digest: Callable[[], str | None],
        reconnect: Callable[[str], None] = lambda _: None,
        verifier: WorkVerifier | None = None,
    ) -> None:
        self._verifier = verifier
        self._settings = settings
        self._sources = sources
        self._link = link
        self._clock = clock
        self._workspace = workspace
        self._model_digest = model_digest
        self._reconnect = reconnect
        self.trial: Callable[[], TrialReport | None] = lambda: None
        self.hindered: Callable[[], Hindrance | None] = lambda: None
        self.misfit = kept_misfit(settings.state_dir / TASK_FILE)
        """Why the task that was announced last cannot be done here, in words; empty where it can."""
        self._taskless = (clock.now(), _TASKLESS_S)
        self._sent: State | None = None
        self._sent_at = 0.0
        self._news = asyncio.Event()
        self._leaving = False
        self._withdrawn: deque[str] = deque(maxlen=_MAX_WITHDRAWN)
        self._one_at_a_time = asyncio.Lock()
        self.states_sent = 0

    async def on_task(self, announcement: TaskAnnouncement, use: Callable[[Task], Awaitable[None]]) -> bool:
        """A task is announced: check it, keep it, use it. True when it is another one than before.

        Raises:
            Refused: this device cannot do it, or it was damaged on the way; the one before stays.
        """
        work = self._workspace()
        try:
            task = announcement.read()
            if work is not None and work.task == task:
                if self.misfit:
                    self.misfit = ""
                    self.touch()
                return False
            check_task(task, self._sources, wishes(self._settings), self._settings.graph)
        except (Refused, Misconfigured) as error:
            if isinstance(error, Refused) and error.reason is Reason.MALFORMED:
                raise
            self.refuse_task(words := error.words if isinstance(error, Refused) else str(error))
            raise Refused(Reason.UNKNOWN_TASK, words) from None
        self.misfit = ""
        for words in unused(task, self._sources, self._settings.graph):
            _log.warning("not used here", why=words)
        doubtful = await asyncio.to_thread(doubts, task, self._sources)
        for words in [*doubtful, *strangers(task, self._settings.learn)]:
            _log.warning("this may be wrong", why=words)
        path = self._settings.state_dir / TASK_FILE
        try:
            await asyncio.to_thread(write_atomic, path, encode(announcement))
        except Transient as error:  # until the next start it is known all the same
            _log.error("the task could not be kept", why=str(error))
        await use(task)
        _log.info("task", name=task.name, method=task.method)
        self.touch()
        return True

    def refuse_task(self, words: str) -> None:
        """Say why the task that was announced last is not done here."""
        self.misfit = words
        self.touch()

    def touch(self) -> None:
        """Something may have changed."""
        self._news.set()

    def confirm_withdrawn(self, digest: str) -> None:
        """Tell the coordinator that the refusal of an update that had left the outbox has come."""
        if digest not in self._withdrawn:
            self._withdrawn.append(digest)
        self.send_soon()

    def send_soon(self) -> None:
        """The coordinator asks for the state."""
        self._sent = None
        self._news.set()

    def state(self) -> State:
        """What is true now."""
        settings, work = self._settings, self._workspace()
        now = Standing(Profile(()), 0, {}) if work is None else work.now()
        return State(
            status="online",
            device=settings.device,
            roles=roles_of(settings),
            modalities=dict(now.modalities),
            targets=None if now.profile.targets == (LABEL,) else now.profile.targets,
            windows=now.samples,
            model=self._model_digest(),
            chunk_bytes=self._link.chunk_bytes,
            version=_version(),
            fleet_secret=now.fleet_secret,
            refuses=_line(self.misfit) or None,
            trial=self.trial(),
            hindered=self.hindered(),
            distrusts=(_line(self._verifier.why) or None) if self._verifier is not None else None,
            withdrawn=tuple(self._withdrawn) or None,
            labels=settings.labels or None,
        )

    async def greet(self) -> None:
        """At every connect. Raises Transient."""
        await self._send(self.state())

    async def goodbye(self) -> None:
        """On a clean exit; the link is still up."""
        self._leaving = True
        if not self._link.connected:
            return
        state = self.state().model_copy(update={"status": "stopped"})
        try:
            async with self._one_at_a_time:  # an `online` that is on its way must not come after it
                await self._link.publish(
                    state_topic(self._settings), encode(state), retain=True, timeout_s=2.0
                )
        except Transient as error:
            _log.info("the goodbye was not sent", why=str(error))

    async def metric(self, round_: int | None, metrics: dict[str, float]) -> None:
        """Small numbers for people; not sent again when it fails."""
        message = Metric(device=self._settings.device, round=round_, metrics=metrics)
        try:
            topic = device_topic(self._settings.fleet, self._settings.device, Kind.METRIC)
            await self._link.publish(topic, encode(message))
        except (Transient, Refused) as error:
            _log.debug("metrics were not sent", why=str(error))

    async def run(self) -> None:
        """Send the state when it has changed enough."""
        while True:
            try:
                async with asyncio.timeout(self._settings.state_every_s):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            self._miss_task()
            if self._link.connected and self.is_due(state := self.state()):
                try:
                    await self._send(state)
                except (Transient, Refused) as error:
                    _log.debug("state not sent", why=str(error))
                    self._sent = None
            await self._clock.sleep(min(1.0, self._settings.state_every_s / _TRIES))

    def _miss_task(self) -> None:
        """The announced task is retained and comes once a connection: where it got lost, connect anew."""
        since, patience = self._taskless
        if self._workspace() is not None or self.misfit:
            self._taskless = self._clock.now(), _TASKLESS_S
        elif not self._link.connected:  # our own asking is no reason to ask more often
            self._taskless = self._clock.now(), patience
        elif self._clock.now() - since >= patience:
            self._taskless = self._clock.now(), min(_TASKLESS_MOST_S, 2 * patience)
            self._reconnect("no task came; the broker is asked once more")

    def is_due(self, state: State) -> bool:
        """Whether a state should be sent now."""
        before, age = self._sent, self._clock.now() - self._sent_at
        if before is None:
            return True
        if state == before:  # said again now and then: the coordinator may have lost it
            return age >= self._settings.state_idle_s
        work = self._workspace()
        enough = 0 if work is None else work.task.rounds.min_windows
        if before.windows < enough <= state.windows or before.model != state.model:
            return True
        if age < self._settings.state_every_s:
            return False
        grown = state.windows >= _GROWTH * max(1, before.windows)
        other = _kind(before) != _kind(state)
        return grown or other or age >= self._settings.state_idle_s

    async def _send(self, state: State) -> None:
        async with self._one_at_a_time:
            if self._leaving:
                return
            await self._link.publish(state_topic(self._settings), encode(state), retain=True)
        self._sent, self._sent_at = state, self._clock.now()
        self.states_sent += 1


def _kind(state: State) -> tuple[object, ...]:
    """What the coordinator should hear of soon when it changes."""
    broken = any(BROKEN in modality.reasons for modality in state.modalities.values())
    trial = None if state.trial is None else state.trial.model_copy(update={"measures": {}})
    known = state.targets, state.fleet_secret, state.refuses, state.labels, trial, state.hindered
    return set(state.modalities), known, state.distrusts, state.chunk_bytes, broken


def _line(words: str) -> str:
    """As one line of a state message: bounded, and without what a terminal would obey."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    return line if len(line) <= MAX_WORDS else f"{line[: MAX_WORDS - 3]}..."
