"""A device's bytes as modalities, targets, domains and devices grow. Imports torch when it runs.

Bytes are counted where the study counts them (:mod:`lichen_lab.benchmarks.studies.disentafl.federation`):
frames of the blobs that a device fetched and of the update that it sent, in a round on synthetic data. The
bytes held are those of its parameters: their values, their gradients and Adam's two moments.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from lichen_lab.benchmarks.result import Goal, ResultRow, Say, figure_rows, row
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.data import merge_fa, uci_har, vehicle
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.data.windows import words
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflSetting, TargetFleet
from lichen_lab.benchmarks.studies.disentafl.variants import Part
from lichen_lab.benchmarks.study.run_spec import quiet
from models.contract import Blobs, Profile
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec, encode
from protocol.tasks.task import Task

DATASET: Final = "made"
DOWN: Final = "bytes down in a first round"
UP: Final = "bytes up in a round"
HOLDS: Final = "bytes held to train"
SHARE: Final = "share of the supernet that a first round moves down, %"
DEVICE: Final = f"{v.AVG}: a device of one input and one target"
SUPERNET: Final = f"{v.AVG}: the supernet"
WHOLE: Final = "FedAvg: one model for all inputs and targets"
GROUP: Final = v.TITLES[v.FEDAVG]
EVERYTHING: Final = "all inputs and targets"
TASKS: Final[Mapping[str, tuple[Callable[[], Task], tuple[Profile, ...]]]] = {
    vehicle.NAME: (vehicle.task, tuple(profile for profile, _ in vehicle.KINDS)),
    uci_har.NAME: (uci_har.task, uci_har.PROFILES),
    merge_fa.NAME: (merge_fa.task, merge_fa.PROFILES),
}
"""Fleet -> its task, and the kinds of its devices."""
_COPIES: Final = 4
_FLOAT: Final = 4
_QUICK: Final = 2


@dataclass(frozen=True)
class Size:
    """The size of a fleet's task.

    Attributes:
        inputs: M.
        targets: O.
        domains: D.
        devices: N.
    """

    inputs: int = 4
    targets: int = 4
    domains: int = 3
    devices: int = 12

    @property
    def words(self) -> str:
        """The setting of its rows."""
        return f"M = {self.inputs}, O = {self.targets}, D = {self.domains}, N = {self.devices}"


USUAL: Final = Size()
"""The size of the goal."""
SWEEPS: Final = {
    "inputs": (1, 2, 4, 8),
    "targets": (1, 2, 4, 8),
    "domains": (1, 3, 8),
    "devices": (6, 12, 24, 48),
}
GOALS: Final = (Goal(SHARE, 100 / 3, setting=USUAL.words, method=DEVICE),)


@dataclass(frozen=True)
class Cost:
    """Counts in bytes.

    Attributes:
        down: of the blobs that the first device fetched.
        up: of the update that it sent.
        holds: while it trains.
        supernet: of all blobs of the global state.
        whole: of the parameters of one model with all inputs and targets: FedAvg's traffic without routes.
        group: of the parameters of FedAvg's model for the first device's kind.
    """

    down: float
    up: float
    holds: int
    supernet: int
    whole: int
    group: int


def sizes() -> list[Size]:
    """All measured sizes: one of the four numbers varies at a time, each size once."""
    return list(dict.fromkeys(usual_but(name, value) for name, values in SWEEPS.items() for value in values))


def usual_but(field: str, value: int) -> Size:
    """The usual size with another value of one field."""
    return replace(USUAL, **{field: value})


def measured(size: Size, setting: DisentAflSetting, seed: int = 0) -> Cost:
    """Measure one round of a synthetic fleet; its first device reads one input and learns ``label``."""
    from lichen_lab.benchmarks.studies.disentafl import federation  # noqa: PLC0415 - torch

    fleet = build(seed, inputs=size.inputs, targets=size.targets, devices=size.devices, train=16, test=6)
    options = {**setting.options, "domains": size.domains}
    once = replace(setting, rounds=1, options=options)
    outcome = federation.run(fleet, once, seed, quiet)
    first = fleet.members[0]
    learned = federation.task_of(fleet, once, seed)
    own, everything = first.profile, Profile(learned.input_names, learned.target_names)
    state = initial(learned)
    return Cost(
        down=outcome.bytes_down[first.name],
        up=outcome.bytes_up[first.name],
        holds=held(learned, state, own),
        supernet=sum(framed(state).values()),
        whole=_fedavg(learned, everything),
        group=_fedavg(learned, own),
    )


def initial(learned: Task) -> Blobs:
    """The initial supernet."""
    from models.registry import method  # noqa: PLC0415 - the client imports torch

    return method(v.METHOD).client().initial(learned, 0)


def framed(state: Blobs) -> dict[str, int]:
    """Bytes of each blob on its way down."""
    return {
        name: len(
            encode_frame(BlobHeader(name=name), {key: encode(x, Codec.FLOAT32) for key, x in tensors.items()})
        )
        for name, tensors in state.items()
    }


def held(learned: Task, state: Blobs, profile: Profile) -> int:
    """Bytes of the values, gradients and moments of the parameters on a route."""
    from models.methods.disentafl.routing.blob_names import route  # noqa: PLC0415 - only where it is measured

    trained = [name for name in route(learned, profile, (0,)) if not name.startswith(("gate/", "features/"))]
    values = sum(tensor.size for name in trained for tensor in state[name].values())
    return _COPIES * _FLOAT * values


def _fedavg(learned: Task, profile: Profile) -> int:
    """Bytes of the parameters of FedAvg's network for a profile."""
    from lichen_lab.benchmarks.studies.disentafl.baselines.network import Concatenated  # noqa: PLC0415 - torch
    from models.methods.disentafl.routing.blob_names import config_of  # noqa: PLC0415 - likewise

    network = Concatenated(learned, profile, config_of(learned), 0)
    return _FLOAT * sum(parameter.numel() for parameter in network.parameters())


