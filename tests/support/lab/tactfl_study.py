"""Made-up runs of ``lichen bench tactfl``, a made fleet of a small task, made data sets for its fleets."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from lichen_lab.benchmarks.studies.tactfl.data import dsads as dsads_fleet
from lichen_lab.benchmarks.studies.tactfl.data import hapt as hapt_fleet
from lichen_lab.benchmarks.studies.tactfl.data import uci_har as har_fleet
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TUNED,
    TactflOutcome,
    TactflRun,
    TactflSetting,
    UnlabelledDevice,
    UnlabelledFleet,
)
from lichen_lab.benchmarks.studies.tactfl.variants import METHOD
from lichen_lab.simulation.data.sets import dsads, hapt, uci_har
from tests.support.lab import made_data
from tests.support.methods import tactfl_cases

TINY = TactflSetting(
    rounds=2,
    batch=16,
    width=4,
    depth=2,
    feature_dim=4,
    hidden_dim=4,
    lr=0.01,
    tune_epochs=4,
    tune={"lr": 0.01},
    options={"head_epochs": 10},
)
_WINDOWS = 12
_SAMPLES = 1000


def made_up(one: TactflRun) -> TactflOutcome:
    """An outcome of five devices, the first of them broken, that depends only on the run."""
    rng = np.random.default_rng(int(one.key(), 16) % 2**32)
    tests = (HERE, hapt_fleet.WORN)
    scores = {
        end: {name: {"f1": float(rng.uniform(50, 90)), "accuracy": 70.0} for name in tests}
        for end in (TRAINED, TUNED)
    }
    names = [f"d{at:02d}" for at in range(5)]
    ours = one.method == METHOD
    return TactflOutcome(
        scores,
        [(one.setting.rounds // 2, 50.0), (one.setting.rounds, scores[TRAINED][HERE]["f1"])],
        shares={name: 0.5 if name == "d00" else 1.125 for name in names} if ours else {},
        kinds={name: "broken: noise" if name == "d00" else "" for name in names},
        seconds=1.0,
    )


def fleet(devices: int = 3, seed: int = 0) -> UnlabelledFleet:
    """Devices with sines of a frequency per class; the last one lacks the second modality."""
    task = tactfl_cases.task()
    members = [
        UnlabelledDevice(f"d{at}", "", tactfl_cases.windows(task, 24, seed + at)) for at in range(devices)
    ]
    last = replace(members[-1], windows=tactfl_cases.without(members[-1].windows, 1))
    labelled, test = (tactfl_cases.windows(task, 30, seed + 100 + at, labelled=True) for at in range(2))
    return UnlabelledFleet("made", task, (*members[:-1], last), labelled, {HERE: test})


def write_har(root: Path) -> None:
    """Nine training people and two others, each one stream: windows overlap by half, no two are the same."""
    rng = np.random.default_rng(5)
    parts = {}
    for part, people in (("train", range(3, 12)), ("test", (2, 4))):
        x, y, subject, goes_on = [], [], [], []
        for person in people:
            stream_CT = rng.normal(0, 1, (9, 64 * (_WINDOWS + 1))).astype(np.float32)
            for at in range(_WINDOWS):
                x.append(stream_CT[:, 64 * at : 64 * at + uci_har.SAMPLES])
                y.append(at % 6 + 1)
                subject.append(person)
                goes_on.append(at > 0)
        parts[part] = {
            "x": np.stack(x),
            "y": np.array(y, np.int8),
            "subject": np.array(subject, np.int8),
            "continues_previous": np.array(goes_on),
        }
    made_data.write_har(root, parts)  # type: ignore[arg-type]  # its keys are the parts
    har_fleet._split.cache_clear()
    har_fleet._before.cache_clear()


def write_dsads(root: Path, windows: int = 6) -> None:
    """Eight people with a few windows each; a value is its channel, 1000 times its person, and noise."""
    rng = np.random.default_rng(7)
    (root / dsads.FOLDER).mkdir(parents=True)
    for person in dsads.PEOPLE:
        noise = rng.integers(0, 500, (windows, 45, dsads.SAMPLES))
        np.savez(
            root / dsads.FOLDER / dsads.file_name(person),
            x=(noise + 1000 * person + np.arange(45)[:, None]).astype(np.int16),
            scale=np.full(45, 0.5, np.float32),
            y=(np.arange(windows) % 19).astype(np.int8),
            segment=np.ones(windows, np.int8),
        )
    dsads_fleet._person.cache_clear()


def write_hapt(root: Path) -> None:
    """A recording of 20 s of each of the 30 people; the phone upright, its first axis along gravity."""
    rng = np.random.default_rng(6)
    people = len(hapt.PEOPLE)
    acc = rng.normal((1.0, 0.0, 0.0), 0.1, (people * _SAMPLES, 3))
    gyro = rng.normal(0, 0.3, (people * _SAMPLES, 3))
    label = np.repeat(np.tile([1, 2, 4, -1, 5], people), _SAMPLES // 5)
    (root / hapt.FOLDER).mkdir(parents=True)
    np.savez(
        root / hapt.FOLDER / hapt.FILE,
        acc=(acc * 720).astype(np.int16),
        gyro=(gyro * 720).astype(np.int16),
        acc_lsb_g=np.array(1 / 720),
        gyro_lsb_rad_s=np.array(1 / 720),
        label=label.astype(np.int8),
        rec_start=np.arange(people, dtype=np.int32) * _SAMPLES,
        rec_length=np.full(people, _SAMPLES, np.int32),
        rec_subject=np.array(hapt.PEOPLE, np.int8),
        rec_number=np.ones(people, np.int8),
    )
    hapt_fleet._sessions.cache_clear()
    hapt_fleet._everybody.cache_clear()
