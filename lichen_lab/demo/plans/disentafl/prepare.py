"""Files of the routed demo: recordings by kind of watch, unseen people's windows, all configurations.

Unlike in QQR's demo, recordings are not mirrored onto one wrist: the arm is a target.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.windows.window_sets import windows_of_recording
from lichen_lab.demo.core.prepare import begin, labelled_windows, save_recordings, write_configurations
from lichen_lab.demo.core.scenario import Layout, Options, PreparedDemo, coordinator_config
from lichen_lab.demo.plans.disentafl import devices
from lichen_lab.demo.plans.disentafl.devices import ARM, OBSERVED, OBSERVED_S, SPEED, LabelledWatch
from lichen_lab.demo.plans.disentafl.results import DisentaflResults, WatchResults
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.sensor_faults import inject, plan_faults
from lichen_lab.simulation.data.sets import spar
from models.contract import WindowSet
from models.data import window_set
from models.data.streams.recording import read
from protocol.tasks.task import LABEL, Task

STEP_S: Final = 0.32
"""The turning speed is labelled in steps of this length; a window's label is its mean over them."""
_GYRO: Final = slice(3, 6)
Recording = spar.Recording


def _order(series: Sequence[spar.Series], seed: int) -> list[spar.Series]:
    return [series[i] for i in np.random.default_rng(seed).permutation(len(series))]


def turning_speed(values_TC: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean length of the angular velocity in each step, rad/s; without a last incomplete step."""
    length_T = np.linalg.norm(values_TC[:, _GYRO].astype(np.float64), axis=1)
    step = round(STEP_S * spar.RATE_HZ)
    whole = len(length_T) // step * step
    return np.asarray(length_T[:whole].reshape(-1, step).mean(axis=1))


def tracks(series: Sequence[spar.Series], recorded: Recording) -> Recording:
    """Label tracks of the further targets, for series in the order in which ``recorded`` has them."""
    starts = [
        float(t) for t, label in zip(recorded["label/t"], recorded["label/values"], strict=True) if label >= 0
    ]
    arm_t, arm, speed_t, speed = [], [], [], []
    for start, one in zip(starts, series, strict=True):
        step_S = turning_speed(one.values[: _samples(recorded, start)])
        end = start + STEP_S * len(step_S)
        arm_t += [start, start + _samples(recorded, start) / spar.RATE_HZ]
        arm += [one.side, -1]
        speed_t += [*(start + STEP_S * np.arange(len(step_S))), end]
        speed += [*step_S, np.nan]
    found: dict[str, NDArray[Any]] = {}
    for name, t, values in ((ARM, arm_t, arm), (SPEED, speed_t, speed)):
        found[f"target/{name}/t"] = np.asarray(t, np.float64)
        found[f"target/{name}/values"] = np.asarray(values, np.float64)
    return found


def _samples(recorded: Recording, start: float) -> int:
    """Number of kept samples of the series that begins there."""
    at = int(np.searchsorted(recorded["label/t"], start))
    return round((float(recorded["label/t"][at + 1]) - start) * spar.RATE_HZ)


def whole_recording(series: Sequence[spar.Series], seed: int, limit_s: float | None = None) -> Recording:
    """All sensors and all targets; the seed decides the order of series."""
    chosen = _order(series, seed)
    recorded = spar.recording(chosen, limit_s=limit_s)
    return {**recorded, **tracks(chosen, recorded)}


def restrict(recorded: Recording, sensors: Sequence[str], targets: Sequence[str]) -> Recording:
    """The recording restricted to these sensors and the labels of these targets."""
    kept = {*sensors, *(LABEL if name == LABEL else f"target/{name}" for name in targets)}
    return {key: values for key, values in recorded.items() if key.rpartition("/")[0] in kept}


def device_recordings(
    series: Sequence[spar.Series], watch: LabelledWatch, seed: int
) -> tuple[Recording, Recording]:
    """A training device's recordings: its sensors with labels, and its later sensors without labels."""
    recorded = whole_recording(spar.of_person(series, watch.person), seed)
    if watch.faults is not None:
        sensors = {k: v for k, v in recorded.items() if not k.startswith("target/")}
        recorded |= inject(sensors, plan_faults(sensors, watch.faults, seed), seed)
    return restrict(recorded, watch.sensors, watch.targets), restrict(recorded, watch.later, ())


def observer_recording(series: Sequence[spar.Series], seed: int) -> Recording:
    """The observing device's recording; its labels are only compared with predictions."""
    recorded = whole_recording(spar.of_person(series, OBSERVED.person), seed, OBSERVED_S)
    return restrict(recorded, OBSERVED.sensors, OBSERVED.targets)


def prepare(options: Options) -> PreparedDemo[DisentaflResults]:
    """Write all files that the processes read.

    Raises:
        Misconfigured: SPAR is not here, or the output folder is somebody else's.
        ModuleNotFoundError: something that the demo needs later is not installed.
    """
    layout, series = begin(options, spar.load)
    task = devices.task(options.rounds, seed=options.seed)
    recorded = {devices.OBSERVED.name: observer_recording(series, options.seed)}
    for watch in devices.DEVICES:
        recorded[watch.name], later = device_recordings(series, watch, options.seed)
        if watch.later:
            spar.save(layout.recording(devices.later(watch.name)), later)
    window_set.save(layout.unseen, unseen(task, series, layout))
    watches = {watch.name: watch for watch in devices.DEVICES}
    stage = PreparedDemo(
        layout=layout,
        task=task,
        results=initial_results(task),
        people={name: f"{watch.person}: {watch.kind}" for name, watch in watches.items()},
        agent=lambda name: devices.watch_config(layout, watches[name], options),
        lengths_s=save_recordings(layout, recorded),
    )
    observing = devices.observing_config(layout)
    others = {devices.OBSERVED.name: observing, "coordinator": coordinator_config(layout)}
    return write_configurations(stage, others)


def initial_results(task: Task) -> DisentaflResults:
    """The results before the start."""
    return DisentaflResults(
        labels=task.labels,
        modalities=task.modality_names,
        targets={target.name: target.labels for target in task.objectives},
        unseen=spar_fleet.UNSEEN,
        devices=[
            WatchResults(
                name=watch.name,
                person=watch.person,
                kind=watch.kind,
                sensors=watch.sensors,
                targets=watch.targets,
                later=watch.later,
                observes=watch is devices.OBSERVED,
            )
            for watch in (*devices.DEVICES, devices.OBSERVED)
        ],
    )


def unseen(task: Task, series: tuple[spar.Series, ...], layout: Layout) -> WindowSet:
    """Windows to evaluate the fleet on: whole sensors, all targets, unseen people."""
    path = Path(layout.recording("unseen"))
    parts = []
    for person in spar_fleet.UNSEEN:
        spar.save(path, whole_recording(spar.of_person(series, person), 0))
        parts.append(windows_of_recording(task, read(path)))
    path.unlink()
    return labelled_windows(window_set.concat(parts))
