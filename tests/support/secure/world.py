"""The services of secure rounds of both daemons in one event loop, with files and chosen kills."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.aggregation.fold import UnusableUpdates, limits_for
from coordinator.aggregation.secure.attempt_file import AttemptFile
from coordinator.aggregation.secure.opening import SumOpener
from coordinator.aggregation.secure.reports import SecureReports
from coordinator.aggregation.secure.rounds import SecureRounds
from coordinator.round_machine.device_sets import DeviceSet
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.storage.update_journal import AcceptedUpdate
from edge_agent.config.agent import AgentSettings
from edge_agent.secure_aggregation.service import MaskingService
from models.aggregation.masked_sums import layout_of, vector_of
from models.contract import Blobs, Update
from models.privacy.clipping import within
from models.privacy.shared_noise import shared_noise
from models.registry import method
from protocol.errors import Refused
from protocol.frames.fixed_point import rounded
from protocol.frames.frame import digest, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Offer
from protocol.secure_aggregation.messages import SecureMessage as AnyMessage
from protocol.secure_aggregation.messages import decode, is_secure
from protocol.secure_aggregation.ring import Words
from protocol.tasks.folding import SecureAggregation
from protocol.tasks.task import Task
from protocol.topics import parse
from runtime.waits import StatusText
from tests.support.tasks import sensors, small_task, update_header

BASE = "ab" * 32
SALT = "cd" * 16
FLEET = "f"
OPTIONS = SecureAggregation(identities="none", min_devices=3)
TASK: Task = small_task(sensors(a=(1, 20.0)), "ab", method="fedavg", secure_aggregation=OPTIONS)
STATE: Blobs = {"head": {"head/w": np.zeros((3, 4), np.float32), "head/b": np.zeros(3, np.float32)}}
COORDINATOR = "coordinator"
SPEED = 50.0


class FastClock:
    """Real time, faster."""

    def now(self) -> float:
        """Seconds."""
        return asyncio.get_running_loop().time() * SPEED

    def wall(self) -> float:
        """The same."""
        return self.now()

    def synchronised(self) -> bool | None:
        """Not known."""
        return None

    async def sleep(self, seconds: float) -> None:
        """A part of it."""
        await asyncio.sleep(seconds / SPEED)


class WorldLink:
    """Brings a message to its receiver, in a task of its own."""

    connected, why, since, until, chunk_bytes = True, "", 0.0, None, 65536

    def __init__(self, world: "SecureWorld", sender: str) -> None:
        self._world, self._sender = world, sender

    async def publish(self, topic: str, payload: bytes, **_: Any) -> None:
        """Hand over."""
        self._world.hand_over(self._sender, parse(topic).device or "", payload)


class SecureWorld:
    """A coordinator and devices whose updates are ready.

    Args:
        folder: of all files.
        count: of devices.
        task: with secure rounds.
        reports: gets reports on attempts; None: nobody reads any.
    """

    def __init__(
        self, folder: Path, count: int = 4, task: Task = TASK, reports: SecureReports | None = None
    ) -> None:
        self.reports = reports
        self.folder, self.clock, self.task = folder, FastClock(), task
        self.options = task.secure_aggregation or OPTIONS
        self.names = [f"d{n}" for n in range(count)]
        self.server = method(TASK.method).server()
        self.updates = {name: self._update(n, name) for n, name in enumerate(self.names)}
        self.rounds = RoundState(
            phase=RoundPhase.COLLECTING,
            round=1,
            attempt=1,
            version=0,
            manifest=BASE,
            salt=SALT,
            selected=DeviceSet(self.names),
            invited=DeviceSet(self.names),
            until=1e7,
        )
        self.entries: dict[str, AcceptedUpdate] = {}
        self.lost: list[UnusableUpdates] = []
        self.refusals: list[str] = []
        self.seen: list[tuple[str, AnyMessage]] = []
        self.kill_at: Callable[[str, AnyMessage | None], str] = lambda _sender, _message: ""
        """Sender and message (None: a masked update to be stored) -> whom to kill instead of delivering."""
        self._tasks: dict[str, list[asyncio.Task[Any]]] = {}
        self._all: set[asyncio.Task[Any]] = set()

    def _update(self, seed: int, name: str) -> Update:
        rng = np.random.default_rng(seed)
        tensors = {key: rng.normal(0, 1, x.shape).astype(np.float32) for key, x in STATE["head"].items()}
        if self.task.privacy is not None:  # with room for the rounding
            tensors = within(tensors, 0.99 * self.task.privacy.clip)
        options = self.options
        on_grid = {key: rounded(x, options.fraction_bits, options.level) for key, x in tensors.items()}
        return Update(update_header(self.task, name), on_grid)

    def vector(self, name: str) -> Words:
        """Of a device's update."""
        fold = self.server.open(TASK, 1, STATE)
        fold.fold(self.updates[name])
        return vector_of(fold, layout_of(fold, noisy=self.task.privacy is not None), self.options)

    def plain(self, names: list[str]) -> dict[str, bytes]:
        """The version of a plain fold."""
        fold = self.server.open(TASK, 1, STATE)
        for name in names:
            fold.fold(self.updates[name])
        return as_bytes(fold.close())

    def start(self) -> None:
        """Start all."""
        self.start_coordinator()
        for name in self.names:
            self.start_device(name)

    def start_coordinator(self) -> None:
        """Make the service anew, from its files."""
        file = AttemptFile(self.folder / COORDINATOR, self.options, None)
        self.secure = SecureRounds(
            options=self.options,
            opener=SumOpener(self.task, self.options, self.server),
            file=file,
            rounds=lambda: self.rounds,
            task=TASK.name,
            fleet=FLEET,
            authority=None,
            link=WorldLink(self, COORDINATOR),  # type: ignore[arg-type]
            clock=self.clock,
            now=self.clock.now,
            noise=shared_noise(self.task),
            reports=self.reports,
        )
        self._tasks[COORDINATOR] = [self._task(self.secure.run(self._lose))]

    def start_device(self, name: str) -> None:
        """Make the service anew, from its files; it has trained again if its update is not accepted."""
        settings = AgentSettings.model_validate(
            {
                "fleet": FLEET,
                "device": name,
                "state_dir": self.folder / name,
                "outbox": {"resend_s": 1.0},
                "secure_aggregation": {"without_identities": True},
            }
        )
        learning = StatusText(self.clock, "")
        service = MaskingService(settings, WorldLink(self, name), self.clock, learning)  # type: ignore[arg-type]
        self.devices = {**getattr(self, "devices", {}), name: service}
        self._tasks[name] = [self._task(service.run())]
        if name not in self.entries:
            self._tasks[name].append(self._task(self._take_part(name, service)))

    async def _take_part(self, name: str, service: MaskingService) -> None:
        async def submit(frame: bytes, offer: Offer) -> None:
            del offer
            if victim := self.kill_at(name, None):
                self.kill(victim)
                if victim == name:
                    await asyncio.sleep(3600)  # it is dead
            header, tensors = open_frame(frame, UpdateHeader, limits_for(STATE, 1 << 20, self.task))
            await self.secure.ready()
            self.secure.check_update(STATE, header, tensors)
            path = self.folder / f"{name}.frame"
            path.write_bytes(frame)
            self.entries[name] = AcceptedUpdate(name, digest(frame), path)

        try:
            await service.take_part(self.offer(), self.task, self.vector(name), submit)
        except Refused as refused:
            self.refusals.append(refused.detail)

    def offer(self) -> Offer:
        """Of the open round."""
        return Offer(
            task=TASK.name,
            round=self.rounds.round,
            attempt=self.rounds.attempt,
            base=self.rounds.manifest,
            base_size=9,
            closes_in_s=60,
            salt=SALT,
        )

    def kill(self, victim: str) -> None:
        """End a service without a word, and start it again."""
        self.kill_at = lambda _sender, _message: ""
        for task in self._tasks[victim]:
            if task is not asyncio.current_task():
                task.cancel()
        if victim == COORDINATOR:
            self.start_coordinator()
        else:
            self.start_device(victim)

    def hand_over(self, sender: str, device: str, payload: bytes) -> None:
        """Deliver a message to the coordinator, or to a device."""
        assert is_secure(payload)
        message = decode(payload, AnyMessage)
        if victim := self.kill_at(sender, message):
            self.kill(victim)
            return
        self.seen.append((sender, message))
        self._task(self._deliver(sender, device, payload))

    async def _deliver(self, sender: str, device: str, payload: bytes) -> None:
        try:
            if sender == COORDINATOR:
                await self.devices[device].on_answer(parse_route(device), payload)
            else:
                await self.secure.on_message(sender, payload)
        except Refused as refused:
            self.refusals.append(refused.detail)

    async def _lose(self, _round: int, unusable: UnusableUpdates) -> None:
        self.lost.append(unusable)
        for name in unusable.lost:
            self.entries.pop(name, None)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait."""
        async with asyncio.timeout(30):
            while not true():  # noqa: ASYNC110 - a state of several services
                await asyncio.sleep(0.01)

    async def close_round(self) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """The round machine closes the round; the version and its devices. A killed fold is repeated."""
        self.rounds = self.rounds.model_copy(update={"phase": RoundPhase.AGGREGATING})
        entries, limits = list(self.entries.values()), limits_for(STATE, 1 << 20, self.task)
        while True:
            secure = self.secure
            fold = self._task(secure.fold(self.rounds.round, STATE, entries, limits))
            while not fold.done() and self.secure is secure:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            if self.secure is secure:
                made, devices = await fold
                return as_bytes(made), devices
            fold.cancel()

    async def close(self) -> None:
        """End all."""
        for task in self._all:
            task.cancel()
        await asyncio.gather(*self._all, return_exceptions=True)

    def _task(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._all.add(task)
        return task


def as_bytes(state: Blobs) -> dict[str, bytes]:
    """Tensors."""
    return {name: x.tobytes() for tensors in state.values() for name, x in tensors.items()}


def parse_route(device: str) -> Any:
    """Of a message to a device; the service does not read it."""
    return parse(f"lichen/v1/{FLEET}/d/{device}/down/receipt")
