"""Task, sensors and training of the simulated fleet: a model of a few kilobytes in NumPy.

The task, the windows and the coordinator's half of the method are real; the device's half is a draw from the
offer's seed, so that the same offer gives the same bytes. Work takes virtual seconds and fails now and then.
"""

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from coordinator.storage.update_journal import AcceptedUpdate
from coordinator.workers.jobs import ExportedBundle, ExportLineage
from lichen_lab.simulation.deterministic.scenario.scenario import Protection
from lichen_lab.simulation.deterministic.scenario.toy_guided import GuidedHalf, train_step, viewed
from models import registry
from models.contract import Blobs, Evaluation, LocalResult, Profile, Server, Tensors
from models.data import window_set
from models.data.streams.batches import Batch, LabelBatch, SampleBatch
from models.methods.qqr.messages import PrototypeRows, QqrMessage
from models.methods.qqr.prototypes import rounds_name, values_name
from models.tensors import flatten, read_npz, unflatten
from models.worker import job_folder
from protocol.errors import Refused, Transient
from protocol.frames.frame import Limits
from protocol.tasks.links import Uplink
from protocol.tasks.network import Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task, Window
from runtime.clock import Clock
from runtime.process.worker import WorkerFailed

QQR: Final = "qqr"
LABELS: Final = ("still", "moving")
_WINDOW_S: Final = 2.0
_STEP: Final = 0.01
"""Standard deviation of a delta: the same on every device, so that none is an outlier."""
_LENGTH: Final = 8.0
"""Standard deviation of a prototype."""


def toy_task(rounds: Rounds, uplink: Uplink, seed: int, protection: Protection | None = None) -> Task:
    """Two slow sensors, two classes, windows of two seconds."""
    its = protection or Protection(QQR)
    return Task(
        name="toy",
        method=its.method,
        secure_aggregation=its.secure,
        privacy=its.privacy,
        labels=LABELS,
        modalities=(
            Modality(name="acc", channels=2, rate_hz=4),
            Modality(name="temp", channels=1, rate_hz=1),
        ),
        window=Window(length_s=_WINDOW_S, stride_s=_WINDOW_S, max_gap_s=1.0),
        network=Network(feature_dim=4),
        rounds=rounds,
        uplink=uplink,
        seed=seed,
    )


def first_state(task: Task, head: int) -> Blobs:
    """Version 0; ``head`` elements decide whether updates go in one piece or in chunks."""
    rng = np.random.default_rng(task.seed)
    tensors = {"head/w": rng.normal(size=head).astype(np.float32)}
    for name in task.modality_names:
        tensors[f"encoder/{name}/w"] = rng.normal(size=(4, 4)).astype(np.float32)
        if task.method != QQR:
            continue
        shape = (len(task.labels), task.network.feature_dim)
        tensors[values_name(name)] = np.zeros(shape, np.float32)
        tensors[rounds_name(name)] = np.zeros(len(task.labels), np.float32)
    return unflatten(tensors)


