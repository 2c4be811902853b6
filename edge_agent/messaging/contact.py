"""When the coordinator was heard last: for those who wait for an answer of it."""

from typing import Final

from runtime.clock import Clock
from runtime.waits import stamp

_PATIENCE: Final = 2.5
"""Times ``resend_s``, to the next sending: so long without an answer, somebody should look."""


class Contact:
    """Written by whoever receives messages.

    Args:
        clock: of the times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = clock.wall()
        """When the agent started, unix seconds."""
        self.last_heard: float | None = None
        """When something came from the coordinator; what the broker retained tells nothing."""

    def note_heard(self) -> None:
        """Something came."""
        self.last_heard = self._clock.wall()

    def silence_text(self, since: float | None, again_at: float | None, resend_s: float) -> str:
        """Words where too long nothing came.

        Args:
            since: when an answer was asked for first; unix seconds, as the next one.
            again_at: when it is asked for again; None: it is not.
            resend_s: between two times.
        """
        heard = max(self.last_heard or self.started, since or 0.0)
        if again_at is None or again_at - heard < _PATIENCE * resend_s:
            return ""
        return f"; is the coordinator running? (lichen status) {self.words}"

    @property
    def words(self) -> str:
        """For people."""
        if self.last_heard is None:
            return f"nothing was heard of it since the agent started, {stamp(self.started)}"
        return f"it was last heard {stamp(self.last_heard)}"
