"""How far honest updates of one round lie apart: what a screen by norm must leave alone.

Real QQR training on real data, split unevenly on purpose: SPAR's people with failing sensors (the demo's
fleet), and UCI-HAR in the QQR paper's setting (Dirichlet shares of the classes, an evolving set, rounds with
missing and noisy modalities). Of every round and part of the model, each device's root mean square over the
median of the round's devices.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, ResultRow, Say, row
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar, uci_har
from lichen_lab.simulation.data.streams import Evolving, RoundStream, dirichlet_pools, rng_of
from lichen_lab.simulation.training.runner import simulate
from models.aggregation.update_norms import magnitudes
from models.contract import Update, WindowSet
from models.data.window_set import select
from protocol.errors import Misconfigured
from protocol.tasks.folding import Robust
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task, Window

_POOL: Final = 800
_PURPOSE: Final = 7
UNSCREENED: Final = Robust(outlier_factor=0)


class NormGauge:
    """Collects, for each part, every update's magnitude relative to its round's median."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = {}

    def see(self, updates: Iterable[Update]) -> None:
        """Add one round's updates."""
        by_part: dict[str, list[float]] = {}
        for update in updates:
            for part, value in magnitudes(update.tensors).items():
                by_part.setdefault(part, []).append(value)
        for part, values in by_part.items():
            middle = float(np.median(values))
            if len(values) > 2 and middle > 0:  # noqa: PLR2004 - of two, the median says nothing
                self.ratios.setdefault(part, []).extend(value / middle for value in values)

    def rows(self, dataset: str, setting: str, seconds: float) -> Iterator[ResultRow]:
        """Median, 99th percentile and maximum."""
        for part, ratios in sorted(self.ratios.items()):
            for metric, value in (
                ("99 % of the updates stay below, times the median", float(np.quantile(ratios, 0.99))),
                ("largest, times the median", max(ratios)),
            ):
                yield row(dataset, part, setting, metric, [value], seconds=seconds)


def uci_har_task(rounds: int, seed: int) -> Task:
    """Six activities from a waist-worn phone."""
    small = Encoder(kind="cnn1d", width=16, depth=4)
    return Task(
        name="uci-har",
        labels=uci_har.LABELS,
        modalities=uci_har.MODALITIES,
        window=Window(length_s=2.56),
        network=Network(encoders={"accelerometer": small, "gyroscope": small}, feature_dim=64, hidden_dim=64),
        rounds=Rounds(count=rounds, min_windows=1),
        robust=UNSCREENED,
        config={"lr": 0.16, "pce_on_incomplete": True},
        seed=seed,
    )


def uci_har_devices(windows: WindowSet, alpha: float, seed: int) -> dict[str, RoundStream]:
    """Ten devices with 40 to 600 windows, uneven classes, and missing and noisy modalities."""
    rng = rng_of(seed, _PURPOSE)
    sizes = [40, 40, 80, 80, 150, 150, 300, 300, 600, 600]
    pools = dirichlet_pools(windows.y_B, len(sizes), _POOL, alpha, rng)
    return {
        f"d{number}": Evolving(
            select(windows, pool), 1000 * seed + number, size, max(4, size // 20), 0.5, 0.5, 0.3, 0.0
        )
        for number, (size, pool) in enumerate(zip(sizes, pools, strict=True))
    }


def _measured(
    dataset: str,
    setting: str,
    say: Say,
    runs: Iterable[tuple[Task, Mapping[str, WindowSet | RoundStream], int]],
) -> list[ResultRow]:
    gauge, started = NormGauge(), time.perf_counter()
    for task, devices, seed in runs:
        say(f"{dataset}, {setting}, seed {seed}")
        simulate(task, devices, None, seed, watch=lambda _, updates: gauge.see(updates))
    return list(gauge.rows(dataset, setting, time.perf_counter() - started))


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds of 20 rounds each; quick: one seed, 5 rounds."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    seeds, rounds = (range(1), 5) if quick else (range(3), 20)
    series = spar.load()

    def of_spar(seed: int) -> tuple[Task, Mapping[str, WindowSet | RoundStream], int]:
        task = spar_fleet.task(rounds, seed=seed).model_copy(update={"robust": UNSCREENED})
        return task, spar_fleet.device_windows(task, series, seed), seed

    rows = _measured("SPAR", "six people, sensors fail", say, map(of_spar, seeds))
    try:
        windows = uci_har.load("train").windows
    except Misconfigured as error:
        say(f"UCI-HAR is left out: {error}")
        return rows
    for alpha in (0.1, 1.0):
        of_har = ((uci_har_task(rounds, seed), uci_har_devices(windows, alpha, seed), seed) for seed in seeds)
        rows += _measured("UCI-HAR", f"10 devices, 40 to 600 windows, Dirichlet {alpha:g}", say, of_har)
    return rows


BENCH: Final = Bench(name="norms", run=run)
