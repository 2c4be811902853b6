"""Made-up runs of ``lichen bench labels``, and a made fleet of people whose windows are sines by class."""

import numpy as np

from lichen_lab.benchmarks.studies.labels.fleets import DevicePeople, LabelFleet, task_of
from lichen_lab.benchmarks.studies.labels.settings import (
    OWN,
    SPAR,
    UNMET,
    LabelOutcome,
    LabelRun,
    LabelSetting,
)
from models.contract import WindowSet

TINY = LabelSetting(labels=6, sessions=2, rounds=2, start_rounds=1, config={"batch": 16}, start_config={})


def made_up(one: LabelRun) -> LabelOutcome:
    """An outcome that depends only on the run."""
    rng = np.random.default_rng(int(one.key(), 16) % 2**32)

    def scores() -> dict[str, float]:
        return {UNMET: float(rng.uniform(60, 80)), OWN: float(rng.uniform(70, 90))}

    start = scores() if one.setting.start_rounds else {}
    bad = 40.0 if one.setting.any_quality else 0.0
    return LabelOutcome(scores(), scores(), start, float(one.setting.labels), bad, 5.0, seconds=1.0)


def windows(person: int, each: int, seed: int = 0) -> WindowSet:
    """``each`` windows of every class of SPAR's task: a class is a frequency, a person an offset."""
    task = task_of(SPAR)
    rng = np.random.default_rng((seed, person))
    y_B = rng.permutation(np.repeat(np.arange(len(task.labels)), each))
    t_T = np.arange(128) / 50
    wave_BT = np.sin(2 * np.pi * (1 + y_B[:, None]) * t_T + rng.uniform(0, 6, (len(y_B), 1)))
    x = {
        m.name: (0.05 * person + wave_BT[:, None] + rng.normal(0, 0.2, (len(y_B), 3, 128))).astype(np.float32)
        for m in task.modalities
    }
    count = len(y_B)
    return WindowSet(x, np.ones((count, 2), np.bool_), np.ones((count, 2), np.float32), y_B)


def fleet(devices: int = 2) -> LabelFleet:
    """Person 0 trains the start model, the last one evaluates, the others wear a device."""
    people = DevicePeople((0,), tuple(range(1, devices + 1)), (devices + 1,))
    return LabelFleet(
        task_of(SPAR),
        windows(0, 4),
        tuple(windows(person, 5) for person in people.devices),
        tuple(windows(person, 2, 1) for person in people.devices),
        windows(devices + 1, 4),
        people,
    )
