"""One malicious device in five: what it costs the others, with the defaults and with robust folds.

Real QQR training on SPAR, the demo's first five devices; which of them is malicious changes with the seed.
Updates go through the real frames, checks, screening and folding. The baseline is the same fleet without that
device: same data, initial model and order of samples, so that an attack that is refused in every round costs
exactly nothing.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.support.hostile_updates import ATTACKS, Attack, flipped
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sets import spar
from lichen_lab.simulation.training.runner import History, simulate
from models.data import window_set
from protocol.tasks.folding import Robust
from protocol.tasks.task import Task

if TYPE_CHECKING:
    from models.contract import WindowSet

DEVICES: Final = spar_fleet.DEVICES[:5]
DEFAULTS: Final = "defaults"
FOLDS: Final[Mapping[str, Mapping[str, Any]]] = {
    DEFAULTS: {},
    "clip": {"fold": "clip"},
    "trimmed mean": {"fold": "trimmed_mean"},
    "median": {"fold": "median"},
    "median, geometric median of prototypes": {"fold": "median", "prototypes": "geometric_median"},
}
BELOW_THE_SCREEN: Final = 0.5 * Robust().outlier_factor
"""Scale of a sign flip that a screen by norm cannot detect: honest updates have such norms."""
_COST: Final = "points below the fleet without it"
_COST_INFO: Final = "points below the fleet without it (information)"
_ACCURACY: Final = "accuracy on unseen people, %"
_REFUSED: Final = "its updates that were refused, %"


class HostileStudy:
    """The fleet of one seed, trained under each attack."""

    def __init__(self, series: Sequence[spar.Series], seed: int, rounds: int) -> None:
        self.seed, self.rounds = seed, rounds
        self.bad = DEVICES[seed % len(DEVICES)].name
        task = self.task({})
        self.test = spar_fleet.windows(task, spar_fleet.unseen(tuple(series)))
        self._own: dict[str, WindowSet] = {
            one.name: spar_fleet.windows(task, spar_fleet.device_recording(tuple(series), one, seed).recorded)
            for one in DEVICES
        }

    def task(self, robust: Mapping[str, Any]) -> Task:
        """The demo's task with a ``[robust]`` table."""
        made = spar_fleet.task(self.rounds, seed=self.seed)
        return made.model_copy(update={"robust": Robust.model_validate(robust)})

    def run(self, robust: Mapping[str, Any], attack: Attack | None, *, absent: bool = False) -> History:
        """Train with the device malicious, honest (no attack) or absent."""
        task = self.task(robust)
        devices = dict(self._own)
        if absent:  # its place stays, so that the others draw the same order of samples
            devices[self.bad] = window_set.empty(task)
        tamper = {} if attack is None else {self.bad: attack}
        return simulate(task, devices, self.test, self.seed, evaluate_every=self.rounds, tamper=tamper)

    def refused_share(self, history: History) -> float:
        """Share of rounds in which the device was refused, %."""
        return 100 * sum(self.bad in one.refused for one in history.rounds) / len(history.rounds)


def _accuracy(history: History) -> float:
    return 100 * history.curve()[-1]


def _rows(setting: str, found: Sequence[tuple[float, float, float, float]], cost: str) -> Iterator[ResultRow]:
    """``found``: per seed accuracy, the baseline's, share refused, seconds."""
    seconds = sum(one[3] for one in found)
    for metric, values in (
        (_ACCURACY, [one[0] for one in found]),
        (cost, [one[1] - one[0] for one in found]),
        (_REFUSED, [one[2] for one in found]),
    ):
        yield row("SPAR, 5 devices", "qqr", setting, metric, values, seconds=seconds)


def study(studies: Sequence[HostileStudy], say: Say, *, folds: Sequence[str]) -> list[ResultRow]:
    """All attacks with the defaults; then sign flips below the screen's limit, for each of ``folds``."""
    cases: list[tuple[str, Mapping[str, Any], Attack | None, str]] = [
        (f"{DEFAULTS}: {name}", {}, attack, _COST) for name, attack in ATTACKS.items()
    ]
    cases.append((f"{DEFAULTS}: the device is honest", {}, None, _COST_INFO))
    for fold in folds:
        options = FOLDS[fold]
        cases += [
            (f"{fold}: sign flip x 1", options, flipped(1.0), _COST_INFO),
            (f"{fold}: sign flip x {BELOW_THE_SCREEN:g}", options, flipped(BELOW_THE_SCREEN), _COST_INFO),
        ]
        if options:
            cases.append((f"{fold}: the device is honest", options, None, _COST_INFO))
    base = []
    for one in studies:
        say(f"seed {one.seed}: the fleet without {one.bad}")
        base.append(_accuracy(one.run({}, None, absent=True)))
    rows = [row("SPAR, 5 devices", "qqr", f"{DEFAULTS}: without the device", _ACCURACY, base)]
    for setting, options, attack, cost in cases:
        found = []
        for one, without in zip(studies, base, strict=True):
            say(f"seed {one.seed}: {setting}")
            started = time.perf_counter()
            history = one.run(options, attack)
            seconds = time.perf_counter() - started
            found.append((_accuracy(history), without, one.refused_share(history), seconds))
        rows += _rows(setting, found, cost)
    return rows


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Three seeds of 20 rounds, all folds; quick: one seed, 4 rounds, the defaults alone."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    series = spar.load()
    if quick:
        return study([HostileStudy(series, 0, 4)], say, folds=())
    return study([HostileStudy(series, seed, 20) for seed in range(3)], say, folds=tuple(FOLDS))


BENCH: Final = Bench(
    name="hostile",
    run=run,
    goals=(Goal(_COST, 2.0),),
)
