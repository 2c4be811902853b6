"""The inputs of ``lichen simulate``: a folder of files, or a data set dealt to devices."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lichen.backbones.features import WindowFeatures, open_features
from lichen.commands.data_check import require_windows
from lichen_lab.simulation.data.streams import RoundStream, Unlabelled
from lichen_lab.simulation.training.device import PROTOTYPE, Role
from lichen_lab.simulation.training.evaluation.labelled import SHARE, parted
from models import packages, registry
from models.backbones.views import backbones
from models.contract import Profile, WindowSet
from models.data import window_set
from models.data.streams.stream_findings import StreamFinding
from protocol.errors import Misconfigured
from protocol.tasks.task import Task

if TYPE_CHECKING:
    from lichen_lab.simulation.data.access.split import DataSplit


@dataclass(frozen=True)
class TrainingFleet:
    """All inputs of a simulation.

    Attributes:
        task: with the changes of the command line.
        seed: of everything.
        devices: name -> windows or stream.
        test: labelled windows to evaluate on; None: no evaluation.
        roles: of the devices that do not train.
        profiles: what devices may read and predict, if that is not everything.
        labelled: the coordinator's windows, for a guided method.
        validation: labelled windows by which the rounds end; None: by the lengths of the versions' steps.
        findings: problems in the recordings, by file.
        about: the data set and the setting, for the report.
    """

    task: Task
    seed: int
    devices: Mapping[str, WindowSet | RoundStream]
    test: WindowSet | None
    roles: Mapping[str, Role] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    labelled: WindowSet | None = None
    validation: WindowSet | None = None
    findings: Mapping[Path, tuple[StreamFinding, ...]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


def read_task(
    file: Path, rounds: int | None, options: Mapping[str, Any], named: str | None = None
) -> tuple[Task, WindowFeatures]:
    """Read a task file; rounds, options and method are overridden if given.

    Returns:
        The task as it is learned, and what makes its windows.

    Raises:
        Misconfigured: there is no such file, it is no task on windows, or a backbone cannot be used.
    """
    from runtime.settings.load import load_toml  # noqa: PLC0415 - the help is shown without it

    if not file.is_file():
        raise Misconfigured(f"--task {file}: there is no such file")
    task = require_windows(load_toml(Task, file, named_by="--task"), "lichen simulate")
    of_rounds = task.rounds if rounds is None else task.rounds.model_copy(update={"count": rounds})
    changed = {"rounds": of_rounds, "config": {**task.config, **options}, "method": named or task.method}
    features = open_features(task.model_copy(update=changed), file.parent, _say)
    registry.admit(features.task, packages.permitted())
    return registry.method(features.task.method).completed(features.task), features


def _say(words: str) -> None:
    sys.stderr.write(f"simulate: {words}\n")


def of_files(
    task: Task,
    data: Path,
    test: Path | None,
    seed: int | None,
    profiles: Sequence[str] = (),
    *,
    known: WindowSet | None = None,
    validation: Path | None = None,
    features: WindowFeatures | None = None,
) -> TrainingFleet:
    """Read one file for each device.

    Args:
        task: what is learned.
        data: the folder.
        test: labelled windows to evaluate on.
        seed: instead of the task's.
        profiles: as :func:`profiles_of` reads them.
        known: the coordinator's labelled windows.
        validation: labelled windows by which the rounds end.
        features: of the task's backbones; None: it has none.

    Raises:
        Misconfigured: a folder or file is missing or does not fit the task, a profile names no device, or a
            backbone fails.
    """
    features = features or WindowFeatures(task, {})
    given = {
        word: file for word, file in (("--test", test), ("--validation", validation)) if file is not None
    }
    files = {file.stem: file for file in device_files(data, given.values())}
    may = profiles_of(task, profiles, files)
    devices, findings, judges = {}, {}, dict[str, WindowSet]()
    for name, file in files.items():
        devices[name], findings[file] = read_device(file, features)
    for word, file in given.items():
        whole, findings[file] = read_labelled(file, features)
        judges[word] = labelled(whole, task, f"{word} {file}")
    return TrainingFleet(
        task,
        task.seed if seed is None else seed,
        devices,
        judges.get("--test"),
        profiles=may,
        labelled=known,
        validation=judges.get("--validation"),
        findings=findings,
    )


def profiles_of(task: Task, words: Sequence[str], devices: Collection[str]) -> dict[str, Profile]:
    """Parse ``DEVICE=MODALITY,...:TARGET,...`` each; an empty or missing side means all.

    Raises:
        Misconfigured: the form is wrong, or the task or the fleet has no such name.
    """
    if words and not registry.method(task.method).routed:
        raise Misconfigured(f"--profile: under method {task.method!r} all devices read and predict the same")
    parsed: dict[str, Profile] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        reads, _, says = rest.partition(":")
        if not (name and equals):
            raise Misconfigured(f"--profile {word}: write DEVICE=MODALITY,...:TARGET,...")
        if name not in devices:
            raise Misconfigured(f"--profile {word}: no file is named {name} ({', '.join(devices)})")
        sides = []
        for given, known in ((reads, task.input_names), (says, task.target_names)):
            names = given.split(",") if given else known
            if stray := [one for one in names if one not in known]:
                raise Misconfigured(f"--profile {word}: the task has no {stray[0]!r} ({', '.join(known)})")
            sides.append(tuple(one for one in known if one in names))
        parsed[name] = Profile(*sides)
    return parsed


def of_dataset(
    name: str,
    file: Path | None,
    changes: Mapping[str, Any],
    *,
    rounds: int | None,
    seed: int | None,
    options: Mapping[str, Any],
    prototype_devices: int = 0,
    named: str | None = None,
    labelled_share: float | None = None,
) -> TrainingFleet:
    """Deal a data set's windows by the online protocol; see ``online_fleet.OnlineSetting``.

    Args:
        name: of the data set.
        file: task file; None: the data set's own task.
        changes: over the data set's setting (:class:`lichen_lab.simulation.data.online_fleet.OnlineSetting`).
        rounds: instead of the task's.
        seed: instead of the task's.
        options: of the method, over the task's.
        prototype_devices: the last so many devices send prototypes alone.
        named: the method, instead of the task's.
        labelled_share: of a guided method, the share of the training windows that the coordinator has, with
            their labels, drawn at random; devices are dealt the others, without labels. None: a tenth.

    Raises:
        Misconfigured: no such data set, it is missing here, or a number does not fit.
    """
    from lichen_lab.simulation.data.dataset_tasks import study  # noqa: PLC0415 - as above

    chosen = study(name)
    if file is not None:
        task, features = read_task(file, rounds, options, named)
    else:
        task = chosen.task(config=options, seed=seed or 0)
        of_rounds = task.rounds if rounds is None else task.rounds.model_copy(update={"count": rounds})
        task = task.model_copy(update={"method": named or task.method, "rounds": of_rounds})
        features = WindowFeatures(task, {})
    seed = task.seed if seed is None else seed
    setting = replace(chosen.setting, **changes)
    if setting.noisy_rounds and (names := ", ".join(backbones(task))):
        raise Misconfigured(
            f"--noisy-rounds: noise is of what sensors deliver, and of {names} devices learn features of a "
            "backbone, computed once; set it to 0"
        )
    if prototype_devices > setting.devices:
        raise Misconfigured(
            f"--prototype-devices {prototype_devices}: there are {setting.devices} devices (--devices)"
        )
    splits = (chosen.load(part, seed) for part in ("train", "test"))
    train, test = (
        features.of(window_set.check(_of_people(split), features.cut, name), name) for split in splits
    )
    about: dict[str, Any] = {"dataset": name, "setting": dict(vars(setting))}
    known = None
    if registry.method(task.method).guided:
        share = SHARE if labelled_share is None else labelled_share
        known, train = parted(train, share, seed)
        about |= {"labelled_share": share, "labelled": len(known)}
    elif labelled_share is not None:
        raise Misconfigured(f"--labelled-share: method {task.method!r} learns nothing at the coordinator")
    devices: Mapping[str, RoundStream] = setting.fleet(train, seed)
    if known is not None:
        devices = {device: Unlabelled(stream) for device, stream in devices.items()}
    last = list(devices)[len(devices) - prototype_devices :]
    return TrainingFleet(
        task, seed, devices, test, dict.fromkeys(last, PROTOTYPE), labelled=known, about=about
    )


def _of_people(split: "DataSplit") -> WindowSet:
    """The data set's windows, each with its person as its group."""
    return replace(split.windows, group_B=split.person_B.astype(np.str_))


