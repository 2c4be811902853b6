"""``agent.toml``: every key, its unit and its default. docs/agent-settings.md explains them."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo

from edge_agent.config.further_tasks import (
    FOLDER,
    MAX_TASKS,
    DeviceTaskSettings,
    require_share,
    source_of_task,
)
from edge_agent.config.knowledge_graph import KnowledgeGraphSettings
from edge_agent.config.privacy import AccountSettings, PrivacySettings
from edge_agent.config.providers import AcceleratorSettings
from edge_agent.config.publish import PublishSettings
from edge_agent.config.quality import QualitySettings
from edge_agent.config.secure_aggregation import SecureAggregationSettings
from protocol.base import Label, Name, Share
from protocol.errors import Misconfigured
from protocol.messages import Role
from protocol.rollout import Trial
from protocol.tasks.evaluation import MAX_EVALUATED
from protocol.tasks.task import ModalityName, Task
from protocol.topics import is_namespace, namespace, split_namespace
from runtime.settings.load import (
    ConfigPath,
    LogSettings,
    MqttSettings,
    Section,
    beside_the_file,
    load,
    load_toml,
)
from runtime.settings.packages import PackagesSettings
from runtime.tracing.settings import TracingSettings

MIN_BYTES = 64 * 1024
MIN_STORE_BYTES = 1_000_000
Bytes = Annotated[int, Field(ge=MIN_BYTES, le=2**40)]
DownloadHost = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?$")]
Positive = Annotated[float, Field(gt=0, le=86400)]
MIB = 1024 * 1024


def _find_password_file(table: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """What the file holds is removed from logs, before the kind of source has checked the table."""
    name = table.get("password_file")
    if not isinstance(name, str):
        return table
    return {**table, "password_file": str(beside_the_file(Path(name), info))}


SourceTable = Annotated[dict[str, Any], AfterValidator(_find_password_file)]


class StoreSettings(Section):
    """``[store]``: the windows on disk."""

    enabled: bool | None = None
    """None: on if this device learns (roles ``train``, ``prototype``). Without a store windows are counted
    and used at once, and not stored."""
    budget_bytes: Annotated[int, Field(ge=MIN_STORE_BYTES, le=2**40)] = 256 * MIB
    """Of all its files on the disk, including SQLite's WAL and index."""
    commit_every_s: Positive = 5.0
    """A power cut loses at most this much; a longer time spares the SD card."""


class OutboxSettings(Section):
    """``[outbox]``: updates that have no receipt yet."""

    budget_bytes: Bytes = 64 * MIB
    resend_s: Positive = 10.0


class LearnSettings(AccountSettings):
    """``[learn]``: training in a child process; or prototypes, without torch, in a thread."""

    timeout_s: Positive = 600.0
    worker_idle_s: Positive = 120.0
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    max_windows: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    inputs: Annotated[tuple[ModalityName, ...], Field(min_length=1, max_length=16)] | None = None
    """The modalities that this device reads to predict; others are only collected to generate a target. None:
    all that it delivers and the task reads."""
    targets: Annotated[tuple[ModalityName, ...], Field(min_length=1, max_length=16)] | None = None
    """Targets that this device learns (``label`` is the task's first target). None: all with labels."""
    module: str = "models.worker"
    """The worker's module; another one only in tests."""


class InferSettings(AcceleratorSettings):
    """``[infer]``: ONNX Runtime on the live windows."""

    enabled: bool = True
    output: ConfigPath | None = None
    """JSON lines, one for each window; rotated to ``<name>.1`` at ``max_output_bytes``."""
    max_output_bytes: Bytes = 16 * MIB
    min_quality: Share = 0.0
    """A modality of lower quality counts as missing; 0 accepts all."""
    isolation: Literal["process", "none"] = "process"
    """``process``: each model has a process of its own. ``none``: it runs in the agent's process, which takes
    less memory and time; it is first tried in another process, and a later crash ends the agent."""
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    variant: Literal["auto", "float32", "int8"] = "auto"
    """``auto``: the device measures the variants of a bundle, and takes the fastest that agrees with float32.
    """
    providers: Annotated[tuple[str, ...], Field(max_length=8)] = ()
    """Permitted execution providers of ONNX Runtime; empty: all that are installed are measured. The CPU is
    always permitted."""
    min_agreement: Share = 0.99
    """Minimal share of windows on which a variant must agree with float32."""
    timeout_s: Positive = 10.0
    """A model that has not answered within this time is ended and counts as failed."""
    mqtt: PublishSettings | None = None
    """``[infer.mqtt]``: predictions on a local broker."""


