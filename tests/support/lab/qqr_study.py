"""Made-up runs of ``lichen bench qqr``, and a made-up data set in UCI-HAR's shapes."""

import os
import signal
from dataclasses import replace

import numpy as np

from lichen_lab.benchmarks.studies.qqr.settings import QqrOutcome, QqrRun, evaluated
from lichen_lab.simulation.data.access.split import DataSplit
from models.contract import WindowSet
from protocol.errors import Misconfigured

SENSORS = ("accelerometer", "gyroscope")
FILLS = ("prototypes", "mean feature", "zero input", "zero feature")
KINDS = ("global model", "own head", "own prototypes", "own head and prototypes")
PROBES = {
    "dead_sensor": list(SENSORS),
    "fillings": [f"{sensor}: {fill}" for sensor in SENSORS for fill in FILLS],
    "unseen_class": [f"{what}, {how}" for what in ("recall", "others") for how in ("with", "without")],
    "online_loss": [str(round_) for round_ in range(1, 41)],
    "personal": [f"{kind}: {sensors}" for kind in KINDS for sensors in ("all sensors", "one sensor missing")],
}


def made_up(one: QqrRun) -> QqrOutcome:
    """An outcome that depends only on the run: rising curves, bytes that grow by the round."""
    rng = np.random.default_rng(int(one.key(), 16) % 2**32)
    level, each = (
        rng.uniform(0.8, 0.9),
        {"float32": 400, "int8": 100, "int4": 50, "int2": 25}[one.setting.codec],
    )
    rounds = [r for r in range(1, one.setting.rounds + 1) if evaluated(r, one.setting.rounds)]
    return QqrOutcome(
        curve={r: float(level * (1 - np.exp(-r / 8)) + rng.normal(0, 0.004)) for r in rounds},
        bytes_at={r: 5 * each * r for r in rounds},
        bytes_up={"head": 4 * each * one.setting.rounds, "frame": each * one.setting.rounds},
        recall_K=[0.5] * 6,
        probes={p: {name: float(rng.uniform(50, 90)) for name in PROBES[p]} for p in one.probes},
        refused=0,
        seconds=1.0,
    )


def killed_in_seed_1(one: QqrRun) -> QqrOutcome:
    """A worker that the kernel kills during its job."""
    if one.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return made_up(one)


def refused_in_seed_1(one: QqrRun) -> QqrOutcome:
    """A run that cannot be made."""
    if one.seed == 1:
        raise Misconfigured("no such data")
    return made_up(one)


def made_split(people: tuple[int, ...], seed: int, each: int = 10) -> DataSplit:
    """Windows of six classes with different frequencies; ``each`` of a class and person."""
    rng = np.random.default_rng(seed)
    person_B = np.repeat(np.array(people, np.int64), 6 * each)
    y_B = np.tile(np.repeat(np.arange(6, dtype=np.int64), each), len(people))
    t_T = np.arange(128) / 50
    wave_BT = np.sin(2 * np.pi * (1 + y_B[:, None]) * t_T[None, :] + rng.uniform(0, 6, (len(y_B), 1)))
    x = {
        name: (wave_BT[:, None, :] + rng.normal(0, 0.1, (len(y_B), 3, 128))).astype(np.float32)
        for name in SENSORS
    }
    count = len(y_B)
    windows = WindowSet(x, np.ones((count, 2), np.bool_), np.ones((count, 2), np.float32), y_B)
    return DataSplit(windows, person_B)


def tiny(one: QqrRun, **flow: object) -> QqrRun:
    """The run on a few windows, for two rounds."""
    small = {"devices": 2, "pool": 120, "size": 64, "step": 16, **flow}
    conditions = replace(one.conditions, **small)  # type: ignore[arg-type]
    return replace(one, conditions=conditions, setting=replace(one.setting, rounds=2))
