"""A fleet of synthetic data with any number of inputs, targets and devices: for cost, quick runs and tests.

A window shows its class in every modality as a wave of that class's frequency, with a strength of its own and
noise. Targets take turns: classification (``label`` first), the strength (regression), and the clean wave
(generation). Device i reads one input and learns one target, i modulo their numbers, and every third device
also the next ones.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.benchmarks.studies.disentafl.data.judges import RandomFeatureJudge
from lichen_lab.benchmarks.studies.disentafl.data.windows import seen_by, truths, words
from lichen_lab.benchmarks.studies.disentafl.settings import TargetDevice, TargetFleet, WindowJudge
from lichen_lab.simulation.data.access.split import complete
from models.contract import FloatArray, Profile, WindowSet
from models.data.window_set import select
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import LABEL, Modality, Target, Task, Window

NAME: Final = "made"
CLASSES: Final = 3
SAMPLES: Final = 16
CHANNELS: Final = 2
_CLEAN: Final = "clean"
_NOISE: Final = 0.5
_BOTH: Final = 3
_LABELS: Final = tuple(f"wave {number}" for number in range(CLASSES))


def task(inputs: int = 2, targets: int = 3) -> Task:
    """A task with that number of inputs and targets."""
    kinds = [_target(number) for number in range(1, targets)]
    clean = [_modality(_CLEAN, reads=False)] if any(t.kind == "generation" for t in kinds) else []
    return Task(
        name=NAME,
        method="disentafl",
        labels=_LABELS,
        modalities=(*(_modality(f"m{number}") for number in range(inputs)), *clean),
        targets=tuple(kinds),
        window=Window(length_s=1.0, stride_s=1.0),
        rounds=Rounds(min_windows=1),
    )


def _modality(name: str, *, reads: bool = True) -> Modality:
    return Modality(name=name, channels=CHANNELS, rate_hz=SAMPLES, input=reads)


def _target(number: int) -> Target:
    name = f"t{number}"
    turns = (
        Target(name=name, labels=_LABELS),
        Target(name=name, kind="regression", offset=1.0, scale=0.3),
        Target(name=name, kind="generation", modality=_CLEAN),
    )
    return turns[number % len(turns)]


def profile(task: Task, device: int) -> Profile:
    """The inputs and targets of the device with that number."""
    both = device % _BOTH == _BOTH - 1
    chosen = [
        {names[device % len(names)], names[(device + both) % len(names)]}
        for names in (task.input_names, task.target_names)
    ]
    return Profile(
        tuple(m for m in task.input_names if m in chosen[0]),
        tuple(o for o in task.target_names if o in chosen[1]),
    )


def build(
    seed: int, *, inputs: int = 2, targets: int = 3, devices: int = 6, train: int = 24, test: int = 24
) -> TargetFleet:
    """Build the fleet.

    Args:
        seed: of noise, strengths and the judge.
        inputs: modalities that can be read.
        targets: ``label`` and others.
        devices: number of devices.
        train: a device's training windows.
        test: its test windows.
    """
    rng = np.random.default_rng([seed, 6])
    learned = task(inputs, targets)
    members = []
    for at in range(devices):
        own, windows = profile(learned, at), _windows(learned, train + test, rng)
        truth = truths(learned, own, {_CLEAN: windows.y_B})
        mine, first, last = seen_by(learned, own, windows), np.arange(train), np.arange(train, train + test)
        members.append(
            TargetDevice(
                f"d{at:02d}",
                words(own),
                own,
                select(mine, first),
                select(mine, last),
                {name: y_B[last] for name, y_B in truth.items()},
                {name: y_B[first] for name, y_B in truth.items()},
            )
        )
    return TargetFleet(NAME, learned, tuple(members), _judges(learned, seed))


def _windows(task: Task, count: int, rng: np.random.Generator) -> WindowSet:
    y_B: NDArray[np.int64] = rng.permutation(np.resize(np.arange(CLASSES), count)).astype(np.int64)
    strength_B = rng.uniform(0.5, 1.5, count).astype(np.float32)
    clean_BCT = _waves(y_B) * strength_B[:, None, None]
    x: dict[str, FloatArray] = {}
    for at, name in enumerate(task.modality_names):
        noise_BCT = rng.standard_normal(clean_BCT.shape).astype(np.float32)
        x[name] = clean_BCT if name == _CLEAN else np.roll(clean_BCT, at, axis=2) + _NOISE * noise_BCT
    values = {"classification": y_B.astype(np.float32), "regression": strength_B}
    targets = {t.name: values[t.kind] for t in task.targets if t.kind in values and t.name != LABEL}
    return complete(x, y_B, targets)


def _waves(y_B: NDArray[np.int64]) -> FloatArray:
    """(B, C, T): class k has k + 1 periods; the second channel is a quarter period behind."""
    turn_T = 2 * np.pi * np.arange(SAMPLES) / SAMPLES
    behind_C = np.pi / 2 * np.arange(CHANNELS)
    wave_BCT: FloatArray = np.sin((y_B[:, None, None] + 1) * turn_T - behind_C[:, None]).astype(np.float32)
    return wave_BCT


def _judges(task: Task, seed: int) -> dict[str, WindowJudge]:
    windows = _windows(task, 300, np.random.default_rng([seed, 8]))
    return {
        t.name: RandomFeatureJudge.fitted(windows.x[t.modality], windows.y_B, CLASSES, seed, hidden=64)
        for t in task.targets
        if t.modality is not None
    }
