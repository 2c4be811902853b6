"""FedAvg beside FedProx, other codecs and QQR without prototypes; FedBN where sensors differ.

UCI-HAR's windows, two small convolutional encoders. In the first part eight devices have 80 to 700 windows of
uneven classes, three in ten without one modality, and versions are evaluated on the test people. In the
second part eight devices have 400 windows each and sensors with a gain and an offset of their own, channel by
channel; each predicts, with its own norms if it has some, for a share of the test windows in its own scale.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, ResultRow, Say, figure_rows
from lichen_lab.simulation.data.dataset_tasks import study
from lichen_lab.simulation.data.streams import masked
from lichen_lab.simulation.training.runner import simulate
from models.contract import WindowSet
from models.data.window_set import check, select
from models.registry import method
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.network import Encoder
from protocol.tasks.task import Task

_DATASET: Final = "UCI-HAR"
_SIZES: Final = (80, 160, 240, 320, 400, 500, 600, 700)
_MISSING: Final = 0.3
_EACH: Final = 400
"""Windows of a device in the second part."""


@dataclass(frozen=True)
class FedAvgVariant:
    """A row: a method with options, and how tensors travel."""

    words: str
    config: Mapping[str, Any] = field(default_factory=dict)
    name: str = "fedavg"
    links: tuple[Uplink, Downlink] | None = None


UNEVEN: Final = (
    FedAvgVariant("FedAvg"),
    FedAvgVariant("FedProx, mu .1", {"proximal": 0.1}),
    FedAvgVariant("complete windows alone", {"impute": "complete_only"}),
    FedAvgVariant("int8", links=(Uplink(codec="int8"), Downlink())),
    FedAvgVariant("equal weights", {"weigh_by": "equal"}),
    FedAvgVariant("QQR without prototypes", {"impute": "zero_feature", "quality": "none"}, "qqr"),
)
SENSORS: Final = (
    FedAvgVariant("norms shared"),
    FedAvgVariant("FedBN, strict", {"private_norms": "strict"}),
    FedAvgVariant("FedBN, with mean", {"private_norms": "with_mean"}),
)


def _task(variant: FedAvgVariant, rounds: int) -> Task:
    task, spec = study("uci-har").task(rounds=rounds, config=variant.config), method("fedavg")
    small = {name: Encoder(kind="cnn1d", width=16, depth=4) for name in task.modality_names}
    uplink, downlink = variant.links or (spec.uplink, spec.downlink)
    network = task.network.model_copy(update={"encoders": small})
    chosen = {"method": variant.name, "network": network, "uplink": uplink, "downlink": downlink}
    return task.model_copy(update=chosen)


def _windows(seed: int) -> tuple[WindowSet, WindowSet]:
    """For training and for tests; of different people."""
    chosen = study("uci-har")
    train, test = (
        check(chosen.load(part, seed).windows, chosen.task(), "uci-har") for part in ("train", "test")
    )
    return train, test


def uneven(train: WindowSet, seed: int) -> dict[str, WindowSet]:
    """Eight devices with Dirichlet shares of the classes; some windows lack a modality."""
    rng, counts_K = np.random.default_rng(1000 + seed), np.bincount(train.y_B)
    devices = {}
    for number, size in enumerate(_SIZES):
        share_B = (rng.dirichlet(np.ones(len(counts_K))) / counts_K)[train.y_B]
        at = rng.choice(len(train), size, replace=False, p=share_B / share_B.sum())
        held = select(train, np.sort(at))
        lacks_B, which_B = rng.random(size) < _MISSING, rng.integers(0, 2, size)
        keep_BM = np.ones((size, 2), np.bool_)
        keep_BM[np.flatnonzero(lacks_B), which_B[lacks_B]] = False
        devices[f"d{number}"] = masked(held, keep_BM)
    return devices


def in_scale_of(windows: WindowSet, sensors: int) -> WindowSet:
    """As from sensors whose channels have a gain from one half to two, and an offset."""
    rng, x = np.random.default_rng(sensors), {}
    for name, x_BCT in windows.x.items():
        spread_1C1 = x_BCT.std(axis=(0, 2), keepdims=True)
        gain_1C1 = np.exp(rng.uniform(-np.log(2), np.log(2), spread_1C1.shape))
        offset_1C1 = rng.normal(0, 0.5, spread_1C1.shape) * spread_1C1
        x[name] = (x_BCT * gain_1C1 + offset_1C1).astype(np.float32)
    return replace(windows, x=x)


def sensors_of_their_own(
    train: WindowSet, test: WindowSet, seed: int
) -> tuple[dict[str, WindowSet], dict[str, WindowSet]]:
    """Eight devices, and the test windows of each, in the scale of its sensors."""
    rng, many = np.random.default_rng(2000 + seed), len(_SIZES)
    parts = [
        np.array_split(rng.permutation(len(windows))[:most], many)
        for windows, most in ((train, many * _EACH), (test, len(test)))
    ]
    devices, tests = (
        {f"d{i}": in_scale_of(select(windows, np.sort(at)), 100 * seed + i) for i, at in enumerate(of)}
        for windows, of in zip((train, test), parts, strict=True)
    )
    return devices, tests


def _on_uneven(variant: FedAvgVariant, seed: int, rounds: int) -> dict[str, float]:
    train, test = _windows(seed)
    history = simulate(
        _task(variant, rounds), uneven(train, seed), test, seed, evaluate_every=max(1, rounds // 4)
    )
    return {"accuracy, %": 100 * history.curve()[-1], "MB up": history.bytes_up / 1e6}


def _on_sensors(variant: FedAvgVariant, seed: int, rounds: int) -> dict[str, float]:
    devices, tests = sensors_of_their_own(*_windows(seed), seed)
    task = _task(variant, rounds)
    spec, client = method(task.method), method(task.method).client()
    history = simulate(task, devices, None, seed, keep_private=True)
    from lichen_lab.simulation.training.evaluation.scores import scored  # noqa: PLC0415 - imports torch

    def reached(name: str) -> float:
        own = spec.blended(task, history.state, history.private.get(name, {}))
        return scored(task, client.inference_model(task, own), tests[name]).metrics["accuracy"]

    return {"accuracy of the devices' own predictions, %": 100 * float(np.mean([*map(reached, tests)]))}


Measured = Callable[[FedAvgVariant, int, int], dict[str, float]]


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds of 40 rounds each; quick: one seed, 2 rounds."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    seeds, rounds, rows = range(1) if quick else range(3), 2 if quick else 40, list[ResultRow]()
    parts: tuple[tuple[str, tuple[FedAvgVariant, ...], Measured], ...] = (
        ("eight uneven devices", UNEVEN, _on_uneven),
        ("eight devices with sensors of their own", SENSORS, _on_sensors),
    )
    for setting, variants, measured in parts:
        for variant in variants:
            say(f"{setting}: {variant.words}")
            started = time.perf_counter()
            found = [measured(variant, seed, rounds) for seed in seeds]
            figures = {metric: [one[metric] for one in found] for metric in found[0]}
            seconds = time.perf_counter() - started
            rows += figure_rows(_DATASET, variant.words, setting, figures, seconds=seconds)
    return rows


BENCH: Final = Bench(name="fedavg", run=run)
