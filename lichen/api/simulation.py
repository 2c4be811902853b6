"""``lichen.simulate``: the training of a fleet in this process, and its result as tables."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lichen.api.device_data import DeviceInput, FleetInput, device_of, fleet_of
from lichen.api.lab import Progress, SimulationRequest, TrainedFleet, trainer
from lichen.api.rows import Rows
from lichen.api.task_input import TaskInput, read_task
from lichen.backbones.features import WindowFeatures, open_features
from lichen.commands.data_check import require_windows
from models.contract import FloatArray, WindowSet
from protocol.errors import Misconfigured
from runtime.storage.files import replace_file


class Simulation:
    """The result of :func:`simulate`.

    Attributes:
        task: as it was trained, with what the method completed.
        seed: of everything: the same task, data and seed give the same result.
        devices: names.
        history: a row for each round: ``round``, ``devices`` whose updates were accepted, ``refused``,
            ``accuracy``, ``macro_f1`` and further scores of the version that it made, ``bytes_up``,
            ``bytes_down``.
        versions: a row for each version: ``version``, its ``parent``, names of the ``devices`` that it is
            made of, ``refused`` (device -> why), and its scores.
        ended: why the rounds ended before the task's number; empty: they did not.
        findings: problems in recordings, in words.
    """

    def __init__(self, trained: TrainedFleet, features: WindowFeatures) -> None:
        self._trained = trained
        self._features = features
        self.task = trained.task
        self.seed = trained.seed
        self.devices = tuple(trained.devices)
        self.history = Rows(trained.rounds)
        self.versions = Rows(
            {
                "version": row["round"],
                "parent": row["round"] - 1,
                "devices": tuple(made_of),
                "refused": dict(refused),
                **{name: value for name, value in row.items() if name not in _OF_ROUNDS},
            }
            for row, made_of, refused in zip(trained.rounds, trained.made_of, trained.refused, strict=True)
        )
        self.ended = trained.ended
        self.findings = tuple(trained.findings)

    @property
    def accuracy(self) -> float | None:
        """Of the last version on the test windows; None without any."""
        return self._last("accuracy")

    @property
    def macro_f1(self) -> float | None:
        """Mean F1 of the classes, of the last version; None without test windows."""
        return self._last("macro_f1")

    @property
    def confusion(self) -> Rows:
        """A row for each true class: test windows by the predicted class; empty without test windows."""
        labels, counts = self.task.labels, self._trained.confusion or ()
        return Rows(
            {"true": label, **dict(zip(labels, of_class, strict=True))}
            for label, of_class in zip(labels, counts, strict=bool(counts))
        )

    def probabilities(self, data: DeviceInput) -> FloatArray:
        """``p_BK`` float32: what the last version predicts for each window, by class.

        Args:
            data: a window set, a dict of arrays (labels may be left out), or a file.

        Raises:
            Misconfigured: the windows do not fit the task, or the fleet has no model of its own.
        """
        return self._trained.probabilities(self._windows(data))

    def predict(self, data: DeviceInput) -> list[str]:
        """The class that the last version predicts for each window; as :meth:`probabilities`."""
        return [self.task.labels[number] for number in self.probabilities(data).argmax(axis=1)]

    def export(
        self, path: str | Path, calibrate: DeviceInput | None = None, *, merge_backbone: bool = False
    ) -> Path:
        """Write the last version as an ONNX bundle, which an agent runs; its path.

        Args:
            path: the file.
            calibrate: real windows for an int8 variant; None makes none.
            merge_backbone: write one ONNX model of backbones and head instead, for other programs.

        Raises:
            Misconfigured: the method makes no model for devices, or windows do not fit.
            Refused: the ONNX model differs from torch, or backbone and head cannot be joined.
            OSError: the file cannot be written.
        """
        file = Path(path)
        if merge_backbone:
            if calibrate is not None:
                raise Misconfigured("calibrate: it is for a bundle; leave it out with merge_backbone")
            replace_file(file, self._trained.joined())
            return file
        windows = None if calibrate is None else self._windows(calibrate)
        replace_file(file, self._trained.bundle(windows))
        return file

    def _windows(self, data: DeviceInput) -> WindowSet:
        found = device_of(self._features.cut, data, "data", self._features)
        return self._trained.read(found) if isinstance(found, Path) else found

    def _last(self, name: str) -> float | None:
        value = self.history[-1].get(name) if self.history else None
        return None if value is None else float(value)

    def __repr__(self) -> str:
        scores = "".join(
            f", {name} {value:.3f}"
            for name, value in (("accuracy", self.accuracy), ("macro_f1", self.macro_f1))
            if value is not None
        )
        words = f"{len(self.devices)} devices, {len(self.history)} rounds{scores}"
        return f"<Simulation of {self.task.name!r} ({self.task.method}): {words}>"

    def _repr_html_(self) -> str:
        return self.history._repr_html_()


_OF_ROUNDS = frozenset({"round", "devices", "refused"})


def simulate(
    task: TaskInput,
    data: FleetInput,
    *,
    test: DeviceInput | float | None = None,
    labelled: DeviceInput | None = None,
    rounds: int | None = None,
    method: str | None = None,
    config: Mapping[str, Any] | None = None,
    seed: int | None = None,
    workers: int = 1,
    devices_at_once: int = 1,
    packages: Sequence[str] = (),
    progress: Progress | bool = False,
) -> Simulation:
    """Train a fleet in this process, as ``lichen simulate`` does, and return its history.

    Args:
        task: the path of a task.toml, a dict of its keys, or a ``Task``.
        data: a folder with one file for each device (recordings, or window sets), or devices by name, or a
            list of them. A device is a window set, a file, or a dict of arrays: ``x_BCT`` (windows, channels,
            samples) by modality, ``label`` with the classes.
        test: labelled windows that no device has, to evaluate each version on; or a share, such as 0.25: of
            each device the last such part of its windows of each class, which it then does not learn from.
        labelled: labelled windows of the coordinator, for methods that need them; None: those of the task.
        rounds: instead of the task's.
        method: instead of the task's.
        config: options of the method, over the task's.
        seed: instead of the task's.
        workers: processes; the result is the same. 1: this one.
        devices_at_once: devices that a process trains as one computation, at most: faster for small networks,
            for methods that can. Values then differ in their last bits.
        packages: Python packages whose encoders or networks the task may use (docs/own-network.md): nothing
            is imported because a task says so.
        progress: True prints a line for each round, and while features of many windows are computed; a
            function is called with the row of each round.

    Raises:
        Misconfigured: lichen-lab is missing, or the task or data are wrong; the message names the key, the
            device and the array.
        Transient: a worker process ended by itself.
    """
    read, folder = read_task(task)
    require_windows(read, "lichen.simulate")
    if rounds is not None and rounds < 1:
        raise Misconfigured(f"rounds: {rounds}: at least 1")
    of_rounds = read.rounds if rounds is None else read.rounds.model_copy(update={"count": rounds})
    changed = {
        "rounds": of_rounds,
        "method": method or read.method,
        "config": {**read.config, **(config or {})},
    }
    asked = read.model_copy(update=changed)
    train = trainer()
    features = open_features(asked, folder, _say if progress is True else None)
    request = SimulationRequest(
        features.task,
        folder,
        fleet_of(features.cut, data, features),
        _share_or_windows(features, test),
        None if labelled is None else device_of(features.cut, labelled, "labelled", features),
        seed,
        workers,
        devices_at_once,
        tuple(packages),
        _progress(progress, of_rounds.count),
        features,
    )
    return Simulation(train(request), features)


def package(name: str) -> dict[str, str]:
    """An installed Python package with encoders or networks of your own, for ``packages`` of a task.

    Its files are read, and nothing of it is imported.

    Raises:
        Misconfigured: it is not installed, or its files cannot be listed, as of an editable installation.
    """
    from models.package_files import find_package  # noqa: PLC0415 - most programs have none

    return dict(find_package(name).package.model_dump())


def _share_or_windows(
    features: WindowFeatures, test: DeviceInput | float | None
) -> WindowSet | Path | float | None:
    if test is None or isinstance(test, float | int):
        return None if test is None else float(test)
    return device_of(features.cut, test, "test", features)


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")


def _progress(asked: Progress | bool, count: int) -> Progress | None:  # noqa: FBT001 - as the caller gave it
    if not isinstance(asked, bool):
        return asked

    def tell(row: Mapping[str, Any]) -> None:
        scores = "".join(
            f", {name} {row[name]:.3f}" for name in ("accuracy", "macro_f1") if row.get(name) is not None
        )
        sys.stdout.write(f"round {row['round']} of {count}: {row['devices']} devices{scores}\n")

    return tell if asked else None
