"""``lichen rollout``: create, status, pause, resume, abort. Works while the coordinator runs, and without."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from coordinator.actions import rollouts
from coordinator.actions.answers import RolloutCreated, RolloutOrdered
from coordinator.audit.chain import Person
from coordinator.audit.log import account
from coordinator.cli.options import Config, TaskName, read_settings
from coordinator.cli.rollout_view import OpenedState, show, told
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.rollout.blocked_devices import in_rollout
from coordinator.rollout.model import RolloutState
from coordinator.rollout.view import read_rollouts
from runtime.cli import Format, FormatOption, print_answer
from runtime.process.run_as_owner import run_as_owner

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Roll a version out: canaries first, then waves.",
)
_TRIAL: Final = "Trial: what each device demands of the version"
_GATES: Final = "Gates: what a stage must reach"


def _option(words: str, panel: str | None = None) -> Any:
    return typer.Option(help=words, rich_help_panel=panel, show_default=False)


@app.command()
def create(  # noqa: PLR0917 - one for each option of the command
    config: Config,
    version: Annotated[int | None, _option("which exported version  [default: the newest]")] = None,
    bundle: Annotated[Path | None, _option("a bundle that lichen export wrote")] = None,
    canary: Annotated[
        str | None, _option("first stage: label:KEY=VALUE, share:0.1 or device:NAME,NAME")
    ] = None,
    waves: Annotated[str | None, _option("following shares of the fleet, as 0.25,1; the last is 1")] = None,
    soak_s: Annotated[float | None, _option("seconds for which a stage must stay good")] = None,
    stage_deadline_s: Annotated[float | None, _option("seconds until a stage is paused")] = None,
    min_committed_share: Annotated[
        float | None, _option("share of a stage's present devices that must commit", _GATES)
    ] = None,
    max_failed_share: Annotated[
        float | None, _option("share of the rollout's devices that may fail", _GATES)
    ] = None,
    windows: Annotated[int | None, _option("answers before the verdict", _TRIAL)] = None,
    deadline_s: Annotated[float | None, _option("seconds until the verdict at the latest", _TRIAL)] = None,
    max_errors: Annotated[int | None, _option("windows without an answer that are allowed", _TRIAL)] = None,
    max_latency_ratio: Annotated[
        float | None, _option("answer time relative to the previous model", _TRIAL)
    ] = None,
    min_agreement: Annotated[
        float | None, _option("share of windows on which both models agree", _TRIAL)
    ] = None,
    max_drift: Annotated[
        float | None, _option("distance between the predicted classes of both, 0 to 1", _TRIAL)
    ] = None,
    max_accuracy_drop: Annotated[
        float | None, _option("allowed loss against the previous model, on labelled windows", _TRIAL)
    ] = None,
    min_labelled: Annotated[
        int | None, _option("with fewer labelled windows accuracy is not judged", _TRIAL)
    ] = None,
    *,
    task: TaskName = None,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Start the rollout of a version. Defaults come from `rollout` in coordinator.toml.

    Exit status 65: a rollout is open, the version has no bundle, or the canary matches no known device;
    78: rollout.mode is "newest".
    """
    settings = read_settings(config, task)
    if version is not None and bundle is not None:
        raise typer.BadParameter("--version and --bundle: give one of them")
    trial = {
        "windows": windows,
        "deadline_s": deadline_s,
        "max_errors": max_errors,
        "max_latency_ratio": max_latency_ratio,
        "min_agreement": min_agreement,
        "max_drift": max_drift,
        "max_accuracy_drop": max_accuracy_drop,
        "min_labelled": min_labelled,
    }
    given = {
        "canary": canary,
        "waves": None if waves is None else _shares(waves),
        "soak_s": soak_s,
        "deadline_s": stage_deadline_s,
        "gates": {"min_committed_share": min_committed_share, "max_failed_share": max_failed_share},
        "trial": trial,
    }
    with run_as_owner(settings.state_dir):
        made = rollouts.create(settings, account(), given, version=version, bundle=bundle)
    for line in made.warnings:
        typer.echo(f"lichen rollout: warning: {line}", err=True)
    print_answer(fmt, RolloutCreated.of(made))


@app.command()
def status(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Show the rollout: phase and figures of each device, what it waits for, and until when."""
    settings = read_settings(config, task)
    now = time.time()
    course, past = read_rollouts(settings.location)
    said = OpenedState()
    location, running = settings.location, False
    if location.exists():
        with location.database(read_only=True) as store:
            running = store.is_served() is not False
            roster = DeviceRegistry(store, lambda: now)
            here = set(roster.online())
            said = OpenedState(
                {name: name in here for name in roster.names()}, in_rollout(course, roster.get)
            )
    mode = settings.rollout.mode
    if fmt is Format.JSON:
        typer.echo(json.dumps(told(course, past, said, mode=mode, running=running, now=now)))
    else:
        show(course, past, said, mode=mode, running=running, now=now)


@app.command()
def pause(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Pause the rollout. Devices that have the candidate keep it, and may still roll back."""
    _order(read_settings(config, task), rollouts.pause, fmt)


@app.command()
def resume(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """Resume a paused rollout. Its stage gets its whole time again."""
    _order(read_settings(config, task), rollouts.resume, fmt)


@app.command()
def abort(config: Config, *, task: TaskName = None, fmt: FormatOption = Format.TABLE) -> None:
    """End the rollout: all devices go back to the stable version."""
    _order(read_settings(config, task), rollouts.abort, fmt)


def _order(
    settings: CoordinatorSettings, act: Callable[[CoordinatorSettings, Person], RolloutState], fmt: Format
) -> None:
    with run_as_owner(settings.state_dir):
        after = act(settings, account())
    print_answer(fmt, RolloutOrdered.of(after))


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--waves {text!r}: write shares that grow, as 0.25,1") from None
