"""``lichen task``: finds what is wrong with a task before a coordinator starts on it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
import typer

from lichen.commands.trial.cli import try_
from lichen.task_growth.cli import grow
from models.backbones.views import backbones, sensed
from protocol.base import name_trouble
from protocol.errors import Misconfigured
from protocol.tasks.task import LABEL, Task
from runtime import exit_codes
from runtime.cli import Format, FormatOption
from runtime.outputs import NotWritten, writing
from runtime.settings.load import load_toml
from runtime.storage.files import replace_file

if TYPE_CHECKING:
    from models.data.labelled_windows import LabelledFiles
    from models.spec import MethodSpec

app = typer.Typer(
    no_args_is_help=True, help="Write and check tasks: what a fleet learns.", add_completion=False
)

app.command("grow")(grow)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="the task file")] = Path("task.toml"),
    data: Annotated[
        list[Path] | None, typer.Option(help="recordings, or a folder: counts their windows, too")
    ] = None,
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Check a task as a coordinator would: options of the method, policy, labelled windows.

    With --data it counts the windows of recordings by class and modality, and warns as lichen data check
    does; an error there is a warning here.

    Lists all errors at once. Exit status 78: a coordinator would not start on it. Missing labelled windows
    of a class and the like are warnings. A task on knowledge graphs has features and bounds, no windows.
    """
    try:
        from coordinator.task import prepared  # noqa: PLC0415 - the help works without it

        task = prepared(load_toml(Task, file, named_by="the argument"), file)
    except Misconfigured as error:
        report = {"file": str(file), "warnings": [], "wrong": str(error).splitlines(), "sound": False}
        _finish(report, [], output_format)
    about = dict(_about(task, file))
    if data:
        about["data"], more = _data(sensed(task), data)
        about["warnings"] += more
    _finish(about, _lines(about), output_format)


@app.command()
def init(
    paths: Annotated[list[Path], typer.Argument(help="recordings (npz, csv, parquet), or folders of them")],
    out: Annotated[Path, typer.Option(help="the task file to write")] = Path("task.toml"),
    name: Annotated[str, typer.Option(help="name of the task")] = "my-task",
    method: Annotated[str, typer.Option(help="method of the task")] = "qqr",
    *,
    force: Annotated[bool, typer.Option("--force", help="replace an existing file")] = False,
) -> None:
    """Write a first task file from recordings: their modalities, channels, rates and classes."""
    from lichen.commands import task_init  # noqa: PLC0415 - the other commands do not need it
    from lichen.commands.data_check import files_of  # noqa: PLC0415 - as above
    from lichen.data_import import found_streams  # noqa: PLC0415 - as above

    if out.exists() and not force:
        raise NotWritten(f"--out {out}: exists already; --force replaces it", exit_codes.CANTCREAT)
    if trouble := name_trouble(name):
        raise Misconfigured(f"--name: {trouble}")
    found = found_streams.look(files_of(paths))
    with writing(out):
        replace_file(out, task_init.text(found, name, method).encode())
    task = load_toml(Task, out)
    typer.echo(
        f"{out}: {', '.join(task.modality_names)}; {len(task.labels)} classes: {', '.join(task.labels)}\n"
        f"read its comments, then: lichen data check {paths[0]} --task {out}"
    )


