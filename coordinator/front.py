"""Puts the parts together that take what devices send."""

from typing import TYPE_CHECKING

from coordinator.ingest import Ingest
from coordinator.journal import Journal
from coordinator.state_intake import StateIntake
from coordinator.withdrawals import Withdrawals
from protocol.task import Task

if TYPE_CHECKING:
    from coordinator.app import Coordinator


def state_intake(app: "Coordinator", task: Task, journal: Journal) -> StateIntake:
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
