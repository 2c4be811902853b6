"""Bytes of a whole training, both ways, beside those of the raw samples, and what they cost in accuracy.

Float32 everywhere (whole versions down, whole changes up) and the method's defaults run on the same fleet,
with the same seeds, in one run; other ways, too, on other seeds. Bytes are payloads: update frames up;
manifests, differences and blobs down. MQTT's headers (about 70 bytes a message) are in ``lichen bench wire``.
Raw samples count once, however windows overlap, as float32 and as the 16-bit numbers that sensors deliver.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.dataset_tasks import UCI_HAR
from lichen_lab.simulation.data.sets import spar, uci_har
from lichen_lab.simulation.training.runner import History, simulate
from models.contract import WindowSet
from models.data.window_set import select
from models.methods.qqr import METHOD
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.task import Task

WHOLE: Final = "float32 everywhere"
DEFAULTS: Final = "defaults"
_ROUNDS: Final = 20
_OF_RAW: Final = "both ways, % of the raw samples (float32, once)"
_BELOW: Final = "points of accuracy below float32"
_LINKS: Final[Mapping[str, tuple[Uplink, Downlink]]] = {
    WHOLE: (Uplink(codec="float32", error_carry=False), Downlink(codec="float32")),
    DEFAULTS: (METHOD.uplink, METHOD.downlink),
}
_WAYS: Final[Mapping[str, tuple[Uplink, Downlink]]] = {
    **_LINKS,
    "float16 up, whole versions down": (Uplink(codec="float16"), Downlink(codec="float32")),
    "int8 up": (Uplink(codec="int8"), METHOD.downlink),
    "longer steps both ways": (Uplink(codec="steps", coarseness=4.0), Downlink(coarseness=4.0)),
}
"""What each way costs; float16 shows how far two trainings without loss differ."""
_LAST: Final = 5
"""Versions whose mean accuracy is a run's: single ones differ by more than the codecs."""


@dataclass(frozen=True)
class _Fleet:
    """Devices of a data set, its judges, and bytes of its samples as float32, each counted once."""

    task: Task
    devices: Mapping[str, WindowSet]
    test: WindowSet
    raw: int


def _uci_har(seed: int, rounds: int) -> _Fleet:
    """One device for each of the 21 training people; windows overlap by half."""
    train, test = uci_har.load("train"), uci_har.load("test")
    people = sorted(set(train.person_B.tolist()))
    devices = {f"person-{p:02}": select(train.windows, train.person_B == p) for p in people}
    raw = sum(x_BCT[:, :, ::2].size for x_BCT in train.windows.x.values()) * 4
    return _Fleet(UCI_HAR.task(rounds=rounds, seed=seed), devices, test.windows, raw)


def _spar(seed: int, rounds: int) -> _Fleet:
    """The demo's six devices, with their faults; three people judge whom no device has met."""
    series, task = spar.load(), spar_fleet.task(rounds, seed=seed)
    recorded = {d.name: spar_fleet.device_recording(series, d, seed) for d in spar_fleet.DEVICES}
    devices = {name: spar_fleet.windows(task, one.recorded) for name, one in recorded.items()}
    values = sum(m.channels * m.rate_hz for m in task.modalities)
    raw = round(sum(one.seconds for one in recorded.values()) * values) * 4
    return _Fleet(task, devices, spar_fleet.windows(task, spar_fleet.unseen(series)), raw)


@dataclass(frozen=True)
class _Part:
    """Runs of one table: every variant with every seed. Settings were chosen on seeds 20 and above."""

    fleet: Callable[[int, int], _Fleet]
    seeds: tuple[int, ...]
    links: Mapping[str, tuple[Uplink, Downlink]] = field(default_factory=lambda: _LINKS)


_PARTS: Final[Mapping[str, _Part]] = {
    "SPAR": _Part(_spar, tuple(range(10))),
    "UCI-HAR": _Part(_uci_har, (0, 1, 2)),
    "SPAR, more ways": _Part(_spar, (10, 11, 12, 13), _WAYS),
}


def _accuracy(history: History) -> float:
    """Mean of the last versions', in %."""
    return 100 * fmean(history.curve()[-_LAST:])


def _rows(dataset: str, runs: Mapping[str, list[History]], raw: Iterable[int]) -> list[ResultRow]:
    rows, samples = [], list(raw)
    for variant, histories in runs.items():
        seconds = sum(one.seconds for one in histories)
        both = [one.bytes_up + one.bytes_down for one in histories]
        figures = {
            "MB up": [one.bytes_up / 1e6 for one in histories],
            "MB down": [one.bytes_down / 1e6 for one in histories],
            "MB both ways": [size / 1e6 for size in both],
            _OF_RAW: [100 * size / one for size, one in zip(both, samples, strict=True)],
            "both ways, % of the raw samples (16 bits, once)": [
                200 * size / one for size, one in zip(both, samples, strict=True)
            ],
            "accuracy, %": [_accuracy(one) for one in histories],
            "rounds": [float(len(one.rounds)) for one in histories],
        }
        if variant != WHOLE:
            pairs = zip(runs[WHOLE], histories, strict=True)
            figures[_BELOW] = [_accuracy(whole) - _accuracy(one) for whole, one in pairs]
        rows += [
            row(dataset, variant, f"{_ROUNDS} rounds", metric, values, seconds=seconds)
            for metric, values in figures.items()
        ]
    return rows


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Both fleets, and more ways on other seeds; quick: one seed of SPAR, five rounds."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    rounds, rows = (5 if quick else _ROUNDS), list[ResultRow]()
    for dataset, part in _PARTS.items():
        if quick and dataset != "SPAR":
            continue
        runs: dict[str, list[History]] = {variant: [] for variant in part.links}
        raw = []
        for seed in part.seeds[:1] if quick else part.seeds:
            fleet = part.fleet(seed, rounds)
            raw.append(fleet.raw)
            for variant, (up, down) in part.links.items():
                say(f"{dataset}, seed {seed}: {variant}")
                task = fleet.task.model_copy(update={"uplink": up, "downlink": down})
                runs[variant].append(simulate(task, fleet.devices, fleet.test, seed))
        rows += _rows(dataset, runs, raw)
    return rows


BENCH: Final = Bench(
    name="bytes",
    run=run,
    goals=(
        Goal(_OF_RAW, 100, method=DEFAULTS),
        Goal(_BELOW, 0.5, method=DEFAULTS),
    ),
)
