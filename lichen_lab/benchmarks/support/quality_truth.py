"""What is true of each window of a recording with a fault, and what the quality indicator says of it.

A window is *hurt* when at least half of it lies in the fault and the fault did something there; *sound* when
no value of it differs from the clean recording; other windows (a fault's edge, a drift that has hardly begun)
are neither and are not counted. It is *found* when the indicator's score is under one half, or when so much
is missing that the modality is masked: either way its values are not trusted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.config.quality import QualitySettings
from edge_agent.windows.quality.meter import REASONS
from edge_agent.windows.window_sets import scored_windows
from lichen_lab.simulation.data.sensor_faults import Recording, SensorFault, gain_at, modalities_of
from models.data.streams.recording import Recording as Streams
from models.data.streams.recording import Stream
from protocol.tasks.task import Task

Bools = NDArray[np.bool_]
THRESHOLD: Final = 0.5
"""Windows with a lower score are not trusted (the method's ``quality_threshold``)."""
_CLIPPED: Final = 0.02
"""A window counts as faulty from this share of saturated values; below it a peak or two are cut."""


@dataclass
class TruthCount:
    """Counts of one modality's windows, by truth and by the indicator's result."""

    hurt_found: int = 0
    hurt: int = 0
    sound_found: int = 0
    sound: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Reason -> number of sound windows with that reason."""

    def add(self, hurt_B: Bools, sound_B: Bools, found_B: Bools, reason_BR: Bools) -> None:
        """Count the windows of one recording."""
        self.hurt += int(hurt_B.sum())
        self.hurt_found += int((hurt_B & found_B).sum())
        self.sound += int(sound_B.sum())
        self.sound_found += int((sound_B & found_B).sum())
        for index, reason in enumerate(REASONS):
            given = int((sound_B & reason_BR[:, index]).sum())
            self.reasons[reason] = self.reasons.get(reason, 0) + given

    @property
    def recall(self) -> float | None:
        """Recall in percent: share of faulty windows that are found; None without faulty windows."""
        return 100 * self.hurt_found / self.hurt if self.hurt else None

    @property
    def precision(self) -> float | None:
        """Precision in percent: share of found windows that are faulty; None if none are found."""
        found = self.hurt_found + self.sound_found
        return 100 * self.hurt_found / found if found else None

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in percent."""
        return 200 * self.hurt_found / max(1, self.hurt + self.hurt_found + self.sound_found)

    @property
    def false_alarms(self) -> float | None:
        """False alarms in percent: share of sound windows that are found."""
        return 100 * self.sound_found / self.sound if self.sound else None


@dataclass(frozen=True)
class JudgedWindow:
    """All windows of a recording: start times, values, and the indicator's result for each modality."""

    start_B: NDArray[np.float64]
    x: Mapping[str, NDArray[np.float32]]
    present_BM: Bools
    found_BM: Bools
    reason_BMR: Bools


def judged(task: Task, recorded: Recording, settings: QualitySettings | None = None) -> JudgedWindow:
    """Cut windows with the agent's windower and score them with its meter, in time order."""
    streams = Streams(
        {n: Stream(recorded[f"{n}/t"], recorded[f"{n}/values"]) for n in modalities_of(recorded)}
    )
    pairs = list(scored_windows(task, streams, settings))
    present_BM = np.concatenate([w.present_BM for w, _ in pairs])
    quality_BM = np.concatenate([q.quality_BM for _, q in pairs])
    return JudgedWindow(
        np.concatenate([w.start_B for w, _ in pairs]),
        {name: np.concatenate([w.x[name] for w, _ in pairs]) for name in task.modality_names},
        present_BM,
        (quality_BM < THRESHOLD) | ~present_BM,
        np.concatenate([q.found_BMR for _, q in pairs]),
    )


def clean(task: Task, recorded: Recording, counts: Mapping[str, TruthCount]) -> JudgedWindow:
    """Count false alarms on a recording without faults; masked windows (the joins) are left out."""
    seen = judged(task, recorded)
    for column, name in enumerate(task.modality_names):
        sound_B = seen.present_BM[:, column]
        nothing_B = np.zeros_like(sound_B)
        counts[name].add(nothing_B, sound_B, seen.found_BM[:, column], seen.reason_BMR[:, column])
    return seen


def with_faults(
    task: Task,
    before: JudgedWindow,
    hurt: Recording,
    faults: Sequence[SensorFault],
    counts: Mapping[str, TruthCount],
) -> None:
    """Judge a recording that was hurt, and count the modalities.

    Args:
        task: the grid.
        before: the windows of the clean recording.
        hurt: the same recording with the faults in it.
        faults: of one kind, on one modality; of the others all windows are sound.
        counts: modality -> where to count.
    """
    after = judged(task, hurt)
    after_B = np.minimum(np.searchsorted(after.start_B, before.start_B), len(after.start_B) - 1)
    there_B = after.start_B[after_B] == before.start_B
    for name, count in counts.items():
        column = task.modality_names.index(name)
        present_B = before.present_BM[:, column]
        same_B = there_B & (after.x[name][after_B] == before.x[name]).all(axis=(1, 2))
        hurt_B = np.zeros(len(present_B), np.bool_)
        for fault in (f for f in faults if f.modality == name):
            hurt_B |= _hurt(fault, before, after.x[name][after_B], name, task) & ~same_B
        found_B = np.where(there_B, after.found_BM[after_B, column], True)
        reason_BR = after.reason_BMR[after_B, column] & there_B[:, None]
        count.add(hurt_B & present_B, same_B & present_B, found_B, reason_BR)


def _hurt(
    fault: SensorFault, before: JudgedWindow, after_BCT: NDArray[np.float32], name: str, task: Task
) -> Bools:
    """Whether half of the window lies in the fault and the fault changed values there."""
    length_s, start_B = task.window.length_s, before.start_B
    inside_B = np.minimum(start_B + length_s, fault.end_s) - np.maximum(start_B, fault.start_s)
    half_B: Bools = inside_B >= length_s / 2 - 1e-9
    did_B = np.ones(len(start_B), np.bool_)
    if fault.kind == "clip":
        did_B = (after_BCT != before.x[name]).mean(axis=2).max(axis=1) >= _CLIPPED
    elif fault.kind == "gain":  # the second half of the drift
        reached_B = np.abs(np.log(gain_at(fault, start_B + length_s / 2)))
        did_B = reached_B >= np.abs(np.log(fault.amount)) / 2
    return half_B & did_B
