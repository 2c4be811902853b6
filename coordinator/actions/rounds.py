"""Actions on the rounds: hold, resume, end. They stand until an operator takes them back."""

from coordinator.actions.fleet_log import fleet_log, task_orders
from coordinator.admission.operator_orders import RoundOrder, Standing, order_rounds
from coordinator.audit.chain import Person
from coordinator.config.coordinator import CoordinatorSettings
from protocol.errors import Reason, Refused


def hold(
    settings: CoordinatorSettings, person: Person, why: str = "", *, seen: Standing | None = None
) -> RoundOrder:
    """Let no further round be opened; the open one goes on to its end. Raises as :func:`_ordered`."""
    return _ordered(settings, person, "rounds.hold", "held", why=why, seen=seen)


def resume(settings: CoordinatorSettings, person: Person, *, seen: Standing | None = None) -> RoundOrder:
    """Let rounds be opened again, after a hold or an end. Raises as :func:`_ordered`."""
    return _ordered(settings, person, "rounds.resume", "", why="", seen=seen)


def end(
    settings: CoordinatorSettings, person: Person, why: str = "", *, seen: Standing | None = None
) -> RoundOrder:
    """End the rounds: an open one closes with the updates that are here. Raises as :func:`_ordered`."""
    return _ordered(settings, person, "rounds.end", "ended", why=why, seen=seen)


def _ordered(
    settings: CoordinatorSettings,
    person: Person,
    action: str,
    state: Standing,
    *,
    why: str,
    seen: Standing | None,
) -> RoundOrder:
    """Write an order that a running coordinator follows within seconds, and others at their start.

    Args:
        settings: of the coordinator.
        person: who acts.
        action: its name in the audit log.
        state: what the rounds shall be.
        why: in the person's words.
        seen: what the rounds were when the person looked; None: anything.

    Returns:
        What was ordered before.

    Raises:
        Refused: the rounds are as ordered already, or not as the person saw them, or no coordinator ever ran
            here.
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    if not settings.location.exists():
        where = settings.location.where
        raise Refused(Reason.UNKNOWN_TASK, f"{where} is not there; has this coordinator ever run?")
    with (
        fleet_log(settings) as log,
        log.acting(person, action, why),
        task_orders(settings, log) as orders,
    ):
        return order_rounds(orders, person, state, why, seen)
