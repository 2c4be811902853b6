"""Made-up runs of ``lichen bench qqr``, and a made-up data set in UCI-HAR's shapes."""

import os
import signal
from dataclasses import replace

import numpy as np

from lichen_lab.benchmarks.studies.qqr.settings import Outcome, Setting, evaluated
from lichen_lab.simulation.data.access.split import Split
from models.contract import WindowSet
from protocol.errors import Misconfigured

SENSORS = ("accelerometer", "gyroscope")
FILLS = ("prototypes", "mean feature", "zero input", "zero feature")
KINDS = ("global model", "own head", "own prototypes", "own head and prototypes")
PROBES = {
    "dead_sensor": list(SENSORS),
    "fillings": [f"{sensor}: {fill}" for sensor in SENSORS for fill in FILLS],
    "unseen_class": [f"{what}, {how}" for what in ("recall", "others") for how in ("with", "without")],
    "personal": [f"{kind}: {sensors}" for kind in KINDS for sensors in ("all sensors", "one sensor missing")],
}


def made_up(setting: Setting) -> Outcome:
    """An outcome that depends on nothing but the setting: rising curves, bytes that grow by the round."""
    rng = np.random.default_rng(int(setting.key(), 16) % 2**32)
    level, each = rng.uniform(0.8, 0.9), {"float32": 400, "int8": 100, "int4": 50, "int2": 25}[setting.codec]
    rounds = [r for r in range(1, setting.rounds + 1) if evaluated(r, setting.rounds)]
    return Outcome(
        curve={r: float(level * (1 - np.exp(-r / 8)) + rng.normal(0, 0.004)) for r in rounds},
        bytes_at={r: 5 * each * r for r in rounds},
        bytes_up={"head": 4 * each * setting.rounds, "frame": each * setting.rounds},
        recall_K=[0.5] * 6,
        probes={p: {name: float(rng.uniform(50, 90)) for name in PROBES[p]} for p in setting.probes},
        refused=0,
        seconds=1.0,
    )


def killed_in_seed_1(setting: Setting) -> Outcome:
    """A worker that the kernel kills on its way."""
    if setting.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return made_up(setting)


def refused_in_seed_1(setting: Setting) -> Outcome:
    """A run that cannot be made."""
    if setting.seed == 1:
        raise Misconfigured("no such data")
    return made_up(setting)


def made_split(people: tuple[int, ...], seed: int, each: int = 10) -> Split:
    """Windows of six classes that tell themselves by frequency; ``each`` of a class and person."""
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
    return Split(windows, person_B)


def tiny(setting: Setting, **flow: object) -> Setting:
    """The setting on a few windows, for two rounds."""
    small = {"devices": 2, "pool": 120, "size": 64, "step": 16, **flow}
    return replace(setting, flow=replace(setting.flow, **small), rounds=2)  # type: ignore[arg-type]
