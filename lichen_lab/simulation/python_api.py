"""What ``lichen.simulate`` calls (entry point ``lichen.simulators``): trains a fleet. Imports torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from export.bundle_builder import Lineage, inference_module, make_bundle
from export.cli import route_of
from export.joined import joined
from export.signature import surface_of
from lichen.api.device_data import held_back
from lichen.api.lab import Progress, SimulationRequest
from lichen.backbones.features import WindowFeatures
from lichen_lab.simulation.training.evaluation.labelled import labelled_of
from lichen_lab.simulation.training.evaluation.scores import predicted
from lichen_lab.simulation.training.inputs import device_files, labelled, read_device, read_labelled
from lichen_lab.simulation.training.runner import History, RoundRecord, not_judged, simulate
from lichen_lab.simulation.training.workers import one_thread
from models import packages, registry
from models.contract import Blobs, FloatArray, WindowSet
from protocol.errors import Misconfigured
from protocol.output_names import output_names
from protocol.tasks.task import LABEL, Task

_FIRST: Final = ("accuracy", "macro_f1")


class SimulatedTraining:
    """See :class:`lichen.api.lab.TrainedFleet`."""

    def __init__(
        self,
        task: Task,
        history: History,
        devices: Mapping[str, WindowSet],
        *,
        seed: int,
        findings: list[str],
        features: WindowFeatures,
    ) -> None:
        self.task = task
        self.seed = seed
        self.devices = tuple(sorted(devices))
        self.rounds = tuple(_row(record) for record in history.rounds)
        self.made_of = tuple(tuple(sorted(record.accepted)) for record in history.rounds)
        self.refused = tuple(dict(record.refused) for record in history.rounds)
        self.confusion = None if history.evaluation is None else history.evaluation.confusion_KK
        self.ended = history.ended
        self.findings = tuple(findings)
        self._history = history
        self._features = features
        self._packages = packages.permitted()

    def read(self, file: Path) -> WindowSet:
        """See :class:`lichen.api.lab.TrainedFleet`."""
        return read_device(file, self._features)[0]

    def probabilities(self, windows: WindowSet) -> FloatArray:
        """See :class:`lichen.api.lab.TrainedFleet`."""
        packages.permit(self._packages)
        with one_thread():
            module = inference_module(self.task, self._state())
            surface = surface_of(module, self.task)
            targets = [one for one in surface.targets if one.name == LABEL]
            if not targets:
                raise Misconfigured(f"task {self.task.name!r}: the fleet's model does not predict {LABEL!r}")
            columns = [self.task.modality_names.index(name) for name in surface.names]
            made = predicted(module, surface.names, surface.outputs, windows, columns)
        return made[output_names(targets[0])[0]]

    def bundle(self, calibrate: WindowSet | None) -> bytes:
        """See :class:`lichen.api.lab.TrainedFleet`."""
        number, (manifest, parent) = len(self.rounds), self._history.lineage
        metrics, account = dict(self._history.rounds[-1].metrics), self._history.account
        private = None if account is None else account.as_json()
        packages.permit(self._packages)
        with one_thread():
            bundle, _ = make_bundle(
                self.task,
                self._state(),
                Lineage(number, number, manifest, parent, metrics, private),
                calibrate,
            )
        return bundle

    def joined(self) -> bytes:
        """See :class:`lichen.api.lab.TrainedFleet`."""
        number, (manifest, _) = len(self.rounds), self._history.lineage
        packages.permit(self._packages)
        with one_thread():
            model, _ = joined(self.task, self._state(), self._features.paths, number, manifest)
        return model

    def _state(self) -> Blobs:
        """What a device with all modalities and targets runs; without the blobs that single devices own."""
        state, owned = self._history.state, registry.method(self.task.method).owned
        route = route_of(self.task, (), ())
        names = (
            [name for name in state if name.split("/", maxsplit=1)[0] not in owned]
            if route is None
            else route
        )
        return {name: state[name] for name in names}


def train(request: SimulationRequest) -> SimulatedTraining:
    """Train a fleet.

    Raises:
        Misconfigured: a file is missing, data or labelled windows do not fit the task, or a backbone fails.
        Transient: a worker process ended by itself.
    """
    packages.permit(request.packages)
    registry.admit(request.task, request.packages)
    task = registry.method(request.task.method).completed(request.task)
    features = request.features or WindowFeatures(request.task, {})
    findings: list[str] = []
    given = request.devices
    files: Mapping[str, WindowSet | Path] = _files(given, request.test) if isinstance(given, Path) else given
    devices = {
        name: _read(one, features, findings) if isinstance(one, Path) else one for name, one in files.items()
    }
    test = request.test
    if isinstance(test, float):
        devices, test = held_back(devices, test)
    elif isinstance(test, Path):
        test, found = read_labelled(test, features)
        findings += [f"{request.test}: {one.words}" for one in found]
    judged = None if test is None else labelled(test, task, "test")
    if judged is not None and (words := not_judged(task, judged)):
        raise Misconfigured(f"test: the fleet's model cannot be evaluated: {words}")
    seed = task.seed if request.seed is None else request.seed
    with one_thread():
        history = simulate(
            task,
            devices,
            judged,
            seed,
            progress=None if request.progress is None else _Rounds(request.progress).closed,
            labelled=_labelled(features, request),
            workers=request.workers,
            devices_at_once=request.devices_at_once,
            ends_early=True,
        )
    return SimulatedTraining(task, history, devices, seed=seed, findings=findings, features=features)


def _files(folder: Path, test: WindowSet | Path | float | None) -> dict[str, WindowSet | Path]:
    return {file.stem: file for file in device_files(folder, [test] if isinstance(test, Path) else [])}


def _read(file: Path, features: WindowFeatures, findings: list[str]) -> WindowSet:
    windows, found = read_device(file, features)
    findings += [f"{file}: {one.words}" for one in found]
    return windows


def _labelled(features: WindowFeatures, request: SimulationRequest) -> WindowSet | None:
    """The coordinator's windows, if the method learns from them."""
    given, task = request.labelled, features.task
    if isinstance(given, WindowSet):
        if not registry.method(task.method).guided:
            raise Misconfigured(f"labelled: method {task.method!r} learns nothing at the coordinator")
        return given
    return labelled_of(features, request.folder, given)


class _Rounds:
    """Hands the rows of closed rounds on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def closed(self, record: RoundRecord) -> None:
        """Hand a round on."""
        self._progress(_row(record))


def _row(record: RoundRecord) -> dict[str, Any]:
    metrics = {name: value for name, value in record.metrics.items() if name != "windows"}
    first = {name: metrics.pop(name, None) for name in _FIRST}
    return {
        "round": record.round,
        "devices": len(record.accepted),
        "refused": len(record.refused),
        **first,
        **metrics,
        "bytes_up": sum(record.bytes_up.values()),
        "bytes_down": sum(record.bytes_down.values()),
    }
