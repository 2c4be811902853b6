"""A fleet with further tasks: the tables of each, as its coordinator writes them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.round_machine.events import RoundPhase
from tests.support.console.fleet_tables import state_of, store_states
from tests.support.console.history import History, settings_in
from tests.support.tasks import sensors, small_task

SOUND = "sound"
DOOR = "door"


def tasks_of(folder: Path, *names: str) -> list[dict[str, Any]]:
    """Tables ``[[tasks]]``."""
    return [{"name": name, "task": folder / f"{name}.toml"} for name in names]


def learns(settings: CoordinatorSettings, rounds: int, devices: Sequence[str], **task: Any) -> None:
    """A task whose rounds were made by these devices, and that waits for the next one."""
    with History(settings, small_task(sensors(mic=(1, 50)), ("bark", "moo"), **task)) as history:
        history.clock.set_wall(time.time() - 100 * (rounds + 1))
        history.makes(0)
        for number in range(1, rounds + 1):
            history.plays(number, devices)
        history.stands(RoundPhase.WAITING, rounds + 1, rounds)
        store_states(history.store, [state_of(number, name) for number, name in enumerate(devices, 1)])


def several_tasks(folder: Path, **changes: Any) -> CoordinatorSettings:
    """Settings of a main task with three rounds, of ``sound`` with two, and of ``door``, which has not begun.

    ``both`` takes part in the first two, ``ear`` in ``sound`` alone.
    """
    settings = settings_in(folder, tasks=tasks_of(folder, SOUND, DOOR), **changes)
    learns(settings, 3, ["both", "leg"], name="gait")
    learns(settings.for_task(SOUND), 2, ["both", "ear"], name="barn-sounds")
    return settings
