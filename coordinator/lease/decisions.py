"""The lease of a role: which process holds it, and until when. Pure.

The row is in the database, and its times are the database's. Each new holder gets the next epoch. A write is
allowed in its transaction if the epoch is still the writer's: that is exact, whatever the clocks do. For what
leaves the process on other ways (a publish), the holder's own monotonic clock decides, on the safe side.
"""

from dataclasses import dataclass
from typing import Final

LEASE_S: Final = 7.0
"""Life of a lease after its last renewal: a new leader is at work within 10 s."""
RENEWALS: Final = 3.5
"""Renewals in the life of a lease."""
MARGIN: Final = 0.1
"""Share of its life that the holder does not use: clocks run at slightly different speeds."""
_LEAST_WAIT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Lease:
    """The row.

    Attributes:
        holder: the process that has it, or had it last.
        epoch: grows by one with each new holder.
        until: Unix seconds of the database.
    """

    holder: str = ""
    epoch: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class Tenure:
    """What a holder knows of its own lease.

    Attributes:
        epoch: of the lease.
        safe_until: monotonic seconds of the holder; before that nobody else can have the lease.
    """

    epoch: int
    safe_until: float

    def holds(self, now: float) -> bool:
        """Whether the lease is certainly held at that monotonic time."""
        return now < self.safe_until


def is_free(found: Lease, now: float, life_s: float) -> bool:
    """Whether another process may take the lease.

    Args:
        found: the row.
        now: of the database. If its clock was set back, ``until`` is further away than a life: nobody could
            wait for that, so it is free then as well.
        life_s: of every lease.
    """
    return now >= found.until or found.until > now + life_s


def taken(found: Lease, holder: str, now: float, life_s: float) -> Lease | None:
    """The row after ``holder`` took the lease; None if it is not free."""
    return Lease(holder, found.epoch + 1, now + life_s) if is_free(found, now, life_s) else None


def renewed(found: Lease, mine: Lease, now: float, life_s: float) -> Lease | None:
    """The row after a renewal; None if another process has taken the lease.

    A lease that ran out is renewed too, as long as nobody took it: its epoch is still the newest.
    """
    same = (found.holder, found.epoch) == (mine.holder, mine.epoch)
    return Lease(found.holder, found.epoch, now + life_s) if same else None


def tenure(lease: Lease, asked_at: float, life_s: float) -> Tenure:
    """What the holder may rely on.

    Args:
        lease: as it was written.
        asked_at: monotonic seconds of the holder before it asked the database: the row was written later.
        life_s: of every lease.
    """
    return Tenure(lease.epoch, asked_at + life_s * (1.0 - MARGIN))


def wait_s(found: Lease, now: float, life_s: float) -> float:
    """Seconds until the next attempt to take a lease that another process holds."""
    left = min(max(found.until - now, 0.0), life_s)
    return max(_LEAST_WAIT_S, min(left, life_s / RENEWALS))
