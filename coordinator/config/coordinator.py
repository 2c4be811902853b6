"""The coordinator's settings (``coordinator.toml``). Keys carry their units."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from coordinator.config.cluster import ClusterSettings
from coordinator.config.compute import ComputeSettings
from coordinator.config.rollout import RolloutSettings
from coordinator.config.storage import StorageSettings
from coordinator.storage.engines.postgres_address import address_of, schema_name
from coordinator.storage.location import Location
from models.training.evaluation import Part
from protocol.base import Name
from protocol.messages import MAX_BLOB_BYTES
from runtime.settings.load import ConfigPath, LogSettings, MqttSettings, Section, load
from runtime.settings.packages import PackagesSettings
from runtime.tracing.settings import TracingSettings

Positive = Annotated[int, Field(ge=1)]
Timeout = Annotated[float, Field(gt=0, le=7 * 86400)]


class EvaluationSettings(Section):
    """Evaluation of versions. ``data``: a labelled window set (npz), relative to the config file."""

    data: ConfigPath | None = None
    every_rounds: Positive = 1
    by: Annotated[tuple[Part, ...], Field(max_length=2)] = ("group",)
    """Also evaluate parts of the windows: those of each person or device (``group``, if the set names them),
    all with fewer modalities (``modalities``). Each part costs as much time again, and more."""


class StartSettings(Section):
    """Weights of version 0: a file of ``lichen task grow``; none: fresh ones, by the task's seed."""

    weights: ConfigPath | None = None


class ExportSettings(Section):
    """Export of bundles. ``every_rounds`` 0: only at the end."""

    enabled: bool = True
    every_rounds: Annotated[int, Field(ge=0)] = 0
    max_routes: Positive = 16
    """For a routed method: limit of bundles of one version, those for most devices first."""
    int8: bool = True
    """Add an int8 variant beside float32, if there are windows to calibrate it on."""


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
    worker: WorkerSettings = WorkerSettings()
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

    @property
    def location(self) -> Location:
        """Where the tables are.

        Raises:
            Misconfigured: ``storage.url`` is no address of a PostgreSQL database, or psycopg is missing.
        """
        where = self.storage
        if not where.url:
            return Location(self.state_dir)
        name = where.schema_name or schema_name(self.fleet)
        return Location(self.state_dir, address_of(where.url, name, where.connect_timeout_s))


def load_settings(file: Path) -> CoordinatorSettings:
    """Read the settings, drop-ins and environment.

    Raises:
        Misconfigured: a setting is wrong; the message names the file and key.
    """
    return load(CoordinatorSettings, file)
