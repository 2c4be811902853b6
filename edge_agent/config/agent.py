"""``agent.toml``: every key, its unit and its default. docs/agent-settings.md explains them."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from edge_agent.config.publish import PublishSettings
from protocol.base import Label, Name, Share
from protocol.errors import Misconfigured
from protocol.messages import Role
from protocol.rollout import Trial
from protocol.tasks.evaluation import MAX_EVALUATED
from protocol.tasks.options import FeatureName
from protocol.tasks.task import ModalityName, Task
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

Bytes = Annotated[int, Field(ge=64 * 1024, le=2**40)]
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
    budget_bytes: Annotated[int, Field(ge=1_000_000, le=2**40)] = 256 * MIB
    """Of all its files on the disk, including SQLite's WAL and index."""
    commit_every_s: Positive = 5.0
    """A power cut loses at most this much; a longer time spares the SD card."""


class OutboxSettings(Section):
    """``[outbox]``: updates that have no receipt yet."""

    budget_bytes: Bytes = 64 * MIB
    resend_s: Positive = 10.0


class LearnSettings(Section):
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
    min_dp_noise: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """A task whose devices add less noise (``dp_noise``) to updates is refused; 0 accepts all."""
    max_epsilon: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """The epsilon of any moment of this device's streams stays within this, over all tasks; a task without
    noise is refused. None: the account is kept without a limit."""
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """delta of the device's own epsilon."""
    module: str = "models.worker"
    """The worker's module; another one only in tests."""


class InferSettings(Section):
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


class QualitySettings(Section):
    """``[quality]``: thresholds, explained in :mod:`edge_agent.windows.quality.meter`."""

    gap_bad: float = Field(default=0.2, gt=0, le=1)
    stuck_share: Share = 0.5
    stuck_channel_share: Share = 0.9
    clip_share: Share = 0.04
    range_share: Share = 0.02
    noise_excess: float = Field(default=8.0, gt=1)
    noise_white: Share = 0.6
    """Minimal flatness of the spectrum of noise (1: white); that of motion is far below."""
    gain_tolerance: float = Field(default=0.15, gt=0, lt=1)
    """Tolerated distance of an accelerometer at rest from 1 g, in g; calibration errors are up to about 0.1.
    """
    gain_allowance: float = Field(default=0.5, ge=0)
    """Additional tolerance, in g per g of standard deviation in the window."""
    turn_low: float = Field(default=0.57, gt=0, lt=1)
    """A gyroscope's gain is wrong below this."""
    turn_high: float = Field(default=1.4, gt=1)
    history: int = Field(default=1024, ge=32, le=65536)
    """Windows of the sensor's own past that define its normal noise."""
    min_history: int = Field(default=16, ge=4)
    """Noise is judged from this many windows."""
    sound_clip_share: Share = 0.01
    silent_level: Share = 0.0003
    """Of full scale: -70 dB."""
    dropout_s: Positive = 0.01
    """Sound that does not change for this long has a dropout."""
    dropout_share: Share = 0.05
    dark_level: Share = 0.1
    bright_share: Share = 0.5
    constant_range: Share = 0.02
    blur_limit: float = Field(default=0.05, ge=0)
    """Sharp images of 96 pixels have 0.2 or more; blurred over 2 % of their width, with a camera's noise,
    0.02 to 0.04. 0: blur is no fault."""
    frozen_s: Positive = 5.0
    frozen_vector_s: Positive = 60.0


class KnowledgeGraphSettings(Section):
    """``[graph]``: the device's facts, for tasks on knowledge graphs. Changed files are read again."""

    triples: Annotated[tuple[ConfigPath, ...], Field(min_length=1, max_length=256)]
    """Files of facts (head, relation, tail, separated by tabs), or folders whose ``*.tsv`` all count."""
    features: Annotated[dict[FeatureName, ConfigPath], Field(max_length=15, default_factory=dict)]
    """By modality of the task, an npz with ``entity`` and ``values``."""
    masks: ConfigPath | None = None
    """An npz with ``entity``, ``modality`` and ``present``: the entities whose features may be used."""
    secret_file: ConfigPath | None = None
    """The secret of the fleet's devices, which the coordinator does not have; made by ``lichen agent
    secret``. None: ``fleet.secret`` in ``state_dir/identity``."""
    queries: ConfigPath | None = None
    """Questions, as (head, relation) lines separated by tabs; appended lines are new questions."""
    poll_s: Positive = 5.0
    """Seconds between two checks for changed files."""


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
    """Interval of its own metrics (spool, disk, memory, CPU, windows, latency), about 450 bytes each; 0:
    never."""


class DiagnosisSettings(Section):
    """``[diagnosis]``: what the fleet's operator may ask this device for (docs/diagnosis.md)."""

    send_logs: bool = False
    """Permits to send the last log lines, without secrets. Off: a line may quote what a sensor sent."""


class AgentSettings(Section):
    """The whole file."""

    fleet: Name
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
    mqtt: MqttSettings = MqttSettings()
    log: LogSettings = LogSettings()
    windows: WindowSettings = WindowSettings()
    quality: QualitySettings = QualitySettings()
    store: StoreSettings = StoreSettings()
    outbox: OutboxSettings = OutboxSettings()
    learn: LearnSettings = LearnSettings()
    packages: PackagesSettings = PackagesSettings()
    infer: InferSettings = InferSettings()
    evaluation: HoldoutSettings = HoldoutSettings()
    graph: KnowledgeGraphSettings | None = None
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


def read(file: Path) -> AgentSettings:
    """Read ``agent.toml`` with drop-ins and environment.

    Raises:
        Misconfigured: names file, key and the correction.
    """
    settings = load(AgentSettings, file)
    if not settings.source and settings.graph is None:
        raise Misconfigured(f"{file}: no [[source]] and no [graph]: the agent would have nothing to collect")
    learns = [role for role in ("train", "prototype") if role in settings.roles]
    if settings.store.enabled is False and learns:
        words = f"the role {learns[0]!r} learns from stored windows: leave out one or the other"
        raise Misconfigured(f"{file}: store.enabled is false: {words}")
    return settings


def read_task(file: Path, config: Path | None = None) -> Task:
    """Read ``task.toml``; ``config``: the settings file whose ``task_file`` names it, for messages.

    Raises:
        Misconfigured: names file and key.
    """
    return load_toml(Task, file, named_by="task_file" if config is None else f"task_file in {config}")
