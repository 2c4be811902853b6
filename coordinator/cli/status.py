"""``lichen coordinator status``: its state and its waits, from its state folder alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import sqlalchemy as sa
import typer

from coordinator.admission.operator_decisions import read_decisions, unproven
from coordinator.admission.operator_orders import read_order
from coordinator.admission.quarantine import OffenceRecord, describe, in_quarantine
from coordinator.admission.quarantine import read as conduct
from coordinator.aggregation.device_weight_store import newest
from coordinator.aggregation.device_weights import shares
from coordinator.aggregation.secure.reports import newest_words
from coordinator.cli.further_tasks import further_tasks, task_lines
from coordinator.cli.options import Config, TaskName, read_settings, require_database
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.secret_mismatch import mismatch_warning
from coordinator.fleet.serving_routes import served, unserved
from coordinator.lease.heartbeat import read_cluster
from coordinator.privacy.account_store import accounts
from coordinator.recovery import bucket_watch
from coordinator.rollout.blocked_devices import ahead, elsewhere, in_rollout
from coordinator.rollout.view import read_decisions as read_course
from coordinator.rollout.view import standing
from coordinator.rollout.view import waits as rollout_waits
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.round_machine.queries import replay
from coordinator.rounds.late_bundles import wait_kept
from coordinator.rounds.outlook import fleet_status
from coordinator.rounds.progress import MAX_NAMES
from coordinator.status.cluster_words import cluster_json, cluster_lines, cluster_waits
from coordinator.status.waits import CoordinatorStatus, collecting, waits
from coordinator.storage import schema
from coordinator.storage.database import Database
from coordinator.storage.device_lists import MOST_NAMED
from coordinator.storage.model_registry import best_version
from coordinator.trust.waits import waits as trust_waits
from coordinator.versions.best_version import BestVersion
from coordinator.workers.encoder_models import kept, terms_kept, wait_for
from protocol.errors import Reason, Refused, Transient
from protocol.tasks.task import Task
from runtime import exit_codes
from runtime.cli import Format, FormatOption, print_result
from runtime.clock import SystemClock
from runtime.storage.files import disk_trouble
from runtime.text import first_few
from runtime.waits import Wait, by_another_clock, lines, read, span, stamp

_SILENT_S: Final = 90.0
_QUARANTINES: Final = 20
NAMED_IN_STATUS: Final = 20
_HEARD: Final = OffenceRecord()
RegistryReader = Callable[[Database, Callable[[], float]], DeviceRegistry]
"""Reads the devices; ``DeviceRegistry`` itself reads all of them at each call."""


def status(
    config: Config,
    *,
    task: TaskName = None,
    why: Annotated[
        bool, typer.Option("--why", help="show only what it waits for, since when and until when")
    ] = False,
    fmt: FormatOption = Format.TABLE,
) -> None:
    """Show where the coordinator stands and what it waits for. Exit status 69: it does not run."""
    settings = read_settings(config, task)
    location, now = settings.location, SystemClock().wall()
    try:
        require_database(location, "lichen coordinator", fmt)
        with location.database(read_only=True) as store:
            found, waited = look(store, settings, now)
            tasks = further_tasks(store, settings, reported=found["running"] and found["leader"] is None)
    except Transient as error:
        if location.schema is None:
            raise
        _print_lost(error, settings, now, fmt)
        raise typer.Exit(exit_codes.UNAVAILABLE) from None
    result = found | {"waits": [wait.as_json(found["now"]) for wait in waited], "tasks": tasks}
    words = [_words(found, waited, found["now"], why=why), *task_lines(tasks, found["now"])]
    print_result(fmt, result, "\n".join(words))
    if not found["running"]:
        raise typer.Exit(exit_codes.UNAVAILABLE)


def _print_lost(error: Transient, settings: CoordinatorSettings, now: float, fmt: Format) -> None:
    """A running coordinator that has lost its database accepts nothing, and cannot say so in it."""
    words = "not known: its database cannot be reached"
    wait = Wait("storage", str(error), None, None, "until the server answers; no receipts")
    found = {"coordinator": words, "running": None, "now": now, "fleet": settings.fleet}
    told = "\n".join([f"coordinator: {words}", *lines([wait], now)])
    print_result(fmt, found | {"waits": [wait.as_json(now)]}, told)


def look(
    store: Database, settings: CoordinatorSettings, now: float, registry: RegistryReader = DeviceRegistry
) -> tuple[dict[str, Any], list[Wait]]:
    """State and waits.

    Args:
        store: of the coordinator, which may be running.
        settings: its own.
        now: Unix seconds.
        registry: reads the devices; the clock that it is given is the coordinator's.
    """
    state, rules = replay(store.journal())
    roster, known = registry(store, lambda: now), store.get_meta("task")
    task = None if known is None else Task.model_validate_json(known)
    said_at = float(store.get_meta("why_wall") or 0.0) or None
    # If we may not read the lock: a daemon that wrote its sentence lately runs.
    owned = store.is_served()
    running = owned if owned is not None else said_at is not None and now - said_at < _SILENT_S
    clocks: list[Wait] = []
    if running and said_at is not None and abs(now - said_at) > _SILENT_S:  # it writes it every 30 s
        clocks, now = [_clocks(now - said_at)], said_at
    barred, attempt = _barred(store, settings, now), _attempt(store, state)
    order = read_order(settings.location)
    course = read_course(settings.location)
    cluster = read_cluster(store)
    found = {
        "coordinator": "running"
        if running
        else f"not running; its last entry is of {stamp(said_at)}, and what follows is how it stood then",
        "running": running,
        **cluster_json(cluster),
        "now": now,
        "fleet": settings.fleet,
        "task": None if task is None else task.name,
        "phase": state.phase.value,
        "round": state.round,
        "rounds": None if rules is None else rules.rounds,
        "rounds_ordered": order.state,
        "attempt": state.attempt,
        "selection": attempt["policy"] if attempt else "",
        "selected": attempt["why"] if attempt else {},
        "bundles": [
            {
                "route": one.need.words,
                "devices": one.devices,
                "version": one.version,
                "digest": one.bundle.digest,
            }
            for one in served(store)
        ],
        "unserved": unserved(store),
        "rollout": standing(course),
        "version": state.version,
        "best": None if (best := best_version(store)) is None else best.as_json(),
        "privacy": accounts(store, [state.version]).get(state.version),
        "secure": newest_words(store, state.round) or None,
        "collecting": None,
        "devices_known": len(roster),
        "devices_hindered": sum(
            (device := roster.get(name)) is not None
            and device.state.hindered is not None
            and device.state.hindered.bundle is not None  # without one it runs no model, perhaps on purpose
            for name in roster.online()
            if name not in barred
        ),
        "devices_quarantined": sum(one is not None for one in barred.values()),
        "devices_revoked": sum(one is None for one in barred.values()),
        "devices_online": sum(barred.get(device, _HEARD) is not None for device in roster.online()),
        "quarantined": sorted(device for device, one in barred.items() if one is not None)[:MOST_NAMED],
        "revoked": sorted(device for device, one in barred.items() if one is None)[:MOST_NAMED],
        "weighing": newest(store),
        "secrets": mismatch_warning({d: shown for d, shown in roster.secrets().items() if d not in barred}),
        "trouble": state.trouble,
        "why": store.get_meta("why") or "",
        "why_wall": said_at,
    }
    disk = [*_disk(settings.state_dir), *(bucket_watch.waits(store) if running else [])]
    if not running:
        then = "until it is started (systemctl start lichen-coordinator)"
        return found, [Wait("coordinator", "it does not run", said_at, None, then), *disk]
    if task is None or rules is None:
        return found, [Wait("start", "it has just been started for the first time", said_at)]
    processes = cluster_waits(cluster)
    broker = read(json.loads(store.get_meta("broker") or "[]"))
    terms = terms_kept(store, task)
    # The rounds' times run from the clock at the start: setting a clock moves none of them.
    set_s = 0.0 if said_at is None else said_at - float(store.get_meta("rounds_now") or said_at)
    held = by_another_clock(_quarantines(barred, roster), -set_s)
    found["collecting"] = collecting(rules, state, set_s)
    picture = CoordinatorStatus(
        rules=rules,
        state=state,
        outlook=replace(fleet_status(roster, state, terms, partial(_why_not, barred, now)), hold=order.words),
        now=now - set_s,
        worker_s=settings.worker.timeout_s,
        broker=by_another_clock(broker, -set_s)[0] if broker else None,
        quarantines=tuple(held),
        encoder_models=wait_for(kept(store, task), roster, terms),
        secrets=found["secrets"],
        chosen=found["selected"],
    )
    going = rollout_waits(course, in_rollout(course, roster.get))
    signatures = trust_waits(settings, now, roster, barred)
    told = None if settings.further_task else unproven(settings.location)
    revocations = [] if told is None else [told]
    held_rounds = [] if (hold := order.wait()) is None or state.phase is RoundPhase.DONE else [hold]
    others = [*held_rounds, *going, *elsewhere(roster, course, barred), *wait_kept(store), *signatures]
    others += ahead(roster, course, _newest_export(store), barred)
    rounds = by_another_clock(waits(picture), set_s)
    return found, [*disk, *processes, *clocks, *rounds, *revocations, *others]


def _clocks(ahead_s: float) -> Wait:
    words = (
        f"this clock is {span(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} what the coordinator "
        "last wrote: the clocks differ, or it hangs. Times here are by the coordinator's clock"
    )
    return Wait("clock", words, None, None, "until the clocks agree, or it is started again")


def _newest_export(store: Database) -> int | None:
    found = store.rows(sa.select(sa.func.max(schema.exports.c.version).label("version")))
    return None if found[0]["version"] is None else int(found[0]["version"])


def _disk(state_dir: Path) -> list[Wait]:
    """The wait for the disk: a running coordinator that cannot write acknowledges nothing."""
    trouble = disk_trouble(state_dir)
    return (
        [Wait("disk", trouble, None, None, "until something can be written there again")] if trouble else []
    )


def _attempt(store: Database, state: RoundState) -> dict[str, Any] | None:
    """How the present attempt was opened."""
    table = schema.attempts
    where = (table.c.round == state.round) & (table.c.attempt == state.attempt)
    found = store.rows(sa.select(table).where(where))
    return found[0] if found else None


def _barred(store: Database, settings: CoordinatorSettings, now: float) -> dict[str, OffenceRecord | None]:
    """Denied devices with their quarantine; None: revoked by the operator."""
    standing, released = read_decisions(settings.main.location)
    held = {d: one for d, one in in_quarantine(conduct(store), now) if released.get(d, 0.0) < one.since}
    revoked = [device for device, what in standing.items() if what == "revoked"]
    return held | dict.fromkeys(revoked)


def _why_not(barred: dict[str, OffenceRecord | None], now: float, device: str) -> Refused | None:
    """In the words of the daemon."""
    if device not in barred:
        return None
    held = barred[device]
    if held is None:
        return Refused(Reason.REVOKED, "by the operator (lichen device revoke)")
    return Refused(Reason.QUARANTINED, describe(held, held.until - now))


def _quarantines(barred: dict[str, OffenceRecord | None], roster: DeviceRegistry) -> tuple[Wait, ...]:
    """Waits for denied devices that a round could select otherwise, each with its end."""
    words = "its messages are refused; its last refusal was {}. `lichen device approve` ends it"
    held_back = [(d, held) for d, held in sorted(barred.items()) if held is not None and d in roster]
    found = [
        Wait(
            f"quarantine of {device}",
            words.format(held.reason),
            held.since,
            held.until,
            "its messages are accepted again",
        )
        for device, held in held_back[:_QUARANTINES]
    ]
    if more := held_back[_QUARANTINES:]:
        ends = max(held.until for _, held in more)
        more_words = f"{first_few([device for device, _ in more])} are denied, too"
        found.append(Wait("quarantines", more_words, min(h.since for _, h in more), ends, "all are over"))
    return tuple(found)


def _words(found: dict[str, Any], waited: list[Wait], now: float, *, why: bool) -> str:
    told = [f"coordinator: {found['coordinator']}", *cluster_lines(found), *lines(waited, now)]
    if not why:
        shown = ("fleet", "task", "phase", "round", "rounds", "version", "devices_known", "devices_online")
        best = [] if found["best"] is None else [f"best: {BestVersion(**found['best']).words}"]
        best += [] if found["privacy"] is None else [f"privacy: {found['privacy']['words']}"]
        best += [] if found["secure"] is None else [f"secure aggregation: {found['secure']}"]
        told[1:1] = [*(f"{key.replace('_', ' ')}: {found[key]}" for key in shown), *best]
        if found["quarantined"]:
            told.append(f"quarantined: {first_few(found['quarantined'], NAMED_IN_STATUS)}")
        shown_devices = list(found["selected"].items())[:MAX_NAMES]
        told += [f"selected by {found['selection']}: {device}: {words}" for device, words in shown_devices]
        for one in found["bundles"]:
            told.append(f"bundle: version {one['version']} for {one['route']} ({one['devices']} devices)")
        if (rollout := found["rollout"]) is not None:
            told.append(f"rollout {rollout['number']} of version {rollout['version']}: {rollout['phase']}")
        for one in found["unserved"]:
            told.append(f"no bundle (export.max_routes): {one['words']}")
        if (weighing := found["weighing"]) is not None:
            for part, device, share in list(shares(weighing["weights"]))[:MAX_NAMES]:
                told.append(
                    f"weight in round {weighing['round']}: {device}: {share:.2f} of an equal share of {part}"
                )
            told += [f"warning: {words}" for words in weighing["warnings"]]
        if found["trouble"]:
            told.append(f"last trouble: {found['trouble']}")
    return "\n".join(told)
