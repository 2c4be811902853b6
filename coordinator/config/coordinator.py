"""The coordinator's settings (``coordinator.toml``). Keys carry their units."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, PrivateAttr, model_validator

from coordinator.config.cluster import ClusterSettings
from coordinator.config.compute import ComputeSettings
from coordinator.config.rollout import RolloutSettings
from coordinator.config.storage import StorageSettings
from coordinator.config.tasks import FOLDER, MAX_TASKS, TaskSettings, mqtt_of, storage_of, unknown_task
from coordinator.config.versions import (
    AllWorkersSettings,
    EvaluationSettings,
    ExportSettings,
    Positive,
    StartSettings,
    Timeout,
)
from coordinator.storage.engines.postgres_address import address_of, schema_name
from coordinator.storage.location import Location
from protocol.base import Name
from protocol.messages import MAX_BLOB_BYTES
from protocol.topics import namespace
from runtime.settings.load import ConfigPath, LogSettings, MqttSettings, Section, load
from runtime.settings.packages import PackagesSettings
from runtime.tracing.settings import TracingSettings


class MetricsSettings(Section):
    """Prometheus. Port 0: off. Served on ``address`` only."""

    prometheus_port: Annotated[int, Field(ge=0, le=65535)] = 0
    address: str = "127.0.0.1"


class UploadSettings(Section):
    """Limits of what devices may store on the coordinator's disk before it is accepted."""

    per_device_bytes: Positive = 128 * 1024 * 1024
    total_bytes: Positive = 2 * 1024 * 1024 * 1024


class FetchSettings(Section):
    """Limits of what devices may fetch: the model, bundles, encoder models."""

    device_bytes_a_day: Annotated[int, Field(ge=0)] = 8 * 1024**3
    """Of one device; 0: no limit. Refilled evenly over the day."""


class DeviceSettings(Section):
    """Limits of the device registry (docs/coordinator-settings.md)."""

    most: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Registered devices; 0: 100,000 with an authority, else 4,000."""
    forget_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    """A device that is offline and silent for this long is removed; 0: never."""
    silent_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 1800.0
    """A device that is silent for this long is taken to be offline, whatever its last state. Agents send
    their state every ``state_idle_s`` (600 s): keep this at three times that, or more."""
    histories: Annotated[int, Field(ge=0, le=100_000)] = 10_000
    """Devices whose own metrics are stored over time, about 5 kB each; of further ones only the newest."""


class QuarantineSettings(Section):
    """After ``refusals`` within ``within_s`` a device is denied for ``first_s``, then twice as long."""

    refusals: Annotated[int, Field(ge=0, le=32)] = 5
    """0: never."""
    within_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 86400.0
    first_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 600.0
    longest_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 86400.0


class IdentitySettings(Section):
    """``[identity]``: the fleet's own authority and the service where devices enrol (docs/identity.md)."""

    enabled: bool | None = None
    """None: if ``lichen coordinator init`` has created an authority."""
    host: str = "0.0.0.0"  # noqa: S104 - devices come from the network; it listens only if there is an authority
    port: Annotated[int, Field(ge=1, le=65535)] = 8443
    url: Annotated[str, Field(pattern=r"^(https://[^/\s]{1,253})?$")] = ""
    """URL in invites; empty: ``https://`` the authority's first host and ``port``."""
    broker_host: Annotated[str, Field(max_length=253)] = ""
    """Sent to devices; empty: ``mqtt.host``, or the authority's first host if that is this machine."""
    broker_port: Annotated[int, Field(ge=1, le=65535)] = 8883
    device_days: Annotated[float, Field(ge=0.1, le=3650)] = 90.0
    """Validity of a device's certificate; it renews at two thirds of that."""
    renew_grace_days: Annotated[float, Field(ge=0, le=3650)] = 30.0
    """A certificate that expired longer ago is not renewed: invite and enrol the device again."""
    broker_dir: ConfigPath | None = None
    """Folder of the Mosquitto files; None: ``mosquitto`` in ``state_dir``."""
    broker_group: str = ""
    """The group that may read them, as ``mosquitto``; empty: their owner alone."""
    reload_command: tuple[str, ...] = ()
    """A command that makes the broker read them again, as ``["systemctl", "reload", "mosquitto"]``."""


class TrustSettings(Section):
    """``[trust]``: signing of bundles, if ``lichen coordinator trust init`` has created a root."""

    timestamp_days: Annotated[float, Field(ge=0.01, le=365)] = 7.0
    """Devices accept nothing new that was signed longer ago: limits how long an attacker can hold a new
    version back unseen, and how long this coordinator can be away."""
    again_hours: Annotated[float, Field(ge=0.001, le=720)] = 24.0
    """Signed again after this time."""


