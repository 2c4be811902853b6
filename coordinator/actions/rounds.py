"""Actions on the rounds: hold, resume, end. They stand until an operator takes them back."""

from coordinator.admission.operator_orders import RoundOrder, Standing, order_rounds
from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog
from coordinator.config.coordinator import CoordinatorSettings
from protocol.errors import Reason, Refused


def hold(settings: CoordinatorSettings, person: Person, why: str = "") -> RoundOrder:
    """Let no further round be opened; the open one goes on to its end. Raises as :func:`_ordered`."""
    return _ordered(settings, person, "rounds.hold", "held", why)


def resume(settings: CoordinatorSettings, person: Person) -> RoundOrder:
    """Let rounds be opened again, after a hold or an end. Raises as :func:`_ordered`."""
    return _ordered(settings, person, "rounds.resume", "", "")


def end(settings: CoordinatorSettings, person: Person, why: str = "") -> RoundOrder:
    """End the rounds: an open one closes with the updates that are here. Raises as :func:`_ordered`."""
    return _ordered(settings, person, "rounds.end", "ended", why)


def _ordered(
    settings: CoordinatorSettings, person: Person, action: str, state: Standing, why: str
) -> RoundOrder:
    """Write an order that a running coordinator follows within seconds, and others at their start.

    Returns:
        What was ordered before.

    Raises:
        Refused: the rounds are as ordered already, or no coordinator ever ran here.
        Transient: the disk is full, or the tables cannot be reached; nothing was changed.
    """
    if not settings.location.exists():
        where = settings.location.where
        raise Refused(Reason.UNKNOWN_TASK, f"{where} is not there; has this coordinator ever run?")
    with AuditLog(settings.location) as log, log.acting(person, action, why):
        return order_rounds(log, person, state, why)
