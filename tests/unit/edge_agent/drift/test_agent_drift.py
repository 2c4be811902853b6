"""Drift: a sensor fault alarms, nights do not; on real recordings, through restarts and clock steps."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from edge_agent.config.agent import DriftSettings
from edge_agent.drift.monitor import (
    BINS,
    HOURS,
    LEAST,
    MAX_CLASSES,
    MAX_SUBSETS,
    REST,
    DriftMonitor,
    StoredDrift,
    distance,
    histograms,
)
from edge_agent.drift.service import DRIFT_FILE, DriftService
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sensor_faults import SensorFault, inject
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Target
from runtime.storage.files import write_atomic
from tests.support.clock import ManualClock
from tests.support.services import beside, until

BEGAN = 1_700_000_000.0
NAMES = ("acc", "gyr")
BOTH = np.ones((40, 2), bool)


def sure(rng, n=40, share=0.9):
    """Probabilities of three classes; ``share``: of windows whose class is clear."""
    p = rng.dirichlet([1, 1, 1], n)
    clear = rng.random(n) < share
    p[clear] = 0.97 * np.eye(3)[rng.integers(0, 3, n)][clear] + 0.01
    return p.astype(np.float32)


def run(monitor, hours, answers, wall=BEGAN):
    """Feed an hour's windows and judge, hour by hour; the hours in which the state changed, and the time."""
    changed = []
    for hour in hours:
        p = answers(hour)
        monitor.add(wall, NAMES, np.ones((len(p), 2), bool), p)
        wall += 3600.0
        if monitor.judge(wall):
            changed.append(hour)
    return changed, wall


def test_answers_as_in_the_first_days_never_drift_and_others_do_until_they_are_back():
    rng, monitor = np.random.default_rng(1), DriftMonitor("b" * 64, 3, 200)
    changed, wall = run(monitor, range(24 * 10), lambda _: sure(rng))
    assert (changed, monitor.since) == ([], None)
    assert monitor.finding.ratio < 1
    changed, wall = run(monitor, range(48), lambda _: sure(rng, share=0.2), wall)
    assert len(changed) == 1
    assert monitor.since is not None
    changed, _ = run(monitor, range(72), lambda _: sure(rng), wall)
    assert len(changed) == 1, "it ends once, and does not flap"
    assert monitor.since is None


def test_nights_are_no_drift():
    rng, monitor = np.random.default_rng(2), DriftMonitor("b" * 64, 3, 200)

    def answers(hour):
        if 7 <= hour % 24 < 23:
            return sure(rng)
        return (0.9 * np.eye(3)[np.zeros(40, int)] + 0.033).astype(np.float32)  # asleep

    changed, _ = run(monitor, range(24 * 14), answers)
    assert changed == []


def test_nothing_is_said_without_windows_enough_or_before_the_reference_and_a_day_are_over():
    rng, monitor = np.random.default_rng(3), DriftMonitor("b" * 64, 2, 200)
    _, wall = run(monitor, range(24 * 2), lambda _: sure(rng))
    run(monitor, range(HOURS - 2), lambda _: sure(rng, share=0.0), wall)
    assert monitor.finding is None
    few = DriftMonitor("b" * 64, 2, 200)
    _, wall = run(few, range(24 * 2), lambda _: sure(rng))
    run(few, range(48), lambda _: sure(rng, 4, 0.0), wall)
    assert few.finding is None, "96 windows in a day"


def test_a_restart_goes_on_and_steps_of_the_clock_are_no_time():
    rng, monitor = np.random.default_rng(4), DriftMonitor("b" * 64, 2, 200)
    _, wall = run(monitor, range(30), lambda _: sure(rng))
    left = monitor.reference_left_s
    monitor.add(wall - 1e8, NAMES, BOTH, sure(rng))  # the clock is set back, and later forward by years
    monitor.add(wall + 1e9, NAMES, BOTH, sure(rng))
    assert monitor.reference_left_s == left
    again = DriftMonitor.of(StoredDrift.model_validate_json(monitor.stored().model_dump_json()), 2, 200)
    _, wall = run(again, range(24 * 3), lambda _: sure(rng), wall + 1e9)
    changed, _ = run(again, range(48), lambda _: sure(rng, share=0.1), wall)
    assert len(changed) == 1
    assert len(again.stored().model_dump_json()) < 30_000


