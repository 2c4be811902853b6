"""The coordinator's settings (``coordinator.toml``) and its task (``task.toml``). Units stand in the keys."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, ValidationError

from coordinator.admission.quarantine import QuarantineSettings
from coordinator.config.rollout import RolloutSettings
from coordinator.selection.policies import policy
from models.data import window_set
from models.registry import method
from models.spec import MethodSpec
from models.training.evaluation import Part
from protocol.base import Name
from protocol.errors import Misconfigured
from protocol.frames.frame import DEFAULT_LIMITS
from protocol.messages import MAX_BLOB_BYTES, MAX_MESSAGE_BYTES, encode
from protocol.tasks.announcement import MAX_ANNOUNCED_BYTES, TaskAnnouncement
from protocol.tasks.task import Task
from runtime.settings.load import ConfigPath, LogSettings, MqttSettings, Section, load, load_toml

Positive = Annotated[int, Field(ge=1)]
Timeout = Annotated[float, Field(gt=0, le=7 * 86400)]


class EvaluationSettings(Section):
    """Judging versions. ``data``: a labelled window set (npz), relative to the config file."""

    data: ConfigPath | None = None
    every_rounds: Positive = 1
    by: Annotated[tuple[Part, ...], Field(max_length=2)] = ("group",)
    """Also judge parts of the windows: those of each person or device (``group``, where the set says whose
    they are), all with fewer modalities (``modalities``). Each costs as much time again, and more."""


class ExportSettings(Section):
    """Making bundles. ``every_rounds`` 0: only at the end."""

    enabled: bool = True
    every_rounds: Annotated[int, Field(ge=0)] = 0
    max_routes: Positive = 16
    """Where a method is routed: bundles of one version, those for most devices first."""
    int8: bool = True
    """Put an int8 variant beside float32, where there are windows to calibrate it on."""


class WorkerSettings(Section):
    """The child processes that need torch."""

    timeout_s: Timeout = 600.0
    idle_s: Timeout = 120.0
    threads: Positive = 1


class MetricsSettings(Section):
    """Prometheus. Port 0: off. Served on ``address`` only."""

    prometheus_port: Annotated[int, Field(ge=0, le=65535)] = 0
    address: str = "127.0.0.1"


class UploadSettings(Section):
    """Bounds on what devices may leave on the coordinator's disk before it is accepted."""

    per_device_bytes: Positive = 128 * 1024 * 1024
    total_bytes: Positive = 2 * 1024 * 1024 * 1024


class FetchSettings(Section):
    """What devices may fetch: the model, bundles, graphs."""

    device_bytes_a_day: Annotated[int, Field(ge=0)] = 8 * 1024**3
    """Of one device; 0: no bound. Given back evenly over the day."""


class DeviceSettings(Section):
    """What the coordinator remembers of devices, and for how long (docs/coordinator-settings.md)."""

    most: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Devices that are remembered; 0: 100,000 where there is an authority, else 4,000."""
    forget_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    """Who is away and said nothing for so long is forgotten; 0: nobody is."""
    silent_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 1800.0
    """A device that says nothing for so long is taken to be offline, whatever it said last. Agents say their
    state every ``state_idle_s`` (600 s): keep this at three times that, or more."""


class IdentitySettings(Section):
    """``[identity]``: the fleet's own authority and the service where devices enrol (docs/identity.md)."""

    enabled: bool | None = None
    """None: where ``lichen coordinator init`` has made an authority."""
    host: str = "0.0.0.0"  # noqa: S104 - devices come from the network; it listens only where an authority is
    port: Annotated[int, Field(ge=1, le=65535)] = 8443
    url: Annotated[str, Field(pattern=r"^(https://[^/\s]{1,253})?$")] = ""
    """What invites name; empty: ``https://`` the authority's first host and ``port``."""
    broker_host: Annotated[str, Field(max_length=253)] = ""
    """Told to devices; empty: ``mqtt.host``, or the authority's first host where that is this machine."""
    broker_port: Annotated[int, Field(ge=1, le=65535)] = 8883
    device_days: Annotated[float, Field(ge=0.1, le=3650)] = 90.0
    """How long a device's certificate holds; it renews at two thirds of that."""
    renew_grace_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    """A certificate that ran out longer ago is not renewed: the device is invited and enrolled anew."""
    broker_dir: ConfigPath | None = None
    """Where the Mosquitto files are written; None: ``mosquitto`` in ``state_dir``."""
    broker_group: str = ""
    """The group that may read them, as ``mosquitto``; empty: their owner alone."""
    reload_command: tuple[str, ...] = ()
    """A command that makes the broker read them again, as ``["systemctl", "reload", "mosquitto"]``."""


class TrustSettings(Section):
    """``[trust]``: signing bundles, where ``lichen coordinator trust init`` has made a root."""

    timestamp_days: Annotated[float, Field(ge=0.01, le=365)] = 7.0
    """Devices take nothing new that was not signed within so many days: how long somebody can hold a new
    version back unseen, and how long this coordinator can be away."""
    again_hours: Annotated[float, Field(ge=0.001, le=720)] = 24.0
    """Signed anew after so long."""


