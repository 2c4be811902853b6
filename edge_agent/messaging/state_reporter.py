"""Sends the device's state.

``up/state`` is retained: ``online`` at every connect, ``stopped`` on a clean exit, ``offline`` by the will.
It is sent when it has changed, at most every ``state_every_s``. Changes that matter to the coordinator
(status, model, roles, modalities, targets, the secret's fingerprint, why the task is refused or a pointer not
followed, enough windows to train, a quarter more windows) are sent then; small ones wait ``state_idle_s``. An
idle device with two modalities and seven classes sends about 700 bytes every 10 minutes: 101 KB a day; the
link adds its pings (docs/transport.md).
"""

import asyncio
import functools
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata
from typing import Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.knowledge_graph.workspace import BROKEN
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.ports import RefusesBackbones, ReportsModels, TaskLink
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.tasks.roles import roles_of
from edge_agent.trust.work_verifier import WorkVerifier
from protocol.errors import Refused, Transient
from protocol.messages import MAX_WORDS, Command, Metric, State, encode
from protocol.tasks.task import LABEL
from protocol.topics import Kind, device_topic
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.mqtt.link import Will
from runtime.text import one_line

_log = structlog.get_logger(__name__)
_GROWTH: Final = 1.25
_TRIES: Final = 5
_TASKLESS_S: Final = 120.0
_TASKLESS_MOST_S: Final = 3600.0


def state_topic(settings: AgentSettings) -> str:
    """Topic of this device's state."""
    return device_topic(settings.fleet, settings.device, Kind.STATE)


def will(settings: AgentSettings) -> Will:
    """The state that the broker publishes when the connection is lost."""
    state = State(status="offline", device=settings.device, roles=roles_of(settings), modalities={})
    return Will(state_topic(settings), encode(state))


@functools.cache
def _version() -> str:
    """The installed version; cached, because the look-up reads files."""
    return metadata.version("lichen")


