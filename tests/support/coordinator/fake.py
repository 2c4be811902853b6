"""A tiny method in NumPy, jobs without child processes, scripted devices: for tests of the coordinator."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import numpy as np

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.workers.jobs import ExportedBundle, ExportLineage
from models.aggregation.exact_sums import FixedPointSum
from models.contract import Blobs, Evaluation, Update
from models.partials import FoldParts
from models.tensors import apply, check_names, check_tensor, flatten, shapes, unflatten
from protocol import messages
from protocol.errors import LichenError, Transient
from protocol.frames.frame import digest, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobPointer, BlobRef, ModalityState, Offer, Receipt, State, Want
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task
from protocol.topics import Kind, broadcast_topic, device_filters, device_topic, parse
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings

FLEET = "test"


def tiny_task(**rounds: object) -> Task:
    return Task(
        name="tiny",
        method="tiny",
        labels=("a", "b"),
        modalities=(
            Modality(name="acc", channels=3, rate_hz=10),
            Modality(name="gyro", channels=3, rate_hz=10),
        ),
        rounds=Rounds(**({"count": 2, "deadline_s": 20.0, "min_windows": 1} | rounds)),
    )


ANYBODY = {"released_at": lambda _device: None, "known": lambda _device: True}
"""For a quarantine: every device is known, and none was approved."""


def settings_for(root: Path, port: int, **changes: object) -> CoordinatorSettings:
    quick = {"backoff_min_s": 0.05, "backoff_max_s": 0.3}
    given = {
        "fleet": FLEET,
        "state_dir": root / "coordinator",
        "task": root / "task.toml",
        "mqtt": {"port": port, **quick},
        "log": {"level": "warning", "format": "json"},
        "offer_every_s": 0.5,
        "spread_s": 0.0,
        "exit_linger_s": 0.0,
    }
    return CoordinatorSettings.model_validate(given | changes)


class TinyFold:
    def __init__(self, state: Blobs) -> None:
        self._state = state
        self._sum = FixedPointSum(shapes(flatten(state)))

    def fold(self, update: Update) -> None:
        self._sum.add(update.tensors, update.header.weight)

    def merge(self, other: "TinyFold") -> None:
        self._sum.merge(other._sum)

    def parts(self) -> FoldParts:
        return {"sum": self._sum}

    def close(self) -> Blobs:
        return unflatten(apply(flatten(self._state), self._sum.mean()))


class TinyServer:
    def route(self, _task: Task, _modalities: Iterable[str]) -> tuple[str, ...]:
        return ("head",)

    def check(self, _task: Task, state: Blobs, update: Update) -> None:
        model = flatten(state)
        check_names(update.tensors, model, "update")
        for name, tensor in update.tensors.items():
            check_tensor(name, tensor, model[name].shape, 1e3)

    def open(self, _task: Task, _round: int, state: Blobs) -> TinyFold:
        return TinyFold(state)


class TinyJobs:
    """``size`` elements of zeros; accuracy is the mean of the model."""

    def __init__(self, size: int = 64, fail: Iterable[str] = ()) -> None:
        self.size = size
        self.fail = set(fail)
        self.done: list[str] = []

    def _say(self, what: str) -> None:
        self.done.append(what)
        if what in self.fail:
            raise Transient(f"{what} was told to fail")

    async def initial(self) -> Blobs:
        self._say("initial")
        return {"head": {"head/w": np.zeros(self.size, np.float32)}}

    async def evaluate(self, state: Blobs) -> Evaluation:
        self._say("evaluate")
        metrics = {"accuracy": float(state["head"]["head/w"].mean()), "side/accuracy": 0.5}
        ann = {"accuracy": 0.5, "macro_f1": 0.75, "windows": 2.0}
        return Evaluation(metrics, [[1, 0], [0, 1]], {"group": {"ann": ann}})

    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        self._say("export")
        return ExportedBundle(
            b"bundle" + str(lineage.version).encode() + state["head"]["head/w"].tobytes(), {}
        )

    async def features(self) -> dict[str, bytes]:
        self._say("features")
        return {"acc": b"graph of acc", "gyro": b"graph of gyro"}

    async def close(self) -> None:
        self.done.append("close")


def header(device: str, round_: int, base: str, **changes: object) -> UpdateHeader:
    given = {
        "task": "tiny",
        "method": "tiny",
        "device": device,
        "round": round_,
        "base": base,
        "samples": 3,
        "counts": {"acc": (2, 1)},
        "missing": {"acc": 0.25, "gyro": 1.0},
        "quality": {"acc": 0.5},
    }
    return UpdateHeader.model_validate(given | changes)


def frame(
    head: UpdateHeader, value: float = 1.0, size: int = 64, tensors: Mapping[str, np.ndarray] | None = None
) -> bytes:
    named = {"head/w": np.full(size, value, np.float32)} if tensors is None else tensors
    return encode_frame(head, {name: encode(tensor, Codec.FLOAT32) for name, tensor in named.items()})


class FakeDevice:
    """An agent without learning: sends ``value`` for every offer, again until it has a receipt.

    Args:
        chunk_bytes: larger updates are sent as a pointer and chunks.
        mute: accepts offers and sends nothing.
        session: with another name, the broker finds no earlier session, and sends its retained messages.
        fleet: or the namespace of a further task.
    """

    def __init__(
        self,
        port: int,
        name: str,
        *,
        value: float = 1.0,
        size: int = 64,
        chunk_bytes: int = 65536,
        mute: bool = False,
        roles: tuple[str, ...] = ("train",),
        sensors: tuple[str, ...] = ("acc",),
        session: str = "",
        protocol: str = "5",
        fleet: str = FLEET,
    ) -> None:
        self.name = name
        self.fleet = fleet
        self.value = value
        self.size = size
        self.mute = mute
        self.roles = roles
        self.sensors = sensors
        self.chunk_bytes = chunk_bytes
        self.offers: list[Offer] = []
        self.receipts: list[Receipt] = []
        self.pointers: list[messages.ModelPointer] = []
        self.rounds: list[messages.RoundAnnouncement] = []
        self.tasks: list[TaskAnnouncement] = []
        self.commands: list[messages.Command] = []
        self.chunks: dict[tuple[str, int], bytes] = {}
        self.sent: dict[str, bytes] = {}
        self.heard = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        settings = MqttSettings(port=port, protocol=protocol, backoff_min_s=0.05, backoff_max_s=0.3)
        # an agent does not receive rounds; tests do
        filters = [*device_filters(fleet, name), (broadcast_topic(fleet, Kind.ROUND), 1)]
        self.link = Link(settings, f"agent-{fleet}-{name}{session}", filters=filters)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(job()) for job in (self._connected, self._listen, self._resend)]
        async with asyncio.timeout(15):
            await self.link.wait_connected()
        return self

    async def _connected(self) -> None:
        await self.link.run(on_connect=self.hello)

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=5)

    async def hello(self, status: str = "online") -> None:
        known = {name: ModalityState(windows=(2, 1)) for name in self.sensors}
        state = State(status=status, device=self.name, roles=self.roles, modalities=known, windows=3)
        await self.publish(Kind.STATE, messages.encode(state), retain=True)

    async def publish(
        self, kind: Kind, payload: bytes, mark: str | None = None, index: int = 0, **how: bool
    ) -> None:
        topic = device_topic(self.fleet, self.name, kind, mark, None if mark is None else index)
        await self.link.publish(topic, payload, timeout_s=5.0, **how)

    async def wait_for(self, what: object, seconds: float = 20.0) -> None:
        """Wait until ``what()`` is true."""
        async with asyncio.timeout(seconds), self.heard:
            await self.heard.wait_for(what)

    async def _listen(self) -> None:
        async for message in self.link.messages():
            route = parse(message.topic)
            if route.kind is Kind.DOWN_BLOB:
                self.chunks[route.digest, route.index] = message.payload
            elif message.payload:
                await self._take(messages.decode(message.payload, messages.Wire))
            message.ack()
            async with self.heard:
                self.heard.notify_all()

    async def _take(self, message: messages.Wire) -> None:
        kinds = {
            Receipt: self.receipts,
            messages.ModelPointer: self.pointers,
            messages.RoundAnnouncement: self.rounds,
            TaskAnnouncement: self.tasks,
            messages.Command: self.commands,
        }
        for kind, where in kinds.items():
            if isinstance(message, kind):
                where.append(message)
        if isinstance(message, Receipt):
            self.sent.pop(message.digest, None)
        if isinstance(message, Offer) and message.asks(self.name):
            self.offers.append(message)
            if not self.mute:
                update = frame(header(self.name, message.round, message.base), self.value, self.size)
                self.sent[digest(update)] = update
                await self.send(update, message.round)
        if isinstance(message, Want):
            await self.answer(message)

    async def answer(self, want: Want) -> None:
        update = self.sent.get(want.digest, b"")
        for first, last in want.missing:
            for index in range(first, last + 1):
                part = update[index * self.chunk_bytes : (index + 1) * self.chunk_bytes]
                with contextlib.suppress(LichenError):
                    await self.publish(Kind.UP_BLOB, part, want.digest, index)

    async def send(self, update: bytes, round_: int = 1) -> None:
        with contextlib.suppress(LichenError):
            if len(update) <= self.chunk_bytes:
                await self.publish(Kind.UPDATE, update)
                return
            blob = BlobRef(digest=digest(update), size=len(update))
            pointer = BlobPointer(task="tiny", round=round_, blob=blob, chunk_bytes=self.chunk_bytes)
            await self.publish(Kind.UPDATE, messages.encode(pointer))

    async def _resend(self) -> None:
        while True:
            await asyncio.sleep(0.7)
            for update in list(self.sent.values()):
                await self.send(update, self.offers[-1].round)
