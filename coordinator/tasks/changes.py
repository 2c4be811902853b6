"""What a new reading of ``coordinator.toml`` changes about the further tasks."""

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.config.coordinator import CoordinatorSettings
from protocol.errors import Misconfigured

FIXED = ("fleet", "state_dir", "storage")
"""Keys that say where everything is: they count from a start of the process."""


@dataclass(frozen=True, slots=True)
class WantedTask:
    """A further task as the files describe it.

    Attributes:
        settings: of that task.
        file: content of its ``task.toml``; None: it could not be read.
    """

    settings: CoordinatorSettings
    file: bytes | None


@dataclass(frozen=True, slots=True)
class Changes:
    """Names of tasks, each in one of these lists; those that stay as they are in none."""

    start: tuple[str, ...] = ()
    """New ones."""
    restart: tuple[str, ...] = ()
    """Those whose settings or task file differ."""
    end: tuple[str, ...] = ()
    """Those that are no longer there."""


def changes(before: Mapping[str, WantedTask], after: Mapping[str, WantedTask]) -> Changes:
    """Compare two readings."""
    return Changes(
        start=tuple(name for name in after if name not in before),
        restart=tuple(name for name in after if name in before and _differs(before[name], after[name])),
        end=tuple(name for name in before if name not in after),
    )


def _differs(before: WantedTask, after: WantedTask) -> bool:
    return before.file != after.file or before.settings.model_dump() != after.settings.model_dump()


def read_wanted(settings: CoordinatorSettings) -> dict[str, WantedTask]:
    """The further tasks of these settings. Blocks for a disk."""
    found = {}
    for name in settings.task_names():
        narrowed = settings.for_task(name)
        try:
            content = narrowed.task.read_bytes()
        except OSError:  # the task itself says so when it starts
            content = None
        found[name] = WantedTask(narrowed, content)
    return found


def require_same_place(before: CoordinatorSettings, after: CoordinatorSettings) -> None:
    """Check that a reading is of the same fleet and the same state.

    Raises:
        Misconfigured: it is not; nothing of it counts.
    """
    moved = [key for key in FIXED if getattr(before, key) != getattr(after, key)]
    if moved:
        raise Misconfigured(
            f"{', '.join(moved)}: changed in coordinator.toml, which counts from the next start: restart the "
            "coordinator, or change it back; nothing of the file counts until then"
        )


def main_differs(before: CoordinatorSettings, after: CoordinatorSettings) -> bool:
    """Whether keys of the main task changed, which count from the next start."""
    return before.model_dump(exclude={"tasks"}) != after.model_dump(exclude={"tasks"})