@dataclass(eq=False, repr=False)
class StateReporter:
    """Two services: the state, and the metrics of rounds.

    Args:
        settings: of the agent.
        link: to the coordinator.
        tasks: knows the task and its data.
        models: know the active model.
        verifier: knows why tasks and offers are not acted on.
        clock: paces it.
        withdrawn: digests of updates whose late refusal is confirmed in the state.
        changed: set by every part whose state is in the message.
        wanted: set if the state is to be sent although nothing has changed.
        metrics: of rounds, to be sent.
        backbones: know why the task's cannot be run.
    """

    settings: AgentSettings
    link: TaskLink
    tasks: CurrentTask
    models: ReportsModels
    verifier: WorkVerifier
    clock: Clock
    withdrawn: Collection[str]
    changed: Signal
    wanted: Signal
    metrics: RoundMetrics
    backbones: RefusesBackbones

    def __post_init__(self) -> None:
        self._taskless = (self.clock.now(), _TASKLESS_S)
        self._sent: State | None = None
        self._sent_at = 0.0
        self._leaving = False
        self._one_at_a_time = asyncio.Lock()
        self.states_sent = 0

    def state(self) -> State:
        """The present state."""
        settings, now, work = self.settings, self.tasks.readiness(), self.tasks.workspace
        return State(
            status="online",
            device=settings.device,
            roles=roles_of(settings, None if work is None else work.task),
            modalities=dict(now.modalities),
            targets=None if now.profile.targets == (LABEL,) else now.profile.targets,
            windows=now.samples,
            model=self.models.digest,
            chunk_bytes=self.link.chunk_bytes,
            version=_version(),
            fleet_secret=now.fleet_secret,
            refuses=one_line(self._refusal, MAX_WORDS) or None,
            trial=self.models.trial,
            hindered=self.models.blocked,
            distrusts=one_line(self.verifier.why, MAX_WORDS) or None,
            withdrawn=tuple(self.withdrawn) or None,
            labels=settings.labels or None,
        )

    @property
    def _refusal(self) -> str:
        tasks = self.tasks
        return tasks.task_mismatch or tasks.spent or self.backbones.refusal

    async def send_online(self) -> None:
        """Send the state, at every connect. Raises Transient."""
        await self._send(self.state())

    async def send_stopped(self) -> None:
        """Send ``stopped``, on a clean exit while the link is still up."""
        self._leaving = True
        if not self.link.connected:
            return
        state = self.state().model_copy(update={"status": "stopped"})
        try:
            async with self._one_at_a_time:  # an `online` that is being sent must not follow it
                await self.link.publish(state_topic(self.settings), encode(state), retain=True, timeout_s=2.0)
        except Transient as error:
            _log.info("stopped_not_sent", why=str(error))

    def on_request(self, _command: Command) -> None:
        """Send the state because the coordinator asks for it."""
        self.wanted.set()
        self.changed.set()

    async def run_metrics(self) -> None:
        """Send metrics of rounds for ever; a failed sending is not repeated."""
        topic = device_topic(self.settings.fleet, self.settings.device, Kind.METRIC)
        while True:
            round_, metrics = await self.metrics.take()
            try:
                message = Metric(device=self.settings.device, round=round_, metrics=metrics)
                await self.link.publish(topic, encode(message))
            except (Transient, Refused) as error:
                _log.debug("metrics_not_sent", why=str(error))

    async def run(self) -> None:
        """Send the state when it has changed enough."""
        while True:
            await self.changed.wait(self.settings.state_every_s)
            if self.wanted.is_set():
                self.wanted.clear()
                self._sent = None
            self._request_missing_task()
            if self.link.connected and self.is_due(state := self.state()):
                try:
                    await self._send(state)
                except (Transient, Refused) as error:
                    _log.debug("state_not_sent", why=str(error))
                    self._sent = None
            await self.clock.sleep(min(1.0, self.settings.state_every_s / _TRIES))

    def _request_missing_task(self) -> None:
        """The announced task is retained and comes once a connection: reconnect if it was lost."""
        since, patience = self._taskless
        if self.tasks.workspace is not None or self.tasks.task_mismatch:
            self._taskless = self.clock.now(), _TASKLESS_S
        elif not self.link.connected:  # perhaps by our own reconnect: keep the longer interval
            self._taskless = self.clock.now(), patience
        elif self.clock.now() - since >= patience:
            self._taskless = self.clock.now(), min(_TASKLESS_MOST_S, 2 * patience)
            self.link.reconnect("no task came; subscribing again for the retained one")

    def is_due(self, state: State) -> bool:
        """Whether a state should be sent now."""
        before, age = self._sent, self.clock.now() - self._sent_at
        if before is None:
            return True
        if state == before:  # repeated at intervals, because the coordinator may have lost it
            return age >= self.settings.state_idle_s
        work = self.tasks.workspace
        enough = 0 if work is None else work.task.rounds.min_windows
        if before.windows < enough <= state.windows or before.model != state.model:
            return True
        if age < self.settings.state_every_s:
            return False
        grown = state.windows >= _GROWTH * max(1, before.windows)
        other = _kind(before) != _kind(state)
        return grown or other or age >= self.settings.state_idle_s

    async def _send(self, state: State) -> None:
        async with self._one_at_a_time:
            if self._leaving:
                return
            await self.link.publish(state_topic(self.settings), encode(state), retain=True)
        self._sent, self._sent_at = state, self.clock.now()
        self.states_sent += 1


def _kind(state: State) -> tuple[object, ...]:
    """The fields whose change the coordinator should hear of soon."""
    broken = any(BROKEN in modality.reasons for modality in state.modalities.values())
    trial = None if state.trial is None else state.trial.model_copy(update={"measures": {}})
    known = state.targets, state.fleet_secret, state.refuses, state.labels, trial, state.hindered
    return set(state.modalities), known, state.roles, state.distrusts, state.chunk_bytes, broken