@app.command()
def package(
    name: Annotated[str, typer.Argument(help="name of an installed package, as pip shows it")],
    output_format: FormatOption = Format.TABLE,
) -> None:
    """Print the table of an installed package, for a task that uses parts of it.

    Its files are read, and nothing of it is imported. On every device that trains the same wheel must be
    installed, and the name be in packages.allow.
    """
    from models import package_files, packages  # noqa: PLC0415 - the other commands do not need it

    found = package_files.find_package(name)
    about = found.package.model_dump()
    if output_format is Format.JSON:
        offers = [{"group": group, "name": kind} for group, kind in sorted(found.offers)]
        typer.echo(json.dumps({**about, "offers": offers}))
        return
    typer.echo("[[packages]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in about.items()))
    for group, kind in sorted(found.offers):
        typer.echo(f"# offers {packages.where_to_name(group, kind)}")
    if not found.offers:
        typer.echo(f"# offers nothing: no entry point of {', '.join(packages.GROUPS)}", err=True)


app.command(name="try")(try_)


def _finish(report: dict[str, Any], lines: list[str], output_format: Format) -> NoReturn:
    if output_format is Format.JSON:
        typer.echo(json.dumps(report, allow_nan=False))
    else:
        for line in lines:
            typer.echo(line)
        for words in report["wrong"]:
            typer.echo(f"wrong: {words}", err=True)
    raise typer.Exit(exit_codes.OK if report["sound"] else exit_codes.CONFIG)


def _about(task: Task, file: Path) -> Iterator[tuple[str, Any]]:
    """The whole report, as JSON values."""
    from coordinator.privacy.promise import local_promise, promise  # noqa: PLC0415 - the help works without it
    from coordinator.task import problems  # noqa: PLC0415 - the help works without it
    from models import packages  # noqa: PLC0415 - as above
    from models.registry import methods  # noqa: PLC0415 - as above

    warnings: list[str] = []
    try:
        packages.require(task, [one.name for one in task.packages])
        lacking = []
    except Misconfigured as error:
        lacking = [f"{file}: {error}"]
    wrong = [*(f"{file}: {words}" for words in problems(task)), *lacking]
    spec = methods().get(task.method)
    yield "file", str(file)
    yield "task", task.name
    yield "method", _method(task, spec)
    yield "window", None if task.graph else _window(task)
    yield "targets", [_target(task, name) for name in task.target_names]
    yield "graph", task.graph and task.graph.model_dump(mode="json")
    yield "rounds", {"count": task.rounds.count, "selection": task.rounds.selection}
    momentum = f", momentum {task.aggregator.momentum:g}" if task.aggregator.momentum else ""
    yield "aggregator", f"{task.aggregator.kind}{momentum}"
    yield "privacy", "" if wrong else promise(task, spec)
    yield "local_privacy", "" if wrong or spec is None else local_promise(task, spec)
    yield "backbones", {name: one.model_dump(exclude_none=True) for name, one in backbones(task).items()}
    yield "packages", [f"{one.name} {one.version}" for one in task.packages]
    labelled = None
    if task.labelled is not None:
        try:
            labelled, warnings = _labelled(sensed(task), file)
        except Misconfigured as error:
            wrong.append(f"{file}: labelled: {error}")
        if spec is not None and not spec.guided:
            warnings.append(f"method {task.method!r} does not learn from labelled windows at the coordinator")
    yield "labelled", labelled
    yield "warnings", warnings
    yield "wrong", wrong
    yield "sound", not wrong


def _method(task: Task, spec: "MethodSpec[Any] | None") -> dict[str, Any]:
    """The method's name and options: those that the task sets, and those at their defaults."""
    if spec is None:
        return {"name": task.method}
    about = {"name": task.method, "title": spec.title, "devices_need_labels": spec.needs_labels}
    try:
        options = spec.configure(task).model_dump(mode="json")
    except Misconfigured:
        return about
    given = {name: value for name, value in options.items() if name in task.config}
    return {**about, "options": given, "defaults": {n: v for n, v in options.items() if n not in given}}


def _target(task: Task, name: str) -> dict[str, Any]:
    """One target: devices need labels for it, unless it is a generation."""
    target = task.target(name)
    found: dict[str, Any] = {"name": name, "kind": target.kind}
    if target.labels:
        found["labels"] = list(target.labels)
    elif target.modality:
        found["modality"] = target.modality
    else:
        found |= {"unit": target.unit, "offset": target.offset, "scale": target.scale}
    return found


def _window(task: Task) -> dict[str, Any]:
    samples = {m.name: [m.channels, task.samples(m.name)] for m in task.modalities}
    return {**task.window.model_dump(mode="json"), "samples": samples}


def _labelled(task: Task, file: Path) -> tuple[dict[str, Any], list[str]]:
    """Counts of the labelled windows, and what is missing in them."""
    from models.data import labelled_windows as labelled  # noqa: PLC0415 - only if the task has labelled windows
    from models.data import window_set  # noqa: PLC0415

    found = labelled.read(task, file.parent)
    windows = labelled.usable(task, found)
    by_class = np.bincount(windows.y_B[windows.y_B >= 0], minlength=len(task.labels))
    counts = window_set.counts(windows, task)
    about = {
        "file": str(found.path),
        "kind": "window set" if found.recordings is None else "recordings",
        "recordings": found.recordings,
        "windows": len(windows),
        "unlabelled": len(found.windows) - len(windows),
        "by_class": dict(zip(task.labels, by_class.tolist(), strict=True)),
        "by_modality": {name: dict(zip(task.labels, of_K, strict=True)) for name, of_K in counts.items()},
        "targets": _targets(task, found),
    }
    return about, list(labelled.gaps(task, found, windows))


def _data(task: Task, paths: Sequence[Path]) -> tuple[dict[str, Any], list[str]]:
    """Counts of windows in recordings, and the findings in them."""
    from lichen.commands import data_check, data_check_table  # noqa: PLC0415 - only with --data

    data_check.require_windows(task, "lichen task check --data")
    every = [data_check.checked(task, file) for file in data_check.files_of(paths)]
    across = [finding.words for finding in data_check.across(task, every)]
    counts = data_check_table.counted(", ".join(map(str, paths)), every)
    return counts, [*across, *data_check_table.by_kind(every)]


def _targets(task: Task, found: "LabelledFiles") -> dict[str, int]:
    """Windows with a label of a further target."""
    from models.data import window_set  # noqa: PLC0415 - only if the task has labelled windows

    names = [target.name for target in task.targets if target.kind != "generation" and target.name != LABEL]
    return {name: int(np.isfinite(window_set.target(found.windows, name)).sum()) for name in names}


def _lines(report: dict[str, Any]) -> list[str]:
    """The report for people, without errors."""
    method = report["method"]
    title = f" ({method['title']})" if "title" in method else ""
    lines = [f"{report['file']}: task {report['task']}, method {method['name']}{title}"]
    lines += _graph(report["graph"]) if report["graph"] else [_windows(report["window"])]
    lines += [f"target      {_of_target(target)}" for target in report["targets"]]
    lines.append(
        f"rounds      {report['rounds']['count']}, devices chosen by {report['rounds']['selection']}"
    )
    lines.append(f"aggregator  {report['aggregator']}")
    if report["privacy"]:
        lines.append(f"privacy     {report['privacy']}")
    if report["local_privacy"]:
        lines.append(f"local       {report['local_privacy']}")
    for name, one in report["backbones"].items():
        about = f"{one['features']} features, {one['size']} bytes, SHA-256 {one['sha256']}"
        lines.append(f"backbone    {name}: {one['file']}, {about}")
    if report["packages"]:
        allowed = "as task and files name them; allow them with [packages] where they train"
        lines.append(f"packages    {', '.join(report['packages'])}, {allowed}")
    for name, value in method.get("options", {}).items():
        lines.append(f"option      {name} = {json.dumps(value)}")
    if report["labelled"] is not None:
        lines += _table("labelled", report["labelled"])
    if "data" in report:
        lines += _table("data", report["data"])
    lines += [f"warning: {words}" for words in report["warnings"]]
    return [*lines, "a coordinator can start on it"] if report["sound"] else lines


def _windows(window: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {channels} x {t}" for name, (channels, t) in window["samples"].items())
    share = f", for {window['min_share']:.0%} of it" if window["label_rule"] == "majority" else ""
    rule = f"its label: {window['label_rule']}{share}"
    return f"window      {window['length_s']:g} s every {window['stride_s']:g} s: {sizes}; {rule}"


def _of_target(target: dict[str, Any]) -> str:
    if target["kind"] == "classification":
        return f"{target['name']}: one of {len(target['labels'])} classes: {', '.join(target['labels'])}"
    if target["kind"] == "generation":
        return f"{target['name']}: the window of {target['modality']} is generated; no labels are needed"
    scale = f"learned as (value - {target['offset']:g}) / {target['scale']:g}"
    return f"{target['name']}: a number, in {target['unit']}, {scale}"


def _graph(graph: dict[str, Any]) -> Iterator[str]:
    features = ", ".join(f"{one['name']} {one['dim']}" for one in graph["features"])
    yield f"graph       features of entities: {features or 'none'}; {graph['top_k']} tails an answer"
    bounds = ", ".join(f"{graph[f'max_{what}']} {what}" for what in ("entities", "relations", "triples"))
    yield f"            of a device at most: {bounds}"


def _table(title: str, report: dict[str, Any]) -> list[str]:
    """Labelled windows: classes down, modalities across."""
    count = report["recordings"]
    what = report["kind"] if count is None else f"{count} recording{'s' if count > 1 else ''}"
    size = f"{report['windows']} windows, {report['unlabelled']} more without a label or a modality"
    lines = [f"{title:<10}  {report['file']} ({what}): {size}"]
    names = list(report["by_modality"])
    wide = max(map(len, report["by_class"]))
    lines.append(f"  {'':{wide}}  {'windows':>7}  " + "  ".join(f"{name:>7}" for name in names))
    for label, count in report["by_class"].items():
        cells = (f"{report['by_modality'][name][label]:>{max(7, len(name))}}" for name in names)
        lines.append(f"  {label:{wide}}  {count:>7}  " + "  ".join(cells))
    return [*lines, *(f"  target {name}: {count} windows" for name, count in report["targets"].items())]
