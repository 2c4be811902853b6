"""``lichen simulate``: a fleet's training in one process; with ``--faults``, its daemons under faults."""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from models.contract import WindowSet
from protocol.errors import Misconfigured
from protocol.task import Task

app = typer.Typer(add_completion=False)


class Format(StrEnum):
    """How the history is printed."""

    TABLE = "table"
    JSON = "json"


TaskFile = Annotated[Path | None, typer.Option("--task", help="task.toml", show_default=False)]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="Folder: one npz, csv or parquet file a device.", show_default=False),
]
Test = Annotated[Path | None, typer.Option("--test", help="Labelled file to judge on; none of the devices'.")]
Rounds = Annotated[int | None, typer.Option("--rounds", min=1, help="Instead of the task's.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Instead of the task's; the first of --faults.")
]
Local = Annotated[bool, typer.Option("--alone", help="Also train each device by itself, and compare.")]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Of torch.")]
Shape = Annotated[Format, typer.Option("--format", help="A table for people, or one JSON object.")]
Faults = Annotated[
    bool,
    typer.Option(
        "--faults", help="Instead: the real coordinator and agents under faults drawn from seeds; no data."
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="With --faults: how many worlds.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="With --faults: processes.")]
Trace = Annotated[bool, typer.Option("--trace", help="With --faults: every event of the world of --seed.")]


@app.command()
def simulate(
    *,
    task: TaskFile = None,
    data: Data = None,
    test: Test = None,
    rounds: Rounds = None,
    seed: Seed = None,
    local: Local = False,
    threads: Threads = 1,
    faults: Faults = False,
    seeds: Seeds = 100,
    workers: Workers = 1,
    trace: Trace = False,
    shape: Shape = Format.TABLE,
) -> None:
    """Train a fleet of virtual devices: the real method, real frames, no broker.

    With --faults: the real coordinator and agents on simulated time, links and disks, under faults that seeds
    decide, and every promise is checked. Exit status 70: one was broken; the words name the seed.

    A device's file is a recording (as the replay source reads it) or a window set (x/<modality>, present,
    quality, y).
    """
    if faults:
        from lichen.world import cli  # noqa: PLC0415 - the help is shown without it

        cli.faults(seeds=seeds, seed=seed, workers=workers, as_json=shape is Format.JSON, trace=trace)
        return
    from runtime.settings import load_toml  # noqa: PLC0415 - as above

    if task is None or data is None:
        raise typer.BadParameter("name a task and its devices' data with --task and --data; or --faults")
    if not task.is_file():
        raise Misconfigured(f"--task {task}: there is no such file")
    chosen = load_toml(Task, task, named_by="--task")
    devices = {file.stem: read_windows(file, chosen) for file in device_files(data, test)}
    judged = None if test is None else labelled(read_windows(test, chosen), test)
    if local and judged is None:
        raise Misconfigured("--alone compares on labelled windows: name them with --test")
    report = run(chosen, devices, judged, rounds=rounds, seed=seed, local=local, threads=threads)
    if shape is Format.JSON:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        show(report)


def run(
    task: Task,
    devices: dict[str, WindowSet],
    test: WindowSet | None,
    *,
    rounds: int | None,
    seed: int | None,
    local: bool,
    threads: int,
) -> dict[str, Any]:
    """Simulate; the history as JSON values."""
    import torch  # noqa: PLC0415 - heavy: only once the files were read

    from lichen.simulate import alone  # noqa: PLC0415 - as above
    from lichen.simulate import simulate as simulate_fleet  # noqa: PLC0415 - as above

    torch.set_num_threads(threads)
    chosen = task.seed if seed is None else seed
    history = simulate_fleet(task, devices, test, chosen, rounds=rounds)
    report: dict[str, Any] = {
        "task": task.name,
        "method": task.method,
        "seed": chosen,
        "devices": sorted(devices),
        "rounds": [asdict(record) for record in history.rounds],
        "confusion": None if history.evaluation is None else history.evaluation.confusion_KK,
        "seconds": history.seconds,
    }
    if local and test is not None:
        reached = alone(task, devices, test, chosen, rounds=rounds)
        report["alone"] = {name: evaluation.metrics for name, evaluation in reached.items()}
    return report


def device_files(folder: Path, test: Path | None) -> list[Path]:
    """The devices' files, sorted; the test file is not one of them.

    Raises:
        Misconfigured: no such folder, nothing in it, or two files of one name.
    """
    if not folder.is_dir():
        raise Misconfigured(f"--data {folder}: there is no such folder")
    apart = None if test is None else test.resolve()
    files = sorted(
        file
        for file in folder.iterdir()
        if file.suffix in {".npz", ".csv", ".parquet"} and file.resolve() != apart
    )
    if not files:
        raise Misconfigured(f"--data {folder}: it has no .npz, .csv or .parquet file")
    names = [file.stem for file in files]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Misconfigured(f"--data {folder}: two files are named {twice[0]}")
    return files


def read_windows(file: Path, task: Task) -> WindowSet:
    """A window set, or a recording cut and judged as on a device.

    Raises:
        Misconfigured: it is neither, or does not fit the task; the message names file and key.
    """
    from edge_agent.offline import windows_of  # noqa: PLC0415 - the help is shown without it
    from edge_agent.sources.recording import read  # noqa: PLC0415 - as above
    from models import windowset  # noqa: PLC0415 - as above

    if not file.is_file():
        raise Misconfigured(f"{file}: there is no such file")
    if file.suffix == ".npz" and _is_window_set(file):
        return windowset.load(file, task)
    try:
        return windows_of(task, read(file))
    except Misconfigured as error:
        raise Misconfigured(str(error) if str(file) in str(error) else f"{file}: {error}") from None


def _is_window_set(file: Path) -> bool:
    try:
        with np.load(file, allow_pickle=False) as archive:
            return "present" in archive.files
    except (OSError, ValueError):
        return False


def labelled(windows: WindowSet, file: Path) -> WindowSet:
    """The labelled windows.

    Raises:
        Misconfigured: there is none.
    """
    from models.windowset import select  # noqa: PLC0415 - the help is shown without it

    chosen = select(windows, windows.y_B >= 0)
    if not len(chosen):
        raise Misconfigured(f"--test {file}: none of its {len(windows)} windows is labelled")
    return chosen


def show(report: dict[str, Any]) -> None:
    """Print the history as a table."""
    table = Table(title=f"{report['task']} ({report['method']}), seed {report['seed']}", title_justify="left")
    for name in ("round", "devices", "bytes up", "accuracy", "refused"):
        table.add_column(name, justify="right", overflow="fold")
    for record in report["rounds"]:
        accuracy = record["metrics"].get("accuracy")
        table.add_row(
            str(record["round"]),
            str(len(record["accepted"])),
            f"{sum(record['bytes_up'].values()):,}",
            "" if accuracy is None else f"{accuracy:.3f}",
            "; ".join(escape(f"{name}: {why}") for name, why in record["refused"].items()),
        )
    console = Console()
    console.print(table)
    reached = [metrics["accuracy"] for metrics in report.get("alone", {}).values()]
    if reached:
        console.print(f"each device alone: mean accuracy {sum(reached) / len(reached):.3f}")
