"""``lichen export mlflow``: versions, metrics and lineage of a fleet in an MLflow store."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from runtime import logs
from runtime.process.daemon import run as run_daemon
from runtime.process.daemon import supervise


def mlflow(
    config: Annotated[Path, typer.Option("--config", "-c", help="coordinator.toml", show_default=False)],
    store: Annotated[
        str,
        typer.Option("--store", help="http(s)://HOST:PORT of a tracking server, or sqlite:///FILE."),
    ] = "sqlite:///mlflow.db",
    experiment: Annotated[
        str,
        typer.Option("--experiment", help="Name; default: the fleet's, or FLEET~TASK.", show_default=False),
    ] = "",
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="A further task of the fleet; default: the main task."),
    ] = None,
    bundles: Annotated[
        bool, typer.Option("--bundles/--no-bundles", help="Also store the bundles of exported versions.")
    ] = True,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until Ctrl-C or SIGTERM.")] = False,
    every_s: Annotated[
        float, typer.Option("--every-s", min=0.1, help="With --follow: seconds between two looks.")
    ] = 5.0,
    format_: Annotated[
        Literal["text", "json"], typer.Option("--format", help="Format of the report.")
    ] = "text",
) -> None:
    """Write a fleet's task, versions, metrics and lineage to an MLflow store.

    Reads the coordinator's tables alone: the coordinator may run or not, and does not notice. A second run
    adds what is new since the first.
    """
    from coordinator.config.coordinator import load_settings  # noqa: PLC0415 - a machine that only exports has no SQL
    from lichen.tracking.follower import Follower  # noqa: PLC0415 - as above
    from lichen.tracking.mlflow_store import MlflowStore  # noqa: PLC0415 - as above

    settings = load_settings(config).for_task(task)
    target = MlflowStore(store, experiment or settings.fleet, settings.fleet)
    follower = Follower(settings, target, bundles=bundles)
    try:
        if follow:
            logs.configure(settings.log)
            status = run_daemon(lambda: supervise({"mlflow": lambda: follower.run(every_s)}))
            raise typer.Exit(status)
        copied = follower.copy()
    finally:
        follower.close()
    added = {"values": 0, "registered": 0, "newest": None}
    if copied is not None:
        added = {"values": copied.values, "registered": copied.registered, "newest": copied.newest}
    if format_ == "json":
        typer.echo(json.dumps({"store": store, **added}))
    elif added["values"] or added["registered"]:
        words = "{values} values written, {registered} versions registered; the newest is version {newest}"
        typer.echo(f"{store}: {words.format(**added)}")
    else:
        typer.echo(f"{store}: nothing new")