class CoordinatorSettings(Section):
    """All of ``coordinator.toml``."""

    fleet: Name
    state_dir: ConfigPath
    task: ConfigPath
    """``task.toml``, relative to the config file."""
    mqtt: MqttSettings = MqttSettings()
    log: LogSettings = LogSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()
    worker: WorkerSettings = WorkerSettings()
    metrics: MetricsSettings = MetricsSettings()
    uploads: UploadSettings = UploadSettings()
    fetch: FetchSettings = FetchSettings()
    devices: DeviceSettings = DeviceSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    identity: IdentitySettings = IdentitySettings()
    trust: TrustSettings = TrustSettings()
    rollout: RolloutSettings = RolloutSettings()
    history_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    """Of the database; beyond that the oldest rounds leave the history, too."""
    exit_when_done: bool = False
    exit_linger_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """After the last round, serve blobs until nobody fetched for this long (at most 20 times as long)."""
    max_update_bytes: Annotated[int, Field(ge=1024, le=MAX_BLOB_BYTES)] = 64 * 1024 * 1024
    offer_every_s: Timeout = 5.0
    spread_s: Annotated[float, Field(ge=0, le=86400)] = 2.0
    """Once enough devices are able, wait this long for more before a round is opened."""
    away_grace_s: Annotated[float, Field(ge=0, le=86400)] = 20.0
    """Where all devices that an open round waits for went away, wait this long for one to come back."""
    keep_versions: Positive = 3
    """Blobs and bundles of older versions are removed."""
    keep_updates: Positive = 100_000
    """Headers of accepted updates in the database; beyond that the oldest rounds leave the history."""


def load_settings(file: Path) -> CoordinatorSettings:
    """Read the settings, drop-ins and environment.

    Raises:
        Misconfigured: naming the file and key.
    """
    return load(CoordinatorSettings, file)


def load_task(settings: CoordinatorSettings) -> tuple[Task, MethodSpec]:
    """Read the task and check it, its method and the method's options.

    Raises:
        Misconfigured: naming the task file and key, a line for every one that is wrong.
    """
    task = load_toml(Task, settings.task)
    wrong = problems(task)
    if wrong:
        raise Misconfigured("\n".join(f"{settings.task}: {words}" for words in wrong))
    _check_evaluation(settings.evaluation.data, task)
    return task, method(task.method)


def problems(task: Task) -> list[str]:
    """What a coordinator cannot do of a task, in words that name the key; empty: nothing."""
    checks: list[Callable[[], object]] = [
        lambda: policy(task.rounds.selection),
        lambda: _check_draw(task),
        lambda: _check_announcement(task),
    ]
    try:
        spec = method(task.method)
    except Misconfigured as error:
        return [str(error), *_complaints(checks)]
    return _complaints([lambda: _check_size(task, spec), lambda: spec.require_labelled(task), *checks])


def _complaints(checks: Iterable[Callable[[], object]]) -> list[str]:
    found = []
    for check in checks:
        try:
            check()
        except Misconfigured as error:
            found.append(str(error))
    return found


def _check_size(task: Task, spec: MethodSpec) -> None:
    """The method's options, and whether a device can read back what it may own (two bytes a number)."""
    spec.configure(task)
    size, most = 2 * spec.beyond(task), DEFAULT_LIMITS.max_bytes
    if size > most:
        raise Misconfigured(
            f"graph.max_entities: what one device may own takes up to {size} bytes, and a device reads at "
            f"most {most}; lower it, or the size of an entity in the method's config"
        )


def _check_announcement(task: Task) -> None:
    """Devices refuse a message that is too large, so a fleet would never learn of such a task."""
    try:
        size = len(encode(TaskAnnouncement.of(task)))
    except ValidationError:
        size = MAX_MESSAGE_BYTES
    if size > MAX_ANNOUNCED_BYTES:
        raise Misconfigured(
            f"the task's announcement has {size} bytes or more, and at most {MAX_ANNOUNCED_BYTES} are sent: "
            "use fewer or shorter labels, targets or options of the method"
        )


def _check_draw(task: Task) -> None:
    drawn, least = task.rounds.devices_per_round, task.rounds.min_devices
    if drawn is not None and drawn < least:
        raise Misconfigured(
            f"rounds.devices_per_round: {drawn} is less than rounds.min_devices, {least}: "
            "no round would ever open"
        )


def _check_evaluation(data: Path | None, task: Task) -> None:
    """Now, and not after the worker has made a model that nothing can judge."""
    if data is None:
        return
    if task.graph is not None:
        raise Misconfigured(
            f"evaluation.data: task {task.name!r} is of graphs, and there is none here to judge versions on; "
            "leave it out: a version's metrics are the mean of what its devices report"
        )
    if not data.is_file():
        raise Misconfigured(
            f"evaluation.data: {data} is no file; name a labelled window set (npz) or leave it out"
        )
    try:
        windows = window_set.load(data, task)
    except Misconfigured as error:
        raise Misconfigured(f"evaluation.data: {error}") from None
    if not any((~np.isnan(window_set.target(windows, name))).any() for name in _labelled(task)):
        raise Misconfigured(f"evaluation.data: {data}: none of its {len(windows)} windows is labelled")


def _labelled(task: Task) -> tuple[str, ...]:
    """The targets of which one must have labels, for a version to be judged."""
    return tuple(target.name for target in task.objectives if target.kind == "classification")