@pytest.mark.long
def test_what_is_stored_is_bounded():
    rng, monitor = np.random.default_rng(5), DriftMonitor("b" * 64, 31, 50)
    names = tuple(f"m{n}" for n in range(12))
    wall = BEGAN
    for _ in range(24 * 40):
        p = rng.dirichlet(np.ones(200), 30).astype(np.float32)
        monitor.add(wall, names, rng.random((30, 12)) < 0.5, p)
        wall += 3600.0
        monitor.judge(wall)
    stored = monitor.stored()
    assert max(len(day) for day in stored.reference) <= MAX_SUBSETS + 1
    assert REST in stored.reference[-1]
    assert len(stored.hours) <= HOURS + 1
    assert {len(counts) for day in stored.reference for counts in day.values()} == {2 * BINS + MAX_CLASSES}


def test_distances_are_those_of_hellinger():
    one, other = (
        histograms(np.eye(3, dtype=np.float32)[[0, 0]]),
        histograms(np.eye(3, dtype=np.float32)[[1, 1]]),
    )
    assert distance(one, one) == 0
    assert distance(one, other) == 1
    mixed = histograms(np.eye(3, dtype=np.float32)[[0, 1]])
    assert distance(one, mixed) == pytest.approx(np.sqrt(1 - np.sqrt(0.5)))


def learned(task, windows):
    """A model of real windows: multinomial regression on means, deviations and steps."""

    def features(windows: WindowSet):
        parts = [
            (x.mean(2), x.std(2), np.abs(np.diff(x, axis=2)).mean(2))
            for x in (windows.x[name].astype(np.float64) for name in task.modality_names)
        ]
        return np.concatenate([one for part in parts for one in part], axis=1)

    known = windows.y_B >= 0
    raw, y = features(windows)[known], windows.y_B[known]
    mean, spread = raw.mean(0), raw.std(0) + 1e-9
    x = np.c_[(raw - mean) / spread, np.ones(len(raw))]
    weights = np.zeros((x.shape[1], len(task.labels)))

    def softmax(z):
        p = np.exp(z - z.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)

    for _ in range(400):
        weights -= 0.5 * (
            x.T @ (softmax(x @ weights) - np.eye(len(task.labels))[y]) / len(x) + 1e-3 * weights
        )

    def predict(windows: WindowSet):
        x = (features(windows) - mean) / spread
        return softmax(np.c_[x, np.ones(len(x))] @ weights).astype(np.float32)

    return predict


@pytest.fixture(scope="module")
def real():
    try:
        series = spar.load()
    except Misconfigured as error:
        pytest.skip(f"SKIPPED: {error}")
    task = spar_fleet.task(1)

    def windows(recorded):
        return spar_fleet.windows(task, recorded)

    others = spar.recording(spar.on_one_wrist(spar.of_person(series, 1, 2, 3, 4, 5, 6)))
    return task, series, windows, learned(task, windows(others))