@dataclass(eq=False, repr=False)
class ToyTrainer:
    """Stands in for the worker process of one device's life.

    Args:
        clock: virtual.
        seconds: one job takes up to so long.
        rng: decides about durations and failures.
        fail: share of jobs whose worker dies.
    """

    clock: Clock
    seconds: float
    rng: random.Random
    fail: float

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Do one job; see ``runtime.process.worker.Worker.run``.

        Raises:
            WorkerFailed: drawn.
        """
        await self.clock.sleep(min(timeout_s, self.rng.uniform(0.01, self.seconds)))
        if self.rng.random() < self.fail:
            raise WorkerFailed("the toy worker was killed", "out of memory, says the seed")
        train(job_dir)

    async def close(self) -> None:
        """Nothing runs between jobs."""


def train(job_dir: Path) -> None:
    """Read a train job, and leave a result that depends on nothing but the job."""
    job = job_folder.read_job(job_dir)
    if not isinstance(job, job_folder.TrainJob):
        raise TypeError(f"{job_dir} holds a {job.kind} job")
    windows = window_set.load(job_dir / job_folder.WINDOWS, job.task)
    state = flatten(job_folder.load_state(job_dir / job_folder.STATE))
    rounds = read_npz(job_dir / job_folder.PRIVATE).get("rounds", np.zeros(1, np.float32)) + 1
    rng = np.random.default_rng([job.seed, job.round])
    tensors, rows = {}, {}
    for name, tensor in state.items():
        if not name.startswith("prototypes/"):
            tensors[name] = (_STEP * rng.standard_normal(tensor.shape)).astype(np.float32)
    for name, per_class in window_set.counts(windows, job.task).items():
        classes = tuple(k for k, n in enumerate(per_class) if n)
        if classes and values_name(name) in state:
            v_RD = rng.standard_normal((len(classes), job.task.network.feature_dim))
            v_RD *= _LENGTH / np.linalg.norm(v_RD, axis=1, keepdims=True)
            tensors[values_name(name)] = v_RD.astype(np.float32)
            rows[name] = PrototypeRows(classes=classes, counts=tuple(per_class[k] for k in classes))
    result = LocalResult(
        tensors,
        metrics={"loss": 1.0 / float(rounds[0])},
        extra=QqrMessage(prototypes=rows).extra() if job.task.method == QQR else {},
        private={"rounds": rounds},
    )
    job_folder.save_local_result(job_dir, result)


@dataclass(eq=False, repr=False)
class ToyJobs:
    """Stands in for the coordinator's worker processes; see ``coordinator.workers.jobs.Jobs``.

    ``bundle`` makes an export that agents can deploy; None: some bytes.
    """

    task: Task
    head: int
    clock: Clock
    rng: random.Random
    fail: float
    bundle: Callable[[Task, Blobs, ExportLineage], bytes] | None = None

    async def initial(self) -> Blobs:
        """Version 0."""
        await self._work("making version 0")
        return first_state(self.task, self.head)

    async def evaluate(self, state: Blobs) -> Evaluation:
        """Some numbers that depend on the state alone."""
        await self._work("evaluating")
        return Evaluation({"accuracy": float(abs(state["head"]["head/w"].mean()) % 1)}, [[1, 0], [0, 1]])

    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        """Some bytes that depend on the version and the names of its parts alone."""
        await self._work("exporting")
        if self.bundle is not None:
            return ExportedBundle(self.bundle(self.task, state, lineage), {})
        words = f"version {lineage.version} of {', '.join(sorted(state))}"
        return ExportedBundle(words.encode() + state["head"]["head/w"].tobytes(), {})

    async def features(self) -> dict[str, bytes]:
        """Some bytes that depend on the task alone."""
        await self._work("making the encoder models")
        return {name: f"graph of {name}".encode() for name in self.task.modality_names}

    async def view(
        self, state: Blobs, entries: Sequence[AcceptedUpdate], limits: Limits
    ) -> tuple[dict[str, Tensors], dict[str, Refused]]:
        """Views of all updates; a rotten frame has none."""
        del state
        await self._work("looking at updates")
        views: dict[str, Tensors] = {}
        refused: dict[str, Refused] = {}
        for entry in entries:
            try:
                views[entry.device] = viewed(entry.read(limits))
            except Refused as why:
                refused[entry.device] = why
        return views, refused

    async def finish(self, round_: int, seed: int, state: Blobs) -> tuple[Blobs, dict[str, float]]:
        """A step of the head."""
        await self._work("training on the labelled windows")
        return train_step(round_, seed, state), {"loss": float(seed % 7)}

    async def close(self) -> None:
        """Nothing runs between jobs."""

    async def _work(self, what: str) -> None:
        await self.clock.sleep(self.rng.uniform(0.01, 2.0))
        if self.rng.random() < self.fail:
            raise Transient(f"{what} failed, says the seed")


class RoutedHalf:
    """A method's coordinator half, as if each kind of device were served a part of the model."""

    def __init__(self, inner: Server) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def serving_route(self, task: Task, profile: Profile, extra: Mapping[str, Any] | None) -> tuple[str, ...]:
        """See ``models.contract.RoutedServer``."""
        del task, extra
        return tuple(sorted(("head", *(f"encoder/{name}" for name in profile.modalities))))

    def serving_message(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """See ``models.contract.RoutedServer``: no route depends on a message."""
        del extra
        return {}


def server_half(task: Task, *, routed: bool, guided: bool = False) -> Server:
    """The coordinator's half of the task's method."""
    server = registry.method(task.method).server()
    if guided:
        server = cast("Server", GuidedHalf(server))
    return cast("Server", RoutedHalf(server)) if routed else server


class ToySource:
    """A scripted device: a few windows at once, then some more every ``every_s``.

    Stream time is the device's wall clock, as with a real sensor: it jumps when that does.

    Args:
        channels: of the modalities that this device has.
        clock: the device's.
        rng: values and labels.
        every_s: between batches.
        fail: share of batches in whose place the sensor goes away.
    """

    def __init__(
        self, channels: dict[str, int], clock: Clock, rng: random.Random, every_s: float, fail: float
    ) -> None:
        self.name = "toy"
        self.channels = channels
        self._clock = clock
        self._rng = np.random.default_rng(rng.getrandbits(32))
        self._every_s = every_s
        self._fail = fail
        self._rates = {"acc": 4.0, "temp": 1.0}

    async def samples(self) -> AsyncIterator[Batch]:
        """Yield batches for ever.

        Raises:
            OSError: drawn: the sensor went away.
        """
        span = 4 * _WINDOW_S
        while True:
            end = self._clock.wall()
            for batch in self._batches(end - span, end):
                yield batch
            await self._clock.sleep(self._every_s)
            span = min(self._every_s, 4 * _WINDOW_S)
            if self._rng.random() < self._fail:
                raise OSError("the sensor went away, says the seed")

    def _batches(self, start: float, end: float) -> list[Batch]:
        label_t = np.arange(start, end, _WINDOW_S)
        label = self._rng.integers(0, len(LABELS), len(label_t))
        batches: list[Batch] = [LabelBatch(label_t, label.astype(np.int64))]
        for name, channels in self.channels.items():
            t = np.arange(start, end, 1 / self._rates[name])
            values = self._rng.normal(size=(len(t), channels)).astype(np.float32)
            batches.append(SampleBatch(name, t, values))
        return batches
