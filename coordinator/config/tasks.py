"""``[[tasks]]`` of ``coordinator.toml``: further tasks of the fleet (docs/several-tasks.md)."""

from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from coordinator.config.rollout import RolloutSettings
from coordinator.config.storage import StorageSettings
from coordinator.config.versions import (
    EvaluationSettings,
    ExportSettings,
    Positive,
    StartSettings,
    WorkerSettings,
)
from coordinator.objects.s3_url import below
from coordinator.storage.engines.postgres_address import task_schema
from protocol.errors import Misconfigured
from protocol.topics import task_name_trouble
from runtime.settings.load import ConfigPath, MqttSettings, Section
from runtime.settings.packages import PackagesSettings

MAX_TASKS: Final = 15
"""Further tasks of one fleet: each has a link, databases and a few threads."""
FOLDER: Final = "tasks"
"""Below ``state_dir``: a folder for each further task. Below a bucket's prefix: the same."""
OWN_FOLDER: Final = "identity"
"""Below ``state_dir``: the coordinator's own certificates."""
_Model = TypeVar("_Model", bound=BaseModel)


def _task_name(text: str) -> str:
    if words := task_name_trouble(text):
        raise ValueError(words)
    return text


class TaskSettings(Section):
    """One further task. What is not set here counts as in the rest of the file.

    Not so the evaluation data and the weights of version 0, which fit one task only.
    """

    name: Annotated[str, AfterValidator(_task_name)]
    """In topics, folders and ``--task``; it stays the same while the task runs."""
    task: ConfigPath
    """Its ``task.toml``, relative to the config file."""
    start: StartSettings = StartSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    export: ExportSettings = ExportSettings()
    rollout: RolloutSettings = RolloutSettings()
    worker: WorkerSettings = WorkerSettings()
    packages: PackagesSettings = PackagesSettings()
    keep_versions: Positive | None = None
    keep_updates: Positive | None = None
    spread_s: Annotated[float, Field(ge=0, le=86400)] | None = None
    away_grace_s: Annotated[float, Field(ge=0, le=86400)] | None = None

    def over(self, settings: BaseModel) -> dict[str, Any]:
        """The keys of this task, over those of the file."""
        found: dict[str, Any] = {"task": self.task, "start": self.start, "evaluation": self.evaluation}
        for key in ("export", "rollout", "worker", "packages"):
            found[key] = merged(getattr(settings, key), getattr(self, key))
        for key in ("keep_versions", "keep_updates", "spread_s", "away_grace_s"):
            if (value := getattr(self, key)) is not None:
                found[key] = value
        return found


def merged(base: _Model, over: BaseModel) -> _Model:
    """``base`` with the keys that are set in ``over``."""
    found = {}
    for key in over.model_fields_set:
        ours, theirs = getattr(base, key), getattr(over, key)
        both = isinstance(ours, BaseModel) and isinstance(theirs, BaseModel)
        found[key] = merged(ours, theirs) if both else theirs
    return base.model_copy(update=found)


def storage_of(storage: StorageSettings, schema: str, name: str) -> StorageSettings:
    """``[storage]`` of a further task: a schema, and a prefix in the bucket, of its own.

    Args:
        storage: of the file.
        schema: of the main task.
        name: of the further task.
    """
    found: dict[str, str] = {}
    if storage.url:
        found["schema_name"] = task_schema(schema, name)
    if storage.blobs:
        found["blobs"] = below(storage.blobs, FOLDER, name)
    return storage.model_copy(update=found)


def mqtt_of(mqtt: MqttSettings, state_dir: Path, name: str) -> MqttSettings:
    """``[mqtt]`` of a further task: its own certificate, where the fleet's authority makes it.

    A broker with the authority's rules makes the certificate's name the client id, so that two links need two
    certificates.
    """
    tls, main = mqtt.tls, own_certificate(state_dir, None)
    if tls is None or tls.cert_file != main:
        return mqtt
    pair = own_certificate(state_dir, name)
    key = pair if tls.key_file == main else tls.key_file
    return mqtt.model_copy(update={"tls": tls.model_copy(update={"cert_file": pair, "key_file": key})})


def own_certificate(state_dir: Path, name: str | None) -> Path:
    """Certificate and key of the coordinator as a client of the broker, for one task (None: the main one)."""
    file = "coordinator.pem" if name is None else f"coordinator~{name}.pem"
    return state_dir / OWN_FOLDER / file


def unknown_task(name: str, names: tuple[str, ...]) -> Misconfigured:
    """The error for a name that the file does not have."""
    if not names:
        return Misconfigured(
            f"task {name!r}: coordinator.toml has no [[tasks]], so the main task is the only one (leave "
            "--task out)"
        )
    return Misconfigured(
        f"task {name!r} is not in coordinator.toml; its [[tasks]] are {', '.join(names)}, and the main task "
        "(leave --task out)"
    )