@pytest.mark.data
@pytest.mark.parametrize("person", [7, *(pytest.param(one, marks=pytest.mark.long) for one in (8, 9))])
def test_a_fault_of_a_real_sensor_after_the_first_days_alarms_and_a_whole_sensor_does_not(real, person):
    task, series, windows, predict = real
    recorded = spar.recording(spar.on_one_wrist(spar.of_person(series, person)))
    end = spar.seconds(recorded) + 1

    def answers_with(kind, amount):
        fault = SensorFault(kind, "gyroscope", -1.0, end, amount=amount)
        hurt = windows(inject(recorded, [fault], person))
        return hurt, predict(hurt)

    whole = windows(recorded)
    clean = whole, predict(whole)
    assert (clean[1].argmax(1) == whole.y_B)[whole.y_B >= 0].mean() > 0.75, "the model knows its task"

    def alarms(after, seed, begins=24 * 5, days=10):
        """Exercises by day in another order each hour, two of them by night; the fault begins on day 5."""
        rng, monitor, wall, found = np.random.default_rng(seed), DriftMonitor("b" * 64, 3, 200), BEGAN, []
        for hour in range(24 * days):
            had, p_BK = clean if hour < begins else after
            if 7 <= hour % 24 < 22:
                at = rng.integers(0, len(p_BK), 5)
                rows = np.concatenate([(start + np.arange(8)) % len(p_BK) for start in at])
            else:
                rows = rng.choice(np.flatnonzero(np.isin(had.y_B, [0, 3])), 6)
            monitor.add(wall, task.modality_names, had.present_BM[rows], p_BK[rows])
            wall += 3600.0
            if monitor.judge(wall):
                found.append((hour, monitor.since is not None))
        return found

    seeds = range(100, 108)  # not those that the limits were chosen with
    assert [alarms(clean, seed) for seed in seeds] == [[]] * len(seeds)
    for kind, amount in (("noise", 0.0), ("stuck", 0.0), ("gain", 4.0)):
        hurt = answers_with(kind, amount)
        for seed in seeds[:3]:
            found = alarms(hurt, seed)
            assert [begins for _, begins in found] == [True], (kind, seed)
            assert 24 * 5 <= found[0][0] < 24 * 7, "within two days"


def batch(p, digest="d" * 64, error=""):
    target = Target(name=LABEL, labels=("a", "b", "c"))
    modalities = tuple(SimpleNamespace(name=name) for name in NAMES)
    manifest = SimpleNamespace(predicted=(target,), modalities=modalities)
    return SimpleNamespace(
        digest=digest, manifest=manifest, error=error, answers={LABEL: p}, read_NR=np.ones((len(p), 2), bool)
    )


async def test_the_service_says_why_and_a_new_model_begins_again(tmp_path):
    clock, rng = ManualClock(), np.random.default_rng(6)
    service = DriftService(DriftSettings(reference_days=1), tmp_path, clock)
    async with beside(service.run(), forever=True):

        async def hours(count, share):
            for _ in range(count):
                service.observe(batch(sure(rng, share=share)))
                await clock.advance(3600.0, turns=1)
                await until(lambda: clock._sleepers)  # a write in a thread is over

        await until(lambda: clock._sleepers)
        await hours(50, 0.9)
        assert not [*service.waits()]
        assert service.ratio <= 1
        await hours(48, 0.1)
        [wait] = service.waits()
        assert wait.what == "drift"
        assert "from acc+gyr are not as in its first 1 days" in wait.why
        assert service.ratio > 1
        assert service.status()["drift"]["drifts"]
        assert service.status()["drift"]["limit"] >= LEAST
        stored = StoredDrift.model_validate_json((tmp_path / DRIFT_FILE).read_bytes())
        assert stored.bundle == "d" * 64
        service.observe(batch(sure(rng), digest="e" * 64))
        assert not [*service.waits()]
        assert service.ratio is None
    (tmp_path / DRIFT_FILE).write_text("{")
    damaged = DriftService(DriftSettings(), tmp_path, clock)
    async with beside(damaged.run(), forever=True):
        await until(lambda: len(clock._sleepers) > 1)  # the first is of the service before
        assert damaged.ratio is None


async def test_windows_that_come_while_the_disk_writes_are_in_the_file_after_an_orderly_end(
    tmp_path, monkeypatch
):
    clock, rng = ManualClock(), np.random.default_rng(7)
    service = DriftService(DriftSettings(reference_days=1), tmp_path, clock)
    writes = []

    def slow(path, data):
        if not writes:
            service.observe(batch(sure(rng, 40)))
        writes.append(data)
        write_atomic(path, data)

    monkeypatch.setattr("edge_agent.drift.service.write_atomic", slow)
    async with beside(service.run(), forever=True):
        await asyncio.sleep(0.05)
        service.observe(batch(sure(rng, 40)))
        await clock.advance(3600.0, turns=1)
        await until(lambda: writes)
    stored = StoredDrift.model_validate_json((tmp_path / DRIFT_FILE).read_bytes())
    assert sum(sum(counts[:BINS]) for day in stored.reference for counts in day.values()) == 80
