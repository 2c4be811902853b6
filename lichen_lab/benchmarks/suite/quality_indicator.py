"""The quality indicator against injected faults: what it finds, and what it finds that is not there.

Real streams, cut and judged by the agent's own code, with one kind of fault at a time on one modality in
three tenths of the time, after a first ``HEALTHY_S`` in which the sensor works. Every other recording has it
on the accelerometer, the rest on the gyroscope; the seed decides which. Thresholds were chosen on HAPT's
people 1 to 15. UCI-HAR's people are HAPT's: six of its nine test people are among those, 18, 20 and 24 not.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from edge_agent.windows.quality.meter import QualityMeter
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from lichen_lab.benchmarks.support.quality_streams import LOADERS, NAMES, TASK
from lichen_lab.benchmarks.support.quality_truth import JudgedWindow, TruthCount, clean, with_faults
from lichen_lab.simulation.data.sensor_faults import FaultKind, Recording, SensorFault, inject, plan_kind
from models.data.streams.windows import Windows
from protocol.errors import Misconfigured

HEALTHY_S: Final = 51.2
"""Length of a sensor's history before its first fault, which the indicator compares with."""
_BLOCK_S: Final = 25.6
_DRIFT_S: Final = 76.8
_SEEDS: Final = 5
_NO_FAULT: Final = "no fault"
_FALSE: Final = "false alarms, %"
_COST: Final = "CPU us a window"
_TIMED: Final = 256


@dataclass(frozen=True)
class QualityCase:
    """One kind of fault at one severity."""

    words: str
    kind: FaultKind
    amount: float = 0.0
    block_s: float = _BLOCK_S
    at_start: bool = False
    """Whether the fault begins with the first sample, without any healthy history."""

    def plan(self, recorded: Recording, modality: str, seed: int) -> list[SensorFault]:
        """The faults of one recording."""
        if self.at_start:
            return [SensorFault(self.kind, modality, 0.0, 2 * self.block_s, amount=self.amount)]
        end_s = float(recorded[f"{modality}/t"][-1])
        block_s = min(self.block_s, end_s - HEALTHY_S)
        return plan_kind(recorded, self.kind, modality, self.amount, seed, block_s=block_s, from_s=HEALTHY_S)


CASES: Final = (
    *(QualityCase(f"white noise, {db} dB", "noise", float(db)) for db in (20, 10, 5, 0)),
    QualityCase("white noise from the first sample, 5 dB", "noise", 5.0, at_start=True),
    QualityCase("stuck", "stuck"),
    *(QualityCase(f"clipped at {part:g} of the range", "clip", part) for part in (0.8, 0.5, 0.25)),
    *(QualityCase(f"gaps, {share:.0%} missing", "gaps", share) for share in (0.1, 0.2, 0.4)),
    *(
        QualityCase(f"gain drifts to x{factor:g}", "gain", factor, _DRIFT_S)
        for factor in (0.5, 1.5, 2.0, 4.0)
    ),
    QualityCase("gain drifts to x2, over the whole recording", "gain", 2.0, float("inf")),
)


def measure(dataset: str, recordings: Sequence[Recording], seeds: Sequence[int], say: Say) -> list[ResultRow]:
    """All rows of one data set."""
    started = time.perf_counter()
    sound = {name: TruthCount() for name in NAMES}
    before = [clean(TASK, recorded, sound) for recorded in recordings]
    seconds = time.perf_counter() - started
    rows = []
    for name, count in sound.items():
        rows.append(row(dataset, name, _NO_FAULT, _FALSE, [count.false_alarms or 0.0], seconds=seconds))
        for reason, given in count.reasons.items():
            if given:
                by = f"of them {reason}, %"
                rows.append(row(dataset, name, _NO_FAULT, by, [100 * given / count.sound], seconds=seconds))
    for case in CASES:
        say(f"{dataset}: {case.words}")
        rows += _rows(dataset, case, recordings, before, seeds)
    rows.append(row(dataset, "both", "one window at a time", _COST, [_microseconds(before)]))
    return rows


def _rows(
    dataset: str,
    case: QualityCase,
    recordings: Sequence[Recording],
    before: Sequence[JudgedWindow],
    seeds: Sequence[int],
) -> Iterator[ResultRow]:
    started = time.perf_counter()
    counts: dict[str, list[TruthCount]] = {name: [] for name in NAMES}
    others: dict[str, list[TruthCount]] = {name: [] for name in NAMES}
    for seed in seeds:
        for index, name in enumerate(NAMES):
            both = {one: TruthCount() for one in NAMES}
            for number, (recorded, seen) in enumerate(zip(recordings, before, strict=True)):
                if (number + seed) % len(NAMES) == index:
                    own = 1000 * seed + number
                    faults = case.plan(recorded, name, own)
                    with_faults(TASK, seen, inject(recorded, faults, own), faults, both)
            counts[name].append(both.pop(name))
            others[name] += both.values()
    seconds = (time.perf_counter() - started) / len(NAMES)
    for name in NAMES:
        for metric, values in (
            ("recall, %", [one.recall for one in counts[name]]),
            ("precision, %", [one.precision for one in counts[name]]),
            ("F1, %", [one.f1 for one in counts[name]]),
            (_FALSE, [one.false_alarms for one in counts[name]]),
            ("false alarms of the other modality, %", [one.false_alarms for one in others[name]]),
        ):
            known = [value for value in values if value is not None]
            if known:  # nothing found in any seed: there is no precision
                yield row(dataset, name, case.words, metric, known, seconds=seconds)


def _microseconds(before: Sequence[JudgedWindow]) -> float:
    """CPU time to score both modalities of a window, the fastest of three repetitions."""
    seen = before[0]
    count = min(_TIMED, len(seen.start_B))
    covered = {name: seen.x[name][:1, 0] == seen.x[name][:1, 0] for name in NAMES}
    windows = [
        Windows(
            seen.start_B[b : b + 1],
            {name: seen.x[name][b : b + 1] for name in NAMES},
            covered,
            seen.present_BM[b : b + 1],
            seen.start_B[b : b + 1].astype(int),
        )
        for b in range(count)
    ]
    turns = []
    for _ in range(3):
        meter, started = QualityMeter(TASK), time.process_time()
        for one in windows:
            meter.judge(one)
        turns.append((time.process_time() - started) / count)
    return 1e6 * min(turns)


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Five seeds; quick: one seed on a quarter of the recordings.

    Raises:
        Misconfigured: none of the data sets is here.
    """
    rows: list[ResultRow] = []
    missing = []
    for dataset, load in LOADERS.items():
        try:
            recordings = load()
        except Misconfigured as error:
            missing.append(str(error))
            say(f"{dataset} is left out: {error}")
            continue
        used = recordings[::4] if quick else recordings
        rows += measure(dataset, used, range(1 if quick else _SEEDS), say)
    if not rows:
        raise Misconfigured("; ".join(missing))
    return rows


BENCH: Final = Bench(
    name="quality",
    run=run,
    goals=(Goal(_FALSE, 2.0, setting=_NO_FAULT),),
)
