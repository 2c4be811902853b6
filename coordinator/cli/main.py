"""``lichen coordinator``: init, serve, check, status, history, backup, trust."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinator.admission.operator_decisions import AUTHORITY, OperatorDecisions
from coordinator.cli.monitoring import monitoring
from coordinator.cli.options import Config, TaskName, read_settings, require_database
from coordinator.cli.status import status
from coordinator.cli.support import support
from coordinator.cli.trust import app as trust
from coordinator.config.coordinator import load_settings
from coordinator.recovery.blob_place import FOLDER, move_blobs, place_of
from coordinator.recovery.downgrade import downgraded
from coordinator.recovery.settings_check import checked
from coordinator.recovery.state_backup import copy_fleet, fleet_locations
from coordinator.recovery.table_copy import copy_from_files
from coordinator.status.history import read
from coordinator.status.history_table import HistoryParts, judged_on, print_parts, rounds_table
from coordinator.tasks.serve import serve as serve_settings
from coordinator.trust.signer import repository_of
from coordinator.versions.best_version import BestVersion
from protocol.errors import Misconfigured
from runtime import exit_codes
from runtime.cli import Format, FormatOption, print_result
from runtime.process.daemon import run
from runtime.process.run_as_owner import run_as_owner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The daemon of a fleet: rounds, aggregation, export, rollout.",
)


@app.command()
def serve(config: Config) -> None:
    """Run all tasks of a fleet until SIGTERM (or, with exit_when_done, until their last rounds are over).

    At SIGHUP it reads the file again: it starts tasks that are new there and ends those that are gone.
    """
    settings = load_settings(config)
    raise typer.Exit(run(lambda: serve_settings(settings, partial(load_settings, config))))


@app.command()
def lead(config: Config, task: TaskName = None) -> None:
    """Lead the rounds while no other process does, else wait. Needs at least one ``ingest`` process."""
    from coordinator.cluster.app import lead as lead_settings  # noqa: PLC0415 - these commands alone need it

    settings = read_settings(config, task)
    raise typer.Exit(run(lambda: lead_settings(settings)))


@app.command()
def ingest(config: Config, task: TaskName = None) -> None:
    """Accept updates and serve models for the process that leads; any number may run, without keys."""
    from coordinator.cluster.app import ingest as ingest_settings  # noqa: PLC0415 - these commands alone need it

    settings = read_settings(config, task)
    raise typer.Exit(run(lambda: ingest_settings(settings)))


@app.command()
def init(
    config: Config,
    host: Annotated[
        list[str] | None,
        typer.Option("--host", help="name or address under which devices reach this machine; repeatable"),
    ] = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Make the fleet's authority and the broker's files. Run again, it makes only what is missing.

    Never overwrites an authority. Exit status 75: all is made, but identity.reload_command failed (as before
    the broker first runs).
    """
    from coordinator.identity import setup  # noqa: PLC0415 - cryptography is needed by this command alone

    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        made = setup.init(settings, host or [])
    print_result(fmt, made.as_json(settings), setup.next_steps(made, config))
    if made.not_reloaded is not None:
        raise made.not_reloaded