def rows(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Rows of all sizes, and of the kinds of device of every fleet; quick: a small size and the usual one."""
    wanted = [Size(_QUICK, _QUICK, _QUICK, _QUICK), USUAL] if quick else sizes()
    results = []
    for place, size in enumerate(wanted):
        say(f"cost at {size.words} ({place + 1} of {len(wanted)})")
        results += rows_of(size, measured(size, DisentAflSetting()))
    return results + [one for fleet in TASKS for one in rows_of_kinds(fleet)]


def rows_of_kinds(fleet: str) -> list[ResultRow]:
    """Share of the supernet that each kind of device fetches in its first round. Needs no data."""
    from lichen_lab.benchmarks.studies.disentafl.federation import task_of  # noqa: PLC0415 - torch
    from models.methods.disentafl.routing.blob_names import route  # noqa: PLC0415 - only where it is measured

    make_task, profiles = TASKS[fleet]
    learned = task_of(TargetFleet(fleet, make_task(), ()), DisentAflSetting(), 0)
    sizes_of = framed(initial(learned))
    whole = sum(sizes_of.values())
    results = [row(fleet, SUPERNET, EVERYTHING, DOWN, [whole])]
    for profile in profiles:
        down = sum(sizes_of[name] for name in route(learned, profile, (0,)))
        holds = held(learned, initial(learned), profile)
        figures = {DOWN: down, SHARE: 100 * down / whole, HOLDS: holds}
        results += figure_rows(fleet, v.AVG, words(profile), figures)
    return results


def rows_of(size: Size, cost: Cost) -> list[ResultRow]:
    """Rows of a size."""
    figures: tuple[tuple[str, str, float], ...] = (
        (DEVICE, DOWN, cost.down),
        (DEVICE, UP, cost.up),
        (DEVICE, HOLDS, cost.holds),
        (DEVICE, SHARE, 100 * cost.down / cost.supernet),
        (SUPERNET, DOWN, cost.supernet),
        (WHOLE, DOWN, cost.whole),
        (WHOLE, HOLDS, _COPIES * cost.whole),
        (GROUP, DOWN, cost.group),
    )
    return [row(DATASET, method, size.words, metric, [value]) for method, metric, value in figures]


PART: Final = Part(
    name="cost",
    place=4,
    title="what a device moves and holds as modalities, targets, domains and devices grow",
    computed=rows,
    goals=GOALS,
)
