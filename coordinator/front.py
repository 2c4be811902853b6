"""Puts the parts together that take what devices send."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from coordinator.admission.operator_decisions import Admission
from coordinator.fleet.device_registry import Roster
from coordinator.fleet.device_removal import Forgetting
from coordinator.fleet.limits import roster_bounds
from coordinator.fleet.secret_mismatch import SecretWatch
from coordinator.ingest.dispatcher import LANES, Ingest
from coordinator.ingest.state_receiver import StateIntake
from coordinator.messaging.withdrawals import Withdrawals
from coordinator.storage.update_journal import Journal
from protocol.tasks.task import Task

if TYPE_CHECKING:
    from coordinator.app import Coordinator


def roster_of(app: "Coordinator") -> Roster:
    """Who is in the fleet: where anybody may make up names, less is remembered."""
    enrolled = Admission.enabled_by(app.settings)
    bounds = roster_bounds(enrolled=enrolled, most=app.settings.devices.most)
    return Roster(app.store, app.clock.wall, app.clock.now, bounds)


def forgetting_of(app: "Coordinator", secrets: SecretWatch) -> Forgetting:
    """What forgets devices."""
    return Forgetting(
        state_dir=app.settings.state_dir,
        roster=app.roster,
        ledger=app.ledger,
        standing=app.standing,
        secrets=secrets,
        clock=app.clock,
        days=app.settings.devices.forget_days,
    )


def state_intake(
    app: "Coordinator", task: Task, journal: Journal, secrets: SecretWatch, forgetting: Forgetting
) -> StateIntake:
    """What takes ``up/state``."""
    return StateIntake(
        task=task,
        roster=app.roster,
        driver=app.driver,
        ledger=app.ledger,
        teller=app.teller,
        guard=app.guard,
        deployment=app.deployment,
        voice=app.voice,
        withdrawals=Withdrawals(journal, app.teller, task.name, app.clock),
        taskless=app.announcer.taskless,
        clock=app.clock,
        silent_s=app.settings.devices.silent_s,
        secrets=secrets,
        forgetting=forgetting,
    )


def ingest(app: "Coordinator", journal: Journal) -> Ingest:
    """What takes all messages, and gives each to the part that it is for."""
    return Ingest(
        fleet=app.settings.fleet,
        messages=app.link.messages,
        roster=app.roster,
        driver=app.driver,
        receiver=app.receiver,
        server=app.server,
        teller=app.teller,
        ledger=app.ledger,
        guard=app.guard,
        journal=journal,
        states=app.states,
        voice=app.voice,
        now=app.clock.now,
    )


def intake_services(app: "Coordinator") -> dict[str, Callable[[], Awaitable[None]]]:
    """To be run: what reads messages, and what takes them in turn."""
    return {
        "ingest": app.ingest.run,
        "states": app.states.run,
        "forgetting": app.forgetting.run,
        **{f"lane-{n}": app.ingest.run_lane for n in range(LANES)},
    }