def device_files(folder: Path, others: Iterable[Path]) -> list[Path]:
    """The devices' files, sorted, without these others.

    Raises:
        Misconfigured: no such folder, no files in it, or two files of one name.
    """
    if not folder.is_dir():
        raise Misconfigured(f"--data {folder}: there is no such folder")
    apart = {other.resolve() for other in others}
    files = sorted(
        file
        for file in folder.iterdir()
        if file.suffix in {".npz", ".csv", ".parquet"} and file.resolve() not in apart
    )
    if not files:
        raise Misconfigured(f"--data {folder}: it has no .npz, .csv or .parquet file")
    names = [file.stem for file in files]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Misconfigured(f"--data {folder}: two files are named {twice[0]}")
    return files


def read_device(file: Path, features: WindowFeatures) -> tuple[WindowSet, tuple[StreamFinding, ...]]:
    """A window set, or a recording cut and checked as on a device; and the problems of a recording.

    Of a task with backbones, only some windows of a recording are in memory as they were cut.

    Raises:
        Misconfigured: it is neither, does not fit the task, or a backbone fails; the message names file and
            key.
    """
    from edge_agent.windows.window_sets import scored_windows, to_window_set  # noqa: PLC0415 - the help is shown without it
    from models.data.streams.recording import read  # noqa: PLC0415 - as above
    from models.data.streams.recording_findings import of_recording  # noqa: PLC0415 - as above

    if not file.is_file():
        raise Misconfigured(f"{file}: there is no such file")
    cut = features.cut
    if file.suffix == ".npz" and window_set.is_one(file):
        return features.of(window_set.load(file, cut), str(file)), ()
    try:
        recording = read(file)
        parts = [features.of(to_window_set(*scored), str(file)) for scored in scored_windows(cut, recording)]
        windows = window_set.concat(parts) if parts else window_set.empty(features.task)
        return windows, of_recording(cut, recording)
    except Misconfigured as error:
        raise Misconfigured(str(error) if str(file) in str(error) else f"{file}: {error}") from None


def read_labelled(file: Path, features: WindowFeatures) -> tuple[WindowSet, tuple[StreamFinding, ...]]:
    """As :func:`read_device`; a table is read as the task's labelled one, if it has one.

    Raises:
        Misconfigured: likewise.
    """
    from models.data.labelled_windows import another  # noqa: PLC0415 - the help is shown without it

    windows = another(features.cut, file) if file.is_file() else None
    return read_device(file, features) if windows is None else (features.of(windows, str(file)), ())


def labelled(windows: WindowSet, task: Task, origin: str) -> WindowSet:
    """The windows that are labelled for a classification.

    Raises:
        Misconfigured: there are none.
    """
    named = [target.name for target in task.objectives if target.labels]
    chosen = window_set.select(
        windows, np.any([np.isfinite(window_set.target(windows, name)) for name in named], axis=0)
    )
    if not len(chosen):
        raise Misconfigured(f"{origin}: none of its {len(windows)} windows is labelled")
    return chosen
