"""A device's lower bound of the present time, and the checks of times that the fleet signs. Pure."""

from dataclasses import dataclass
from typing import Final

from protocol.errors import Reason, Refused
from protocol.trust.metadata import Metadata, spelt, unix

MAX_AHEAD_S: Final = 86400.0
"""Metadata signed this much later than now comes from a coordinator whose clock is, or was, ahead."""


@dataclass(frozen=True)
class TrustedTime:
    """The device's knowledge of the time."""

    now: float
    """Unix seconds, used for all checks."""
    behind_s: float
    """Minimal error of the clock, in seconds behind; 0: no error is known."""

    @property
    def doubt(self) -> str:
        """A message about the clock; empty: no error is known."""
        if not self.behind_s:
            return ""
        return f"the clock is {self.behind_s:.0f} s behind what was signed; counted from that, set the clock"


def time_known(wall: float, latest: float, elapsed: float) -> TrustedTime:
    """The time: a Pi without a clock may begin in the past, but not earlier than signed times.

    A clock that is *ahead* cannot be told from a fleet that nobody signs for: metadata seems to have expired,
    nothing new is accepted, and the present model goes on. That time is not stored, so the error ends when
    the clock is set.

    Args:
        wall: the clock, Unix seconds.
        latest: :attr:`edge_agent.trust.trusted_metadata.TrustedMetadata.latest`.
        elapsed: monotonic seconds for which ``latest`` has been known to this process.
    """
    least = latest + max(0.0, elapsed)
    return TrustedTime(max(wall, least), max(0.0, least - wall))


def require_not_ahead(metadata: Metadata, wall: float, *, synchronised: bool | None) -> None:
    """Refuse metadata that was signed more than a day later than now, where the clock is known to be right.

    Without this check the time of such a signature would be the device's least time for as long as the
    coordinator's clock was ahead, and what is signed by a right clock would seem to have expired. A clock
    that no time service keeps may be behind itself; such a device takes the signature's word.

    Args:
        metadata: timestamp, snapshot or targets. A root is never refused for this: the next root heals it.
        wall: what the device's clock says, unix seconds.
        synchronised: whether a time service keeps that clock; None: it cannot be told.

    Raises:
        Refused: UNTRUSTED.
    """
    if not synchronised or metadata.issued is None:
        return
    ahead_s = unix(metadata.issued) - wall
    if ahead_s > MAX_AHEAD_S:
        raise Refused(
            Reason.UNTRUSTED,
            f"{metadata.role} {metadata.version} was signed {ahead_s / 86400:.1f} days ahead of this "
            f"device's clock, which a time service keeps ({spelt(wall)}): the coordinator's clock is or was "
            "wrong; set it, then run lichen coordinator trust rotate there",
        )