@app.command()
def check(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Check the configuration, the task, the method's options, the owner of state_dir, and the bucket.

    Without --task it also checks each further task.
    """
    settings = read_settings(config, task)
    learned, spec, labelled = checked(settings)
    others = settings.task_names()
    for name in others:
        try:
            checked(settings.for_task(name))
        except Misconfigured as error:
            raise Misconfigured(f"task {name!r}: {error}") from None
    found = {
        "config": str(config),
        "fleet": settings.fleet,
        "broker": settings.mqtt.where,
        "state_dir": str(settings.state_dir),
        "storage": settings.location.where,
        "blobs": place_of(settings.storage),
        "task": learned.name,
        "method": spec.name,
        "rounds": learned.rounds.count,
        "modalities": list(learned.modality_names),
        "learns_from": spec.kind.noun,
        "classes": len(learned.labels),
        "targets": list(learned.target_names),
        "selection": learned.rounds.selection,
        "identity": str(settings.main.state_dir / AUTHORITY)
        if OperatorDecisions.enabled_by(settings)
        else None,
        "bundles": "signed" if repository_of(settings).exists else "unsigned (lichen coordinator trust init)",
        "rollout": settings.rollout.mode,
        "tasks": list(others),
        "labelled": None if labelled is None else len(labelled.windows),
        "evaluation": None if settings.evaluation.data is None else str(settings.evaluation.data),
    }
    if fmt is Format.JSON:
        typer.echo(json.dumps(found))
        return
    for key, value in found.items():
        words = ", ".join(value) if isinstance(value, list) else value
        typer.echo(f"{key:11} {'none' if words in {None, ''} else words}")
    typer.echo("The configuration is sound.")


@app.command()
def downgrade(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """Make the state folder usable for this release again, from the copies that a newer release made.

    The coordinator must be stopped. Files that this release can use stay. install.sh --rollback calls this.
    """
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        done = [line for one in fleet_locations(settings) for line in downgraded(one)]
    text = "\n".join(done) or "This release can use what is there; nothing was changed."
    print_result(fmt, {"put_back": done}, text)


app.command()(status)
app.command()(monitoring)
app.command()(support)


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(help="empty or missing folder, better on another disk")],
    config: Config,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Copy the whole state folder, with that of each further task, also while the coordinator runs.

    The copy has the fleet's secrets.
    """
    settings = load_settings(config)
    with run_as_owner(settings.state_dir):
        made = copy_fleet(settings, folder)
    if fmt is Format.JSON:
        typer.echo(json.dumps({"folder": str(made.folder), "files": made.files, "bytes": made.size}))
        return
    typer.echo(f"{made.folder} is a whole state folder: {made.files} files, {made.size / 1e6:.1f} MB.")
    typer.echo("It holds the fleet's keys: keep it where only you can read it.", err=True)


@app.command(name="move-blobs")
def move(
    to: Annotated[str, typer.Argument(help="URL of a bucket (s3://BUCKET/PREFIX?...), or: folder")],
    config: Config,
    *,
    task: TaskName = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Copy versions, bundles and accepted updates to another place; the coordinator must not run."""
    settings = read_settings(config, task)
    with run_as_owner(settings.state_dir):
        made = move_blobs(settings, to)
    then = "remove storage.blobs" if to == FOLDER else "set storage.blobs to that URL"
    words = f"{made.blobs} blobs, {made.frames} files of updates ({made.bytes / 1e6:.1f} MB): in {made.place}"
    lost = f"; {len(made.damaged)} damaged blobs are not" if made.damaged else ""
    print_result(fmt, asdict(made), f"{words}{lost}. Now {then}; then remove the old ones.")


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(help="a state folder with SQLite files, or a backup")],
    config: Config,
    *,
    task: TaskName = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Write the tables of a state folder, or of a backup, into the empty database that storage.url names.

    Those of a further task, with --task, are in the backup's folder tasks/NAME.

    Copy the other files of the folder into state_dir first, where they are not there yet. The next start adds
    what blobs and accepted updates prove since then.
    """
    settings = read_settings(config, task)
    location = settings.location
    if location.schema is None:
        raise Misconfigured(
            f"{config}: storage.url is not set: with SQLite, put the folder in the place of "
            f"{settings.state_dir} (docs/coordinator-state.md)"
        )
    with run_as_owner(settings.state_dir):
        copy_from_files(folder, location)
    words = f"{location.where} has the tables of {folder}; start the coordinator."
    print_result(fmt, {"folder": str(folder), "storage": location.where}, words)


app.add_typer(trust, name="trust")


@app.command()
def history(
    config: Config,
    fmt: FormatOption = Format.TABLE,
    *,
    task: TaskName = None,
    last: Annotated[
        int,
        typer.Option("--last", "-n", min=0, help="Show the newest N rounds; 0: all rounds and all devices."),
    ] = 100,
    by: Annotated[
        HistoryParts | None,
        typer.Option("--by", help="Also show the last evaluated version on parts of the windows."),
    ] = None,
) -> None:
    """Show rounds, metrics, deliveries, bytes and refusals, whether the coordinator runs or not.

    JSON has, under versions, the results of each version on parts of the windows (evaluation.by).
    """
    location = read_settings(config, task).location
    require_database(location, "lichen coordinator", fmt)
    found = read(location, last=last or None)
    if fmt is Format.JSON:
        typer.echo(json.dumps(found))
    else:
        _print(found)
        if by is not None:
            print_parts(found, by.value)
    raise typer.Exit(exit_codes.OK)


def _print(found: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"task {found['task']}: {found['phase']}, round {found['round']}, version {found['version']},"
        f" {found['bytes_up']:,} bytes up, {found['bytes_down']:,} down",
        soft_wrap=True,
        markup=False,
    )
    console.print(f"waits for: {found['why'] or 'nothing yet'}", soft_wrap=True, markup=False)
    if found["best"] is not None:
        console.print(f"best: {BestVersion(**found['best']).words}", markup=False)
    if found["versions"] and (private := found["versions"][-1]["privacy"]) is not None:
        console.print(f"privacy: {private['words']}", soft_wrap=True, markup=False, highlight=False)
    if found["rounds"] and (secure := found["rounds"][-1]["secure"]):
        words = f"secure aggregation: {secure[-1]['words']}"
        console.print(words, soft_wrap=True, markup=False, highlight=False)
    if found["salvaged"]:
        console.print(f"salvaged: {found['salvaged']}", soft_wrap=True, markup=False)
    console.print(rounds_table(found))
    for what, count in found["left_out"].items():
        console.print(f"{what}: {count} more (--last 0 shows all)", markup=False)
    if found["refusals"]:
        table = Table("device", "reason", "count", "last", title="Refused")
        for row in found["refusals"]:
            table.add_row(row["device"], row["reason"], str(row["count"]), escape(row["last_detail"]))
        console.print(table)
    if found["confusion"] is not None:
        labels = found["confusion"]["labels"]
        table = Table(
            "true \\ predicted",
            *map(escape, labels),
            title=f"Confusion of version {found['confusion']['version']}",
        )
        for label, row in zip(labels, found["confusion"]["matrix"], strict=True):
            table.add_row(escape(label), *map(str, row))
        console.print(table)
        console.print(judged_on(found["confusion"]), soft_wrap=True, markup=False, highlight=False)
