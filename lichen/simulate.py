"""Many virtual devices in one process: the method's real client and server, real frames, no broker.

Every update is quantized with error carry, written as a frame, read back and checked exactly as between an
agent and a coordinator, so that the accuracy includes what the codec costs and the bytes are those of the
wire. The same task, windows and seed give the same history.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edge_agent.packing import pack_update
from lichen.simulated_round import Engine, RoundRecord, Tamper, Watch
from lichen.streams import Fixed, Stream
from models import registry, windowset
from models.contract import (
    Blobs,
    Client,
    ClientContext,
    Evaluation,
    LocalResult,
    Tensors,
    WindowSet,
)
from protocol.errors import Misconfigured
from protocol.messages import Offer
from protocol.task import Task


@dataclass(frozen=True)
class History:
    """What a simulation made.

    Attributes:
        rounds: in order.
        state: the final global state.
        evaluation: of the final state on the test windows; None without any.
        seconds: wall time of it all.
    """

    rounds: tuple[RoundRecord, ...]
    state: Blobs
    evaluation: Evaluation | None
    seconds: float

    def curve(self, metric: str = "accuracy") -> list[float]:
        """One metric over the evaluated rounds."""
        return [record.metrics[metric] for record in self.rounds if metric in record.metrics]

    @property
    def bytes_up(self) -> int:
        """Payload bytes of all updates of all rounds."""
        return sum(sum(record.bytes_up.values()) for record in self.rounds)


@dataclass
class VirtualDevice:
    """A device without a process: its windows, and what stays on it between rounds.

    Attributes:
        name: as in the update's header.
        stream: what it holds at each round.
        number: its place in the fleet; decides, with seed and round, its order of samples.
        private: the method's own, handed back each round.
        carry: what quantization cut off so far, by tensor.
    """

    name: str
    stream: Stream
    number: int = 0
    private: Tensors = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)

    def update(
        self, context: ClientContext, client: Client, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """Train once from ``state``: the frame that goes up, and what it was made from.

        Raises:
            Transient: none of its windows can train this round.
            Refused: training gave a value that is not finite.
        """
        windows = self.labelled(context.round)
        result = client.train(context, windows, state, self.private)
        self.private = result.private
        return self.pack(context, windows, result, base), result

    def pack(self, context: ClientContext, windows: WindowSet, result: LocalResult, base: str) -> bytes:
        """Quantize with error carry and write the frame: the agent's own code."""
        task = context.task
        offer = Offer(
            task=task.name, round=context.round, base=base, base_size=0, closes_in_s=0, seed=context.seed
        )
        who = (self.name, self.modalities(task, context.round))
        frame, carry = pack_update(offer, task, who, windows, result, carry=self.carry)
        self.carry = carry if carry is not None else {}
        return frame

    def labelled(self, round_: int) -> WindowSet:
        """What it can learn from in that round: an agent's store keeps labelled windows alone."""
        windows = self.stream.at(round_)
        return windowset.select(windows, windows.y_B >= 0)

    def modalities(self, task: Task, round_: int) -> list[str]:
        """The modalities it has any window of in that round."""
        present_BM = self.stream.at(round_).present_BM
        return [name for column, name in enumerate(task.modality_names) if present_BM[:, column].any()]


Progress = Callable[[RoundRecord], None]


def simulate(
    task: Task,
    devices: Mapping[str, WindowSet | Stream],
    test: WindowSet | None,
    seed: int,
    *,
    rounds: int | None = None,
    evaluate_every: int = 1,
    progress: Progress | None = None,
    tamper: Mapping[str, Tamper] | None = None,
    watch: Watch | None = None,
) -> History:
    """Run a whole federated training.

    Args:
        task: method, network, uplink codec and the method's options.
        devices: name -> its windows, or a stream that says what it holds at each round.
        test: labelled windows to judge each version on.
        seed: decides the initial model and every device's order of samples.
        rounds: instead of ``task.rounds.count``.
        evaluate_every: judge every so many rounds; the last one always.
        progress: told each round as it closes.
        tamper: hostile devices, and what each does with its frames.
        watch: told the updates of every round.

    Raises:
        Misconfigured: an unknown method or option, or no device.
    """
    return _run(
        task,
        _fleet(devices),
        test,
        seed,
        last=rounds,
        every=evaluate_every,
        progress=progress,
        tamper=tamper,
        watch=watch,
    )


def _fleet(devices: Mapping[str, WindowSet | Stream]) -> list[VirtualDevice]:
    return [
        VirtualDevice(name, Fixed(windows) if isinstance(windows, WindowSet) else windows, number)
        for number, (name, windows) in enumerate(sorted(devices.items()))
    ]


def _run(
    task: Task,
    fleet: list[VirtualDevice],
    test: WindowSet | None,
    seed: int,
    *,
    last: int | None,
    every: int,
    progress: Progress | None = None,
    tamper: Mapping[str, Tamper] | None = None,
    watch: Watch | None = None,
) -> History:
    if not fleet:
        raise Misconfigured("a simulation needs at least one device")
    started = time.perf_counter()
    spec = registry.method(task.method)
    spec.configure(task)
    client = spec.client()
    engine = Engine(task, client, spec.server(), seed, tamper or {}, watch)
    state = client.initial(task, seed)
    last = last or task.rounds.count
    records: list[RoundRecord] = []
    judged: Evaluation | None = None
    for round_ in range(1, last + 1):
        record, state = engine.round(fleet, state, round_)
        if test is not None and (round_ % every == 0 or round_ == last):
            judged = client.evaluate(task, test, state)
            record.metrics.update(judged.metrics)
        records.append(record)
        if progress is not None:
            progress(record)
    return History(tuple(records), state, judged, time.perf_counter() - started)


def alone(
    task: Task,
    devices: Mapping[str, WindowSet | Stream],
    test: WindowSet,
    seed: int,
    *,
    rounds: int | None = None,
) -> dict[str, Evaluation]:
    """What each device reaches by itself, judged on the same windows; see :func:`each_alone`."""
    histories = each_alone(task, devices, test, seed, rounds=rounds)
    return {name: history.evaluation for name, history in histories.items() if history.evaluation is not None}


def each_alone(
    task: Task,
    devices: Mapping[str, WindowSet | Stream],
    test: WindowSet | None,
    seed: int,
    *,
    rounds: int | None = None,
) -> dict[str, History]:
    """The local-only baseline: the same client and as many rounds, no aggregation.

    A fleet of one is that baseline, with the order of samples that the device has in the whole fleet. Its
    "uplink" is float32, so that it is not held back by a codec it would not need.
    """
    local = task.model_copy(update={"uplink": task.uplink.model_copy(update={"codec": "float32"})})
    every = rounds or task.rounds.count
    return {
        device.name: _run(local, [device], test, seed, last=rounds, every=every) for device in _fleet(devices)
    }
