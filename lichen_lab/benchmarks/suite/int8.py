"""What the int8 variant costs and saves: bytes, time on one thread, what it says, on people it never met.

Networks are trained in simulation, exported with windows of the training people (from which int8 has its
ranges), and judged on windows of others. The times of both files are taken in turn, so that what else the
machine does falls on both; their ratio is another one on another processor, which is why devices measure.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar, uci_har
from lichen_lab.simulation.data.streams import rng_of
from lichen_lab.simulation.training.runner import simulate
from models.contract import Blobs, WindowSet
from models.data.window_set import concat, select
from protocol.errors import Misconfigured
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import LABEL, Task, Window

_BYTES: Final = "int8 bytes, % of float32"
_AGREE: Final = "says what float32 says, % of windows"
_LOST: Final = "accuracy lost, points"
_PURPOSE: Final = 17
_DEVICES: Final = 5
_EACH: Final = 500
_ROUNDS: Final = 10
_BATCH: Final = 32
_RUNS: Final = 200


@dataclass(frozen=True)
class TrainedModel:
    """A trained network, windows of its training people, and windows of other people."""

    dataset: str
    setting: str
    task: Task
    state: Blobs
    known: WindowSet
    others: WindowSet


def _of_spar(seed: int) -> TrainedModel:
    """The demo's fleet."""
    series, task = spar.load(), spar_fleet.task(spar_fleet.ROUNDS, seed=seed)
    devices = spar_fleet.device_windows(task, series, seed)
    others = spar_fleet.windows(task, spar_fleet.unseen(series))
    state = simulate(task, devices, None, seed).state
    return TrainedModel("SPAR", "demo's network, two cnn1d", task, state, _joined(devices), others)


def _of_uci(seed: int, setting: str, method: str, kinds: Sequence[str]) -> TrainedModel:
    """Five devices with 500 windows each of the official training people."""
    task = Task(
        name="uci-har",
        method=method,
        labels=uci_har.LABELS,
        modalities=uci_har.MODALITIES,
        window=Window(length_s=uci_har.WINDOW_S),
        network=Network(
            encoders={
                m.name: Encoder(kind=kind, width=32, depth=5 if kind == "cnn1d" else 1)
                for m, kind in zip(uci_har.MODALITIES, kinds, strict=True)
            },
            feature_dim=128,
            hidden_dim=256,
        ),
        config={"epochs": 2} if method != "qqr" else {"epochs": 2, "lr": 0.08, "batch": 64},
        seed=seed,
    )
    train = uci_har.load("train").windows
    dealt = rng_of(_PURPOSE, seed).permutation(len(train))[: _DEVICES * _EACH].reshape(_DEVICES, _EACH)
    devices = {f"d{i}": select(train, np.sort(own)) for i, own in enumerate(dealt)}
    state = simulate(task, devices, None, seed, rounds=_ROUNDS).state
    return TrainedModel("UCI-HAR", setting, task, state, _joined(devices), uci_har.load("test").windows)


_CNN_LSTM: Final = ("cnn1d", "lstm")
_UCI: Final[Mapping[str, tuple[str, tuple[str, str]]]] = {
    "cnn1d and LSTM": ("qqr", _CNN_LSTM),
    "two cnn1d": ("qqr", ("cnn1d", "cnn1d")),
    "attention, one route": ("disentafl", _CNN_LSTM),
}


def _joined(devices: Mapping[str, WindowSet]) -> WindowSet:
    return concat([replace(windows, context=None) for windows in devices.values()])