class HoldoutSettings(Section):
    """``[evaluation]``: of versions, on windows that the task's ``[holdout]`` holds back from learning."""

    enabled: bool = True
    """False: this device learns from all its windows, and reports no evaluation."""
    min_windows: Annotated[int, Field(ge=1, le=4096)] = 20
    """With fewer windows nothing is reported: a confusion matrix of few windows tells what a person did."""
    max_windows: Annotated[int, Field(ge=1, le=MAX_EVALUATED)] = 1024
    """The newest held-back windows that a version is evaluated on."""
    every_s: Positive = 60.0
    """Interval at which the device looks for a new model, or for a quarter more windows."""


class WindowSettings(Section):
    """``[windows]``."""

    lateness_s: Positive = 2.0
    """A modality that has delivered nothing for this long is not waited for."""


class TrialSettings(Trial):
    """``[deploy.trial]``: the keys of :class:`Trial`."""

    model_config = Section.model_config


class DeploySettings(Section):
    """``[deploy]``: tests that a new model must pass on this device before it stays."""

    trial: TrialSettings = TrialSettings()
    """If the pointer contains none."""
    max_starts: Annotated[int, Field(ge=1, le=100)] = 3
    """A model that is still on trial after this many starts of the agent is removed: it may be the cause."""


class DriftSettings(Section):
    """``[drift]``: of the committed model's answers from those of its first days on this device."""

    enabled: bool = True
    reference_days: Annotated[int, Field(ge=1, le=31)] = 3
    """The model's first days that later ones are compared with; 7 where weekends differ from other days."""
    min_windows: Annotated[int, Field(ge=50, le=1_000_000)] = 200
    """With fewer windows in a day, nothing is compared."""


class DownloadSettings(Section):
    """``[download]``: large blobs over HTTPS instead of MQTT, if the coordinator has a bucket."""

    hosts: Annotated[tuple[DownloadHost, ...], Field(max_length=16)] = ()
    """``host`` or ``host:port`` of the bucket's service. Empty: no URL is followed. A URL of another host, or
    not of https, is never opened, whoever sent it."""
    ca_file: ConfigPath | None = None
    """Certificates to trust for these hosts alone; None: those of the system."""


class TelemetrySettings(Section):
    """``[telemetry]``: what this device reports about itself to its coordinator (docs/observability.md)."""

    every_s: Annotated[float, Field(ge=0, le=86400)] = 600.0
    """Interval of its own metrics (spool, disk, CPU, windows, latency), about 450 bytes each; 0: never."""


class DiagnosisSettings(Section):
    """``[diagnosis]``: what the fleet's operator may ask this device for (docs/diagnosis.md)."""

    send_logs: bool = False
    """Permits to send the last log lines, without secrets. Off: a line may quote what a sensor sent."""


