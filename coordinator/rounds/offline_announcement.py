"""``b/round`` while the coordinator is offline."""

from typing import Final

from coordinator.round_machine.events import RoundState, Rules
from protocol.messages import RoundAnnouncement
from protocol.tasks.task import Task

OFFLINE: Final = "the coordinator is not connected (round and version are those of its last connect)"
STOPPED: Final = "the coordinator was stopped; the rounds go on when it is started again"


def offline_announcement(task: Task, rules: Rules, state: RoundState) -> RoundAnnouncement:
    """The payload of the will, which the broker publishes when the coordinator vanishes."""
    return RoundAnnouncement(
        task=task.name,
        round=state.round,
        rounds=rules.rounds,
        phase="offline",
        version=max(0, state.version),
        waiting_for=OFFLINE,
    )
