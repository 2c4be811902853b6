"""``lichen agent``: enroll, secret, consent, run, check, data, label, page, doctor, status, support, ask."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from edge_agent import app as daemon
from edge_agent.cli.ask import ask
from edge_agent.cli.consent import consent
from edge_agent.cli.data_export import app as data
from edge_agent.cli.doctor import doctor
from edge_agent.cli.enroll import enroll
from edge_agent.cli.label import app as label
from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.cli.page import page
from edge_agent.cli.secret import secret
from edge_agent.cli.sensors import app as sensors
from edge_agent.cli.support import support
from edge_agent.config.agent import AgentSettings, read, read_task
from edge_agent.knowledge_graph.watcher import check_knowledge_graph
from edge_agent.sources.base import channels_in
from edge_agent.sources.registry import open_sources
from edge_agent.status import status_file as last_words
from edge_agent.tasks.config_warnings import require_output, warnings
from edge_agent.tasks.profile import unknown_modalities
from edge_agent.tasks.roles import roles_of
from edge_agent.tasks.task_store import check_for, unused
from edge_agent.trust.updater import UNSIGNED, begin
from protocol.errors import Misconfigured
from runtime import exit_codes
from runtime.cli import Format, FormatOption, fail
from runtime.clock import SystemClock
from runtime.mqtt.link import read_password
from runtime.mqtt.tls import tls_context
from runtime.waits import lines, span

_COMMAND: Final = "lichen agent"
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The daemon of a device: collects, learns, sends, predicts.",
)
app.command()(enroll)
app.command()(secret)
app.command()(consent)
app.command()(ask)
app.add_typer(sensors, name="sensors")
app.add_typer(data, name="data")
app.add_typer(label, name="label")
app.command()(doctor)
app.command()(page)
app.command()(support)


@app.command()
def run(config: Config = DEFAULT_CONFIG) -> None:
    """Run the agent until SIGTERM. Exit status 78: the configuration is wrong."""
    raise typer.Exit(daemon.run(config))


@app.command()
def check(config: Config = DEFAULT_CONFIG, output: FormatOption = Format.TABLE) -> None:
    """Check the configuration, the task and the files of sources. Changes nothing."""
    try:
        found = _checked(config)
    except Misconfigured as error:
        fail(_COMMAND, error, output)
    _show(found, output)


def _checked(config: Path) -> dict[str, Any]:
    settings = read(config)
    further = [one.name for one in settings.tasks]
    found = _checked_task(settings.for_task(None), config)
    if further:
        found["tasks"] = {name: _checked_further(settings.for_task(name), config) for name in further}
    return found


def _checked_further(settings: AgentSettings, config: Path) -> dict[str, Any]:
    try:
        found = _checked_task(settings, config)
    except Misconfigured as error:
        raise Misconfigured(f"task {settings.task_name}: {error}") from None
    return {key: found[key] for key in ("fleet", "roles", "bundles", "task", "warnings")}


def _checked_task(settings: AgentSettings, config: Path) -> dict[str, Any]:
    task = None if settings.task_file is None else read_task(settings.task_file, config)
    known = None if settings.tasks else task  # a source may be another task's
    sources = open_sources(settings, config, known, SystemClock())
    require_output(settings, config)
    tls_context(settings.mqtt)
    read_password(settings.mqtt)
    first = begin(settings.device_dir, settings.trust_file)
    if task is not None:
        check_for(task, sources, settings)
        others = [] if settings.tasks else unused(task, sources, settings.graph)
        if wrong := [*others, *unknown_modalities(task, settings.learn)]:
            raise Misconfigured(f"{config}: {'; '.join(wrong)} ({settings.task_file})")
    return {
        "config": str(config),
        "fleet": settings.fleet,
        "device": settings.device,
        "roles": list(roles_of(settings, task)),
        "broker": settings.mqtt.where,
        "bundles": UNSIGNED if first is None else f"must be signed (root {first.root.said.version})",
        "task": None if task is None else task.name,
        "sources": {s.name: s.channels if task is None else channels_in(s, task) for s in sources},
        **check_knowledge_graph(task, settings),
        "warnings": warnings(settings, task, sources),
    }


@app.command()
def status(
    config: Config = DEFAULT_CONFIG,
    task_name: TaskOption = None,
    output: FormatOption = Format.TABLE,
    *,
    why: Annotated[
        bool,
        typer.Option("--why", help="show only the conditions that it waits for, since when and until when"),
    ] = False,
) -> None:
    """Show the agent's activity and the conditions that it waits for. Exit status 69: it does not run.

    Of a device with several tasks: the main task, and the others in short; --task shows one of them.
    """
    try:
        settings = read_task_settings(config, task_name)
    except Misconfigured as error:
        fail(_COMMAND, error, output)
    try:
        alive, found = last_words.read(settings)
    except FileNotFoundError as error:
        words = f"{error.filename} is not there; has this agent ever run? lichen agent run starts it"
        if task_name is not None:
            words = f"task {task_name} has not run yet; lichen agent status without --task says why"
        fail(_COMMAND, words, output)
    except (OSError, ValueError) as error:
        file = settings.cache_dir / last_words.STATUS_FILE
        words = getattr(error, "strerror", None) or str(error)
        fail(_COMMAND, f"{file} cannot be read: {words}; is the agent running?", output)
    now = SystemClock().wall()
    waits = last_words.waits(found, now, alive=alive)
    if why and output is Format.TABLE:
        written, age = found.get("wall"), ""
        if alive and isinstance(written, int | float):
            age = f", as it was {span(now - written)} ago"
        typer.echo("\n".join([f"agent: {found['agent']}{age}", *lines(waits, now)]))
    else:
        told = [wait.as_json(now) for wait in waits]
        short = {key: found.get(key) for key in ("agent", "running", "device", "wall")}
        if output is Format.TABLE and isinstance(found.get("tasks"), dict):
            found["tasks"] = [_task_line(name, task) for name, task in found["tasks"].items()]
        _show(
            (short if why else found) | {"waits": told if output is Format.JSON else lines(waits, now)},
            output,
        )
    if not alive:
        raise typer.Exit(exit_codes.UNAVAILABLE)


def _task_line(name: str, task: dict[str, Any]) -> str:
    """A further task of the device."""
    if not task.get("task"):
        return f"{name}: {task.get('state')}" + ("; nobody announced it yet" if "task" in task else "")
    does = f"task {task['task']}, {task.get('windows', 0)} windows; {task.get('learning')}"
    return f"{name}: {task.get('state')}; {does}"


def _show(found: dict[str, Any], output: Format) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps(found, indent=1))
        return
    from rich.console import Console  # noqa: PLC0415 - `lichen agent run` prints no table and needs no rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(show_header=False, box=None)
    for key, value in found.items():
        # Text: brackets, as in `pip install 'lichen[train]'`, are not markup
        lines_of = key in {"waits", "tasks"} and isinstance(value, list)
        shown = "\n".join(value) if lines_of else value if isinstance(value, str) else json.dumps(value)
        table.add_row(Text(key), Text(shown))
    Console().print(table)
