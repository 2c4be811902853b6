"""``[[tasks]]`` of ``agent.toml``: further tasks of the device, beside the one of the whole file.

A key that is not set here is the device's. What names modalities or files of one task (``inputs``,
``targets``, ``output``) is not taken over.
"""

from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from protocol.base import NAME_ERROR, Share
from protocol.errors import Misconfigured
from protocol.messages import Role
from protocol.tasks.task import ModalityName
from protocol.topics import task_name_trouble
from runtime.settings.load import ConfigPath, Section

S = TypeVar("S", bound=Section)
MAX_TASKS: Final = 8
FOLDER: Final = "tasks"
"""In ``state_dir`` and ``cache_dir``: a folder for each further task."""


def _named(text: str) -> str:
    if words := task_name_trouble(text):
        raise PydanticCustomError(NAME_ERROR, "{words}", {"words": words})
    return text


TaskName = Annotated[str, AfterValidator(_named)]


class _Overrides(Section):
    """Keys of a section of the device that a task sets for itself."""

    def over(self, base: S, **always: Any) -> S:
        """The device's section with the keys that are set here, and with ``always``."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        found = {name: value for name, value in own.items() if value is not None}
        return base.model_copy(update=found | always)


class DeviceTaskLearn(_Overrides):
    """``[tasks.learn]``. Limits of privacy are the device's alone."""

    timeout_s: Annotated[float, Field(gt=0, le=86400)] | None = None
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    max_windows: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    inputs: Annotated[tuple[ModalityName, ...], Field(min_length=1, max_length=16)] | None = None
    targets: Annotated[tuple[ModalityName, ...], Field(min_length=1, max_length=16)] | None = None


class DeviceTaskInfer(_Overrides):
    """``[tasks.infer]``."""

    enabled: bool | None = None
    output: ConfigPath | None = None
    min_quality: Share | None = None
    threads: Annotated[int, Field(ge=1, le=64)] | None = None


class DeviceTaskSettings(Section):
    """One table ``[[tasks]]``."""

    name: TaskName
    """As its coordinator names it; the level ``<fleet>~<name>`` in topics."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=3)] | None = None
    task_file: ConfigPath | None = None
    """The task until one is announced."""
    trust_file: ConfigPath | None = None
    """``root.json`` of this task's coordinator. None: the device's."""
    learn: DeviceTaskLearn = DeviceTaskLearn()
    infer: DeviceTaskInfer = DeviceTaskInfer()


def source_of_task(table: dict[str, Any], task: str) -> dict[str, Any]:
    """The table of a source that a further task reads on its own: no two connections have one client id."""
    client_id = table.get("client_id")
    return table if client_id is None else {**table, "client_id": f"{client_id}-{task}"}


def require_share(file: Path, key: str, budget: int, count: int, least: int) -> None:
    """Check that each of ``count`` tasks has enough of a budget in bytes. Raises Misconfigured."""
    if budget < count * least:
        raise Misconfigured(
            f"{file}: {key}: it is divided by {count} tasks, and each needs {least} bytes: set at least "
            f"{count * least}"
        )
