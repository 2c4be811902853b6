"""Actions on a rollout: create, pause, resume, abort."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.actions.canary import doubts
from coordinator.actions.fleet_log import fleet_log
from coordinator.admission.operator_decisions import read_decisions
from coordinator.audit.chain import Person
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.rollout import Plan, planned
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.recovery.open_stores import has_blob
from coordinator.rollout import releases
from coordinator.rollout.model import Abort, Begun, Create, Event, Pause, Release, Resume, RolloutState, Say
from coordinator.rollout.store import ROLLOUTS, RolloutStore
from coordinator.storage.database import Database
from coordinator.storage.location import Location
from models.registry import methods
from protocol.errors import Misconfigured, Reason, Refused
from protocol.rollout import Trial
from protocol.tasks.task import Task

_NESTED: Final = frozenset({"gates", "trial"})


@dataclass(frozen=True, slots=True)
class Created:
    """A rollout that began; ``words`` say how, ``warnings`` what looks doubtful about its plan."""

    number: int
    version: int
    digests: tuple[str, ...]
    plan: Plan
    words: str
    warnings: tuple[str, ...]


def create(
    settings: CoordinatorSettings,
    person: Person,
    given: dict[str, Any],
    *,
    version: int | None = None,
    bundle: Path | None = None,
    last: int | None = None,
) -> Created:
    """Start the rollout of a version.

    Args:
        settings: of the coordinator; ``rollout`` has the defaults of the plan.
        person: who acts.
        given: keys of the plan that differ from the defaults; ``gates`` and ``trial`` are dicts; None is
            left out.
        version: which exported version; None: the newest.
        bundle: a file that ``lichen export`` wrote, in place of a version.
        last: the number of the last rollout that the person saw; None: any.

    Raises:
        Refused: a rollout is open or began meanwhile, the version has no bundle, or the canary matches no
            known device.
        Misconfigured: the plan is not valid, or ``rollout.mode`` is "newest".
        Transient: the disk is full, or the tables cannot be reached; nothing was decided.
    """
    what = f"version {version}" if version is not None else str(bundle or "the newest version")
    with fleet_log(settings) as log, log.acting(person, "rollout.create", what) as action:
        made = _create(settings, given, version, bundle, last)
        action.outcome = f"done: {made.words}"
        return made


def _create(
    settings: CoordinatorSettings,
    given: dict[str, Any],
    version: int | None,
    bundle: Path | None,
    last: int | None,
) -> Created:
    if settings.rollout.mode == "newest":
        raise Misconfigured(
            'rollout.mode is "newest": each export goes to all devices at once. Set [rollout] '
            'mode = "manual" (or "staged": each export begins a rollout), and restart the coordinator'
        )
    plan = _plan(settings.rollout.plan, given)
    if not settings.location.has(ROLLOUTS) and _is_served(settings.location) is True:
        # It goes on announcing each export to all, and a rollout started now would not match that.
        raise Misconfigured(
            'the coordinator that runs was started when rollout.mode was "newest", and looks at '
            "no rollout: restart it first (where it is only just starting, try again)"
        )
    with _opened(settings) as store, RolloutStore(settings.location) as book:
        # The last announcement counts as stable, also if the daemon was not restarted since.
        now = time.time()
        book.play(Begun(mode=settings.rollout.mode, release=releases.announced(store)), now)
        course = book.course()
        if course.open is None:
            releases.tidy(settings.state_dir, course, now)
        warnings = _doubts(settings, store, plan)
        release = _release(settings, store, course, version, bundle)
        _, after, commands = book.play(Create(release=release, plan=plan), now, number=last)
    words = "; ".join(command.words for command in commands if isinstance(command, Say))
    return Created(after.number, release.version, release.digests, plan, words, tuple(warnings))


def pause(
    settings: CoordinatorSettings, person: Person, number: int | None = None, phase: str | None = None
) -> RolloutState:
    """Pause the rollout. Arguments and errors as :func:`_play`."""
    return _play(settings, person, "rollout.pause", Pause(), number=number, phase=phase)


def resume(
    settings: CoordinatorSettings, person: Person, number: int | None = None, phase: str | None = None
) -> RolloutState:
    """Resume a paused rollout: its stage gets its whole time again. Arguments and errors as :func:`_play`."""
    return _play(settings, person, "rollout.resume", Resume(), number=number, phase=phase)


def abort(
    settings: CoordinatorSettings, person: Person, number: int | None = None, phase: str | None = None
) -> RolloutState:
    """End the rollout: all devices go back to the stable version. Arguments and errors as :func:`_play`."""
    return _play(settings, person, "rollout.abort", Abort(), number=number, phase=phase)


def _play(
    settings: CoordinatorSettings,
    person: Person,
    action: str,
    event: Event,
    *,
    number: int | None,
    phase: str | None,
) -> RolloutState:
    """Apply an event.

    Args:
        settings: of the coordinator.
        person: who acts.
        action: its name in the audit log.
        event: the order.
        number: of the rollout that the person looked at; None: whichever is open.
        phase: in which they saw it; None: any.

    Returns:
        The state after it.

    Raises:
        Refused: none is open, another one is, or it is in that state already.
        Transient: the disk is full, or the tables cannot be reached; nothing was decided.
    """
    target = "the open rollout" if number is None else f"rollout {number}"
    with fleet_log(settings) as log, log.acting(person, action, target) as doing:
        if not settings.location.has(ROLLOUTS):
            raise Refused(Reason.WRONG_ROUND, f"there was no rollout yet ({settings.location.where})")
        with RolloutStore(settings.location) as book:
            _, after, _ = book.play(event, time.time(), number=number, phase=phase)
        doing.outcome = f"done: rollout {after.number} is {after.phase.value}"
        return after


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
    enrolled, _ = read_decisions(settings.main.location)
    return list(doubts(plan.canary, devices, enrolled))


def _plan(before: Plan, given: dict[str, Any]) -> Plan:
    values = before.model_dump()
    for key in _NESTED & given.keys():
        given |= {key: _given(given[key] or {})}
    for key, value in _given(given).items():
        values[key] = (values[key] or Trial().model_dump()) | value if key in _NESTED else value
    return planned(values)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The devices without those that were left out."""
    return {key: value for key, value in values.items() if value not in (None, {})}