class AgentSettings(Section):
    """The whole file."""

    fleet: Name
    """In the settings of one task (:meth:`for_task`) its namespace."""
    device: Name
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=3)] = ("observe", "train")
    state_dir: ConfigPath = Path("/var/lib/lichen")
    cache_dir: ConfigPath = Path("/var/cache/lichen")
    task_file: ConfigPath | None = None
    """The task until one is announced; lets a device collect before it ever reaches a broker."""
    trust_file: ConfigPath | None = None
    """``root.json`` of the fleet: only signed bundles are run. None: the one from the enrolment of this
    device; without one, unsigned bundles are accepted."""
    source: tuple[SourceTable, ...] = ()
    """``[[source]]`` tables; each kind checks its own keys."""
    tasks: Annotated[tuple[DeviceTaskSettings, ...], Field(max_length=MAX_TASKS)] = ()
    """``[[tasks]]``: further tasks of this device (docs/several-tasks.md)."""
    mqtt: MqttSettings = MqttSettings()
    log: LogSettings = LogSettings()
    windows: WindowSettings = WindowSettings()
    quality: QualitySettings = QualitySettings()
    store: StoreSettings = StoreSettings()
    outbox: OutboxSettings = OutboxSettings()
    learn: LearnSettings = LearnSettings()
    secure_aggregation: SecureAggregationSettings = SecureAggregationSettings()
    packages: PackagesSettings = PackagesSettings()
    infer: InferSettings = InferSettings()
    evaluation: HoldoutSettings = HoldoutSettings()
    graph: KnowledgeGraphSettings | None = None
    privacy: PrivacySettings = PrivacySettings()
    deploy: DeploySettings = DeploySettings()
    drift: DriftSettings = DriftSettings()
    download: DownloadSettings = DownloadSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    tracing: TracingSettings = TracingSettings()
    labels: Annotated[dict[Name, Label], Field(max_length=16)] = Field(default_factory=dict)
    """The operator's labels of this device, as ``site = "barn"``: a rollout can begin with labelled devices.
    """
    blob_budget_bytes: Bytes = 512 * MIB
    """Parts of global versions in ``cache_dir``."""
    fetch_timeout_s: Positive = 300.0
    state_every_s: Positive = 30.0
    """Minimal time between two states; small changes wait for ``state_idle_s``."""
    state_idle_s: Positive = 600.0

    @property
    def task_name(self) -> str | None:
        """The further task that these settings are narrowed to; None: the main task."""
        return split_namespace(self.fleet)[1] if is_namespace(self.fleet) else None  # before the enrolment

    @property
    def device_dir(self) -> Path:
        """The ``state_dir`` of the whole device: its identity is there."""
        return self.state_dir if self.task_name is None else self.state_dir.parents[1]

    def for_task(self, name: str | None) -> Self:
        """The settings of one task: its namespace, folders, and share of the budgets. None: the main task.

        Raises:
            Misconfigured: there is no ``[[tasks]]`` table of this name.
        """
        if not self.tasks and name is None:
            return self
        count = 1 + len(self.tasks)
        shared: dict[str, Any] = {
            "store": self.store.model_copy(update={"budget_bytes": self.store.budget_bytes // count}),
            "outbox": self.outbox.model_copy(update={"budget_bytes": self.outbox.budget_bytes // count}),
            "blob_budget_bytes": self.blob_budget_bytes // count,
            "infer": self.infer.model_copy(update={"engine_bytes": self.infer.engine_bytes // count}),
        }
        if name is None:
            return self.model_copy(update=shared)
        task = next((one for one in self.tasks if one.name == name), None)
        if task is None:
            known = ", ".join(one.name for one in self.tasks) or "none"
            raise Misconfigured(f"no [[tasks]] table is named {name!r}; there is {known}")
        return self.model_copy(
            update=shared
            | {
                "fleet": namespace(self.fleet, name),
                "roles": task.roles or self.roles,
                "task_file": task.task_file,
                "trust_file": task.trust_file or self.trust_file,
                "state_dir": self.state_dir / FOLDER / name,
                "cache_dir": self.cache_dir / FOLDER / name,
                "source": tuple(source_of_task(table, name) for table in self.source),
                "learn": task.learn.over(self.learn, inputs=task.learn.inputs, targets=task.learn.targets),
                "infer": task.infer.over(
                    shared["infer"],
                    output=task.infer.output,
                    mqtt=self.infer.mqtt and self.infer.mqtt.of_task(name),
                ),
            }
        )


def read(file: Path) -> AgentSettings:
    """Read ``agent.toml`` with drop-ins and environment.

    Raises:
        Misconfigured: names file, key and the correction.
    """
    settings = load(AgentSettings, file)
    if not settings.source and settings.graph is None:
        raise Misconfigured(f"{file}: no [[source]] and no [graph]: the agent would have nothing to collect")
    names = [one.name for one in settings.tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Misconfigured(f"{file}: tasks.name: {twice[0]!r} is there twice; a further task has one table")
    count = 1 + len(names)
    require_share(file, "store.budget_bytes", settings.store.budget_bytes, count, MIN_STORE_BYTES)
    require_share(file, "outbox.budget_bytes", settings.outbox.budget_bytes, count, MIN_BYTES)
    require_share(file, "infer.engine_bytes", settings.infer.engine_bytes, count, MIN_BYTES)
    require_share(file, "blob_budget_bytes", settings.blob_budget_bytes, count, MIN_BYTES)
    for name in (None, *names):
        _require_consistent(settings.for_task(name), file)
    return settings


def _require_consistent(settings: AgentSettings, file: Path) -> None:
    """Check the settings of one task. Raises Misconfigured."""
    if settings.infer.packages and settings.infer.isolation != "process":
        words = "code of a package never runs in the agent's process"
        raise Misconfigured(f'{file}: infer.packages needs infer.isolation = "process": {words}')
    learns = [role for role in ("train", "prototype") if role in settings.roles]
    if settings.store.enabled is False and learns:
        words = f"the role {learns[0]!r} learns from stored windows: leave out one or the other"
        raise Misconfigured(f"{file}: store.enabled is false: {words}")


def read_task(file: Path, config: Path | None = None) -> Task:
    """Read ``task.toml``; ``config``: the settings file whose ``task_file`` names it, for messages.

    Raises:
        Misconfigured: names file and key.
    """
    return load_toml(Task, file, named_by="task_file" if config is None else f"task_file in {config}")
