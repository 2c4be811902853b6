"""A study's fleet in this process: the product's client, router, codec, checks and fold. Imports torch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Self

from lichen_lab.benchmarks.result import Say
from lichen_lab.benchmarks.study.run_spec import F, O, Run, T
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.training.device import Site, VirtualDevice
from lichen_lab.simulation.training.downlink.downloads import Downloads
from lichen_lab.simulation.training.engine import Engine, RoundRecord
from lichen_lab.simulation.training.guided import Guide
from lichen_lab.simulation.training.workers import one_thread
from models import registry
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Client, ClientContext, LocalResult, Profile
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

Look = Callable[["StudyDevice", Blobs, LocalResult], None]
"""Called after each training with the device, the state on its route and the result."""


@dataclass
class StudyDevice(VirtualDevice):
    """A device with fixed training data, windows or a graph, that uses its whole profile.

    Attributes:
        look: called after each training, before the update is packed.
        train_s: seconds of the last round's training.
        sent: bytes of each update.
    """

    look: Look | None = None
    train_s: float = 0.0
    sent: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, number: int, profile: Profile, material: Any, *, look: Look | None = None) -> Self:
        """A device that trains on ``material``."""
        return cls(name, Fixed(material), number, may=profile, look=look)

    def material(self, task: Task, round_: int) -> tuple[Profile, Any]:
        """Its profile and its training data."""
        del task
        return self.may or Profile((), ()), self.held(round_)

    def update(
        self, context: ClientContext, client: Client, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """See :meth:`lichen_lab.simulation.training.device.VirtualDevice.update`."""
        profile, material = self.material(context.task, context.round)
        context = replace(context, profile=profile)
        began = time.perf_counter()
        result = client.train(context, material, state, self.private)
        self.train_s = time.perf_counter() - began
        if self.look is not None:
            self.look(self, state, result)
        made = self.packed(context, material, result, base)
        self.sent.append(len(made[0]))
        return made


class Federation:
    """Devices that share a global state, played round by round.

    Args:
        task: names, options and seed.
        devices: in a fixed order.
        state: the first version; None: a fresh one.
        guide: the coordinator's half of a guided method.
        down: counts the bytes that devices fetch.
        graphs: the encoders' ONNX models, for devices without torch.

    Attributes:
        state: the newest version, with the aggregator's moments.
        records: one a round.
        spent_s: CPU seconds of training and folding.
    """

    def __init__(
        self,
        task: Task,
        devices: Sequence[VirtualDevice],
        *,
        state: Blobs | None = None,
        guide: Guide | None = None,
        down: Downloads | None = None,
        graphs: Mapping[str, bytes] | None = None,
    ) -> None:
        registry.method(task.method).configure(task)
        self.task, self.devices = task, devices
        self.site = Site(task, task.seed, graphs or {})
        self.engine = Engine(task, self.site.server, {}, None, down=down, guide=guide)
        self.state: Blobs = self.site.client.initial(task, task.seed) if state is None else state
        self.records: list[RoundRecord] = []
        self.spent_s = 0.0

    @property
    def model(self) -> Blobs:
        """The newest version without the aggregator's moments."""
        return model_of(self.state)

    @property
    def refused(self) -> int:
        """Number of refused updates and of devices without an update."""
        return sum(len(record.refused) for record in self.records)

    def before_round(self, round_: int) -> Sequence[VirtualDevice]:
        """The devices of a round: all of them, unless a study overrides this."""
        del round_
        return self.devices

    def round(self, round_: int) -> RoundRecord:
        """Play one round."""
        began, model = time.process_time(), self.engine.publish(self.state)
        deliveries = (self.site.deliver(device, model, round_) for device in self.before_round(round_))
        record, self.state = self.engine.close(deliveries, self.state, round_)
        self.records.append(record)
        self.spent_s += time.process_time() - began
        return record


def play_rounds(rounds: int, tell: Say, play: Callable[[int], float | None]) -> list[tuple[int, float]]:
    """Play all rounds of a run; returns (round, figure) of the rounds that were evaluated.

    Args:
        rounds: number of rounds.
        tell: takes the progress.
        play: plays one round; returns the version's figure, or None.
    """
    by_round = []
    for round_ in range(1, rounds + 1):
        figure = play(round_)
        if figure is not None:
            by_round.append((round_, figure))
        tell(f"round {round_} of {rounds}")
    return by_round


def timed_run(run: Run[F, T, O]) -> Run[F, T, O]:
    """Make a run use one thread and report its wall time."""

    @wraps(run)
    def measured(fleet: F, setting: T, seed: int, tell: Say) -> O:
        began = time.monotonic()
        with one_thread():
            outcome = run(fleet, setting, seed, tell)
        return replace(outcome, seconds=time.monotonic() - began)

    return measured


def options_of(
    title: str, given: Mapping[str, Any], common: Sequence[str], own: Mapping[str, float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Split a baseline's options into those of the product's method and its own.

    Args:
        title: of the baseline.
        given: the setting's options.
        common: names of the options that mean the same to the product's method.
        own: the baseline's own options with their defaults.

    Raises:
        Misconfigured: the baseline has no such option.
    """
    shared = {name: value for name, value in given.items() if name in common}
    rest = {name: value for name, value in given.items() if name not in common}
    unknown = sorted(rest.keys() - own.keys())
    if unknown:
        raise Misconfigured(f"{title}: no option {unknown[0]!r}; there are {', '.join((*common, *own))}")
    return shared, {**own, **rest}


def bytes_per_update(records: Sequence[RoundRecord]) -> tuple[float, float]:
    """Mean payload bytes up and down of one device in one round, over the folded updates."""
    sent = sum(len(record.accepted) for record in records)
    up = sum(sum(record.bytes_up.values()) for record in records)
    down = sum(sum(record.bytes_down.values()) for record in records)
    return (up / sent, down / sent) if sent else (0.0, 0.0)