def figures(trained: TrainedModel, say: Say) -> dict[str, float]:
    """Figures of the variant by metric; none if the exporter omits it, with the reason reported."""
    from export.bundle_builder import Lineage, inference_module, make_bundle  # noqa: PLC0415
    from export.int8.calibration import usable  # noqa: PLC0415 - torch and onnx, only where they are needed
    from export.int8.variants import INT8_FILE  # noqa: PLC0415
    from export.parity.gate import session  # noqa: PLC0415
    from export.signature import surface_of  # noqa: PLC0415
    from protocol.bundle import unpack  # noqa: PLC0415

    task = trained.task
    data, parity = make_bundle(task, trained.state, Lineage(1, 1, "0" * 64, None, {}), trained.known)
    say(f"{trained.dataset}, {trained.setting}: int8: {parity.as_dict().get('int8', '')}")
    manifest, files = unpack(data)
    if INT8_FILE not in files:
        return {}
    chosen = usable(trained.others, task, surface_of(inference_module(task, trained.state), task))
    loaded = {name: session(files[name]) for name in ("model.onnx", INT8_FILE)}
    y_B = chosen.target(LABEL)
    known_B = np.isfinite(y_B)

    def said(name: str, without: str | None = None) -> np.ndarray[Any, Any]:
        parts = [loaded[name].run([manifest.outputs[0]], dict(feed))[0] for feed in chosen.feeds(without)]
        return np.concatenate(parts)

    before, after = said("model.onnx"), said(INT8_FILE)
    accuracy = [100 * float((p.argmax(axis=1)[known_B] == y_B[known_B]).mean()) for p in (before, after)]
    missing = [
        float((said("model.onnx", name).argmax(axis=1) == said(INT8_FILE, name).argmax(axis=1)).mean())
        for name in chosen.names
    ]
    found = {
        _BYTES: 100 * len(files[INT8_FILE]) / len(files["model.onnx"]),
        "accuracy of float32, %": accuracy[0],
        _LOST: accuracy[0] - accuracy[1],
        _AGREE: 100 * float((before.argmax(axis=1) == after.argmax(axis=1)).mean()),
        "the same, a modality missing, %": 100 * min(missing),
    }
    for count, words in ((1, "a window"), (_BATCH, f"a batch of {_BATCH}")):
        feed = dict(next(chosen.some(count).feeds()))
        took = _in_turn([partial(one.run, list(manifest.outputs), feed) for one in loaded.values()])
        found |= {f"float32 ms, {words}": took[0], f"int8 ms, {words}": took[1]}
    return found


def _in_turn(calls: Sequence[Any]) -> list[float]:
    """Median milliseconds of each call."""
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(_RUNS):
        for call, times in zip(calls, took, strict=True):
            begun = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - begun))
    return [float(np.median(times)) for times in took]


def _each(quick: bool, say: Say) -> Iterator[tuple[TrainedModel, float]]:  # noqa: FBT001 - as run()
    for seed in (0,) if quick else range(3):
        say(f"SPAR, seed {seed}")
        begun = time.perf_counter()
        yield _of_spar(seed), time.perf_counter() - begun
    if quick:
        return
    for setting, (method, kinds) in _UCI.items():
        say(f"UCI-HAR, {setting}")
        begun = time.perf_counter()
        yield _of_uci(0, setting, method, kinds), time.perf_counter() - begun


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds of the demo's network, one of three others; quick: one seed of the demo's.

    Raises:
        Misconfigured: the exporter makes no variant of any.
    """
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    by: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    spent: dict[tuple[str, str, str], float] = {}
    for trained, seconds in _each(quick, say):
        key = (trained.dataset, trained.task.method, trained.setting)
        spent[key] = spent.get(key, 0.0) + seconds
        for metric, value in figures(trained, say).items():
            by.setdefault(key, {}).setdefault(metric, []).append(value)
    if not by:
        raise Misconfigured("the exporter left every int8 variant out; the lines above say why")
    return [
        row(*key, metric, values, seconds=spent[key])
        for key, metrics in by.items()
        for metric, values in metrics.items()
    ]


BENCH: Final = Bench(
    name="int8",
    run=run,
    goals=(Goal(_LOST, 1.0), Goal(_AGREE, 98.0, above=True)),
)
