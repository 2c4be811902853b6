"""``lichen rollout``: create, status, pause, resume, abort. Works while the coordinator runs, and without."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from coordinator.admission.operator_decisions import read_decisions
from coordinator.cli.options import Config
from coordinator.cli.rollout_canary import doubts
from coordinator.cli.rollout_view import OpenedState, show, told
from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.config.rollout import Plan, planned
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.recovery.open_stores import has_blob
from coordinator.rollout import releases
from coordinator.rollout.blocked_devices import in_rollout
from coordinator.rollout.model import Abort, Begun, Create, Event, Pause, Release, Resume, RolloutState, Say
from coordinator.rollout.store import ROLLOUTS, RolloutStore
from coordinator.rollout.view import read_rollouts
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from models.registry import methods
from protocol.errors import Misconfigured, Reason, Refused
from protocol.rollout import Trial
from protocol.tasks.task import Task
from runtime.cli import Format, FormatOption, print_result
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
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Start the rollout of a version. Defaults come from `rollout` in coordinator.toml.

    Exit status 65: a rollout is open, the version has no bundle, or the canary matches no known device;
    78: rollout.mode is "newest".
    """
    settings = load_settings(config)
    if settings.rollout.mode == "newest":
        raise Misconfigured(
            f'{config}: rollout.mode is "newest": each export goes to all devices at once. Set [rollout] '
            'mode = "manual" (or "staged": each export begins a rollout), and restart the coordinator'
        )
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
        "gates": _given({"min_committed_share": min_committed_share, "max_failed_share": max_failed_share}),
        "trial": _given(trial),
    }
    plan = _plan(settings.rollout.plan, given)
    if not settings.location.has(ROLLOUTS) and _is_served(settings.location) is True:
        # It goes on announcing each export to all, and a rollout started now would not match that.
        raise Misconfigured(
            f'{config}: the coordinator that runs was started when rollout.mode was "newest", and looks at '
            "no rollout: restart it first (where it is only just starting, try again)"
        )
    with (
        run_as_owner(settings.state_dir),
        _opened(settings) as store,
        RolloutStore(settings.location) as book,
    ):
        # The last announcement counts as stable, also if the daemon was not restarted since.
        now = time.time()
        book.play(Begun(mode=settings.rollout.mode, release=releases.announced(store)), now)
        course = book.course()
        if course.open is None:
            releases.tidy(settings.state_dir, course, now)
        warnings = _doubts(settings, store, plan)
        release = _release(settings, store, course, version, bundle)
        _, after, commands = book.play(Create(release=release, plan=plan), now)
    words = [command.words for command in commands if isinstance(command, Say)]
    for line in warnings:
        typer.echo(f"lichen rollout: warning: {line}", err=True)
    found = {"rollout": after.number, "version": release.version, "bundles": list(release.digests)}
    print_result(fmt, {**found, "plan": plan.model_dump(mode="json"), "warnings": warnings}, "; ".join(words))


@app.command()
def status(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """Show the rollout: phase and figures of each device, what it waits for, and until when."""
    settings = load_settings(config)
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
def pause(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """Pause the rollout. Devices that have the candidate keep it, and may still roll back."""
    _order(config, Pause(), fmt)


@app.command()
def resume(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """Resume a paused rollout. Its stage gets its whole time again."""
    _order(config, Resume(), fmt)


@app.command()
def abort(config: Config, fmt: FormatOption = Format.TABLE) -> None:
    """End the rollout: all devices go back to the stable version."""
    _order(config, Abort(), fmt)


def _order(config: Path, event: Event, fmt: Format) -> None:
    settings = load_settings(config)
    if not settings.location.has(ROLLOUTS):
        raise Refused(Reason.WRONG_ROUND, f"there was no rollout yet ({settings.location.where})")
    with run_as_owner(settings.state_dir), RolloutStore(settings.location) as book:
        _, after, _ = book.play(event, time.time())
    words = f"rollout {after.number} is {after.phase.value}"
    if after.open is None and after.waiting is not None:
        words += f"; {after.waiting.release.words} waited, and begins next"
    print_result(fmt, {"rollout": after.number, "phase": after.phase.value}, words)


def _is_served(location: Location) -> bool | None:
    """Whether a coordinator runs; None if that cannot be seen."""
    if not location.exists():
        return False
    with location.database(read_only=True) as store:
        return store.is_served()


@contextmanager
def _opened(settings: CoordinatorSettings) -> Iterator[Database]:
    location = settings.location
    if not location.exists():
        raise Refused(Reason.UNKNOWN_TASK, f"{location.where} is not there; has this coordinator ever run?")
    with location.database(read_only=True) as store:
        yield store


def _release(
    settings: CoordinatorSettings,
    store: Database,
    course: RolloutState,
    version: int | None,
    bundle: Path | None,
) -> Release:
    known, text = releases.known(store, course), store.get_meta("task")
    if bundle is not None:
        if text is None:
            raise Refused(Reason.UNKNOWN_TASK, "the coordinator has not begun yet")
        task = Task.model_validate_json(text)
        spec = methods().get(task.method)
        if spec is not None and spec.routed:
            raise Refused(
                Reason.MALFORMED,
                "--bundle: this fleet has a bundle for each route, and a file is one of them: give --version",
            )
        return releases.take(bundle, settings.state_dir, task)

    has = has_blob(settings)

    def here(release: Release) -> bool:
        own = settings.state_dir / releases.FOLDER
        return all(has(name) or (own / name).is_file() for name in release.digests)

    fit = [one for one in known if version in {None, one.version}]
    if version is None:
        fit = fit[:1] if course.newest is None else [course.newest]
    found = next((one for one in fit if here(one)), None)
    if found is None:
        there = ", ".join(str(n) for n in sorted({one.version for one in known if here(one)})) or "none"
        what = "nothing was exported yet" if version is None else f"version {version} has no bundle here"
        raise Refused(
            Reason.UNKNOWN_TASK,
            f"{what}; versions that have: {there}. `lichen export` makes one of a version, for --bundle FILE",
        )
    return found


def _doubts(settings: CoordinatorSettings, store: Database, plan: Plan) -> list[str]:
    """The devices of the canary.

    Raises:
        Refused: it matches no device.
    """
    roster = DeviceRegistry(store, time.time)
    devices = {name: one.state.labels or {} for name in roster.names() if (one := roster.get(name))}
    enrolled, _ = read_decisions(settings.location)
    return list(doubts(plan.canary, devices, enrolled))


def _plan(before: Plan, given: dict[str, Any]) -> Plan:
    values = before.model_dump()
    for key, value in _given(given).items():
        nested = key in {"gates", "trial"}
        values[key] = (values[key] or Trial().model_dump()) | value if nested else value
    return planned(values)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The devices without those that were left out."""
    return {key: value for key, value in values.items() if value not in (None, {})}


def _shares(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--waves {text!r}: write shares that grow, as 0.25,1") from None
