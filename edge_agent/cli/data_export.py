"""``lichen agent data export``: exports the stored windows of a device as a window set. Works while it runs.

The store holds windows, not streams, so only a window set can be exported.
"""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.config.agent import AgentSettings, read_task
from edge_agent.tasks.task_store import TASK_FILE, read_saved_task
from edge_agent.windows.rows import WindowRow, as_set, whole_bytes
from edge_agent.windows.store import MAX_READ_BYTES
from edge_agent.windows.store_file import grid_digest
from models.contract import WindowSet
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.cli import Format, FormatOption, print_result
from runtime.outputs import writing
from runtime.storage.sqlite import open_reader, sqlite_errors

app = typer.Typer(no_args_is_help=True, help="Export what this device collected.")
_COLUMNS: Final = "y, present, quality, x, targets, NULL"


@app.callback()
def root() -> None:
    """Keep the subcommand's name in the command line."""


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="the npz to write")],
    config: Config = DEFAULT_CONFIG,
    newest: Annotated[int | None, typer.Option(min=1, help="write at most this many, the newest")] = None,
    task_name: TaskOption = None,
    *,
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="include windows without any label")
    ] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Write the stored windows of this device as a window set.

    The group of each window is the device's name. The agent may run. The file has raw values, which leave the
    device in no other way.
    """
    settings = read_task_settings(config, task_name)
    task = _task(settings, config)
    found = stored(settings.state_dir / "store", task, newest, unlabelled=unlabelled)
    with writing(out):
        window_set.save(out, replace(found, group_B=np.full(len(found), settings.device)))
    told: dict[str, Any] = {"out": str(out), "task": task.name, **window_set.described(found, task)}
    counts = ", ".join(f"{label} {count}" for label, count in told["by_class"].items())
    print_result(output, told, f"{out}: {len(found)} windows of task {task.name}: {counts}")


def _task(settings: AgentSettings, config: Path) -> Task:
    """The last announced task, else that of the configuration.

    Raises:
        Misconfigured: none is known, or it is on knowledge graphs.
    """
    task = read_saved_task(settings.state_dir / TASK_FILE)
    if task is None and settings.task_file is not None:
        task = read_task(settings.task_file, config)
    if task is None:
        raise Misconfigured(f"{config}: no task was announced yet, and there is no task_file")
    if task.graph is not None:
        raise Misconfigured(f"task {task.name!r} is on knowledge graphs, and has no windows")
    return task


def stored(folder: Path, task: Task, newest: int | None, *, unlabelled: bool) -> WindowSet:
    """The windows of a task's grid in a store that is not opened for writing, oldest first.

    Args:
        folder: of the store.
        task: defines the grid.
        newest: maximal number of windows; None: as many as fit in 512 MiB.
        unlabelled: include those without any label.

    Raises:
        Misconfigured: there is no such store, or it has no such windows.
        Transient: it cannot be read now.
    """
    path = folder / f"windows-{grid_digest(task)}.sqlite3"
    if not path.is_file():
        raise Misconfigured(
            f"{path} is missing: this device stores no windows of task {task.name!r} (a device that only "
            "observes stores none: store.enabled; another grid has another store)"
        )
    alone = task.model_copy(update={"window": task.window.model_copy(update={"context_s": None})})
    most = max(1, MAX_READ_BYTES // whole_bytes(alone))
    where = "" if unlabelled else "WHERE +y <> -1"
    query = f"SELECT {_COLUMNS} FROM windows {where} ORDER BY id DESC LIMIT ?"  # noqa: S608 - constant text
    with sqlite_errors(path), closing(open_reader(path)) as db:
        rows = [WindowRow(*row) for row in db.execute(query, (min(newest or most, most),))][::-1]
    if not rows:
        kind = "windows" if unlabelled else "windows with a label; --unlabelled includes the others"
        raise Misconfigured(f"{path}: it holds no {kind}")
    try:
        return as_set(alone, rows)
    except (ValueError, IndexError) as error:
        raise Misconfigured(f"{path}: a window is damaged: {error}") from None