class CoordinatorSettings(Section):
    """All of ``coordinator.toml``."""

    fleet: Name
    state_dir: ConfigPath
    task: ConfigPath
    """``task.toml``, relative to the config file."""
    mqtt: MqttSettings = MqttSettings()
    log: LogSettings = LogSettings()
    start: StartSettings = StartSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()
    worker: AllWorkersSettings = AllWorkersSettings()
    packages: PackagesSettings = PackagesSettings()
    compute: ComputeSettings = ComputeSettings()
    metrics: MetricsSettings = MetricsSettings()
    uploads: UploadSettings = UploadSettings()
    fetch: FetchSettings = FetchSettings()
    devices: DeviceSettings = DeviceSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    identity: IdentitySettings = IdentitySettings()
    trust: TrustSettings = TrustSettings()
    rollout: RolloutSettings = RolloutSettings()
    storage: StorageSettings = StorageSettings()
    cluster: ClusterSettings = ClusterSettings()
    tracing: TracingSettings = TracingSettings()
    tasks: Annotated[tuple[TaskSettings, ...], Field(max_length=MAX_TASKS)] = ()
    """Further tasks of the fleet; the rest of the file is the main task."""
    history_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    """Of the database; beyond that the oldest rounds are removed from the history, too."""
    exit_when_done: bool = False
    exit_linger_s: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """After the last round, serve blobs until no device has fetched for this long (at most 20 times as long).
    """
    max_update_bytes: Annotated[int, Field(ge=1024, le=MAX_BLOB_BYTES)] = 64 * 1024 * 1024
    offer_every_s: Timeout = 5.0
    spread_s: Annotated[float, Field(ge=0, le=86400)] = 2.0
    """Once enough devices are eligible, wait this long for more before a round is opened."""
    away_grace_s: Annotated[float, Field(ge=0, le=86400)] = 20.0
    """If all devices that an open round waits for are offline, wait this long for one to return."""
    keep_versions: Positive = 3
    """Blobs and bundles of older versions are removed."""
    keep_updates: Positive = 100_000
    """Headers of accepted updates in the database; beyond that the oldest rounds are removed from the
    history."""

    _main: Self | None = PrivateAttr(None)
    _further_task: str | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _each_task_has_its_name(self) -> Self:
        twice = [name for name, count in Counter(self.task_names()).items() if count > 1]
        if twice:
            raise ValueError(f"tasks: two of them have the name {twice[0]!r}; give each a name of its own")
        return self

    @property
    def main(self) -> Self:
        """The settings of the fleet's main task: those of the file."""
        return self._main or self

    @property
    def further_task(self) -> str | None:
        """The name of the further task that these settings are narrowed to; None: the main task."""
        return self._further_task

    def task_names(self) -> tuple[str, ...]:
        """The names of the further tasks, in the order of the file."""
        return tuple(one.name for one in self.tasks)

    def for_task(self, name: str | None) -> Self:
        """The settings of one task, as if a coordinator ran it alone.

        Its namespace is in the place of the fleet, and it has a state folder, a schema and a prefix of the
        bucket of its own. Authority, revocations and root of trust are those of :attr:`main`.

        Args:
            name: of a further task; None: the main task.

        Raises:
            Misconfigured: there is no such task; the message lists the names.
        """
        main = self.main
        if name is None:
            return main
        one = next((one for one in main.tasks if one.name == name), None)
        if one is None:
            raise unknown_task(name, main.task_names())
        found = main.model_copy(
            update={
                **one.over(main),
                "fleet": namespace(main.fleet, name),
                "state_dir": main.state_dir / FOLDER / name,
                "storage": storage_of(main.storage, main.schema_name, name),
                "mqtt": mqtt_of(main.mqtt, main.state_dir, name),
                "metrics": MetricsSettings(),  # the main task's endpoint shows all
                "tasks": (),
            }
        )
        found._main, found._further_task = main, name  # noqa: SLF001 - of the same class
        return found

    @property
    def schema_name(self) -> str:
        """The schema of the tables, where they are in PostgreSQL."""
        return self.storage.schema_name or schema_name(self.fleet)

    @property
    def location(self) -> Location:
        """Where the tables are.

        Raises:
            Misconfigured: ``storage.url`` is no address of a PostgreSQL database, or psycopg is missing.
        """
        where = self.storage
        if not where.url:
            return Location(self.state_dir)
        return Location(self.state_dir, address_of(where.url, self.schema_name, where.connect_timeout_s))


def load_settings(file: Path) -> CoordinatorSettings:
    """Read the settings, drop-ins and environment.

    Raises:
        Misconfigured: a setting is wrong; the message names the file and key.
    """
    return load(CoordinatorSettings, file)
