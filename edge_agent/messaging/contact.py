"""When the coordinator was last heard, for services that wait for its answer."""

from typing import Final

from runtime.clock import Clock
from runtime.waits import stamp

_PATIENCE: Final = 2.5
"""Multiple of ``resend_s``: silence that lasts longer is reported."""


class Contact:
    """Written when a message arrives.

    Args:
        clock: of the times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started = clock.wall()
        """Start of the agent, unix seconds."""
        self.last_heard: float | None = None
        """Last message of the coordinator, unix seconds; retained messages do not count."""

    def note_heard(self) -> None:
        """Record that a message came."""
        self.last_heard = self._clock.wall()

    def silence_text(self, since: float | None, again_at: float | None, resend_s: float) -> str:
        """Text about a silence that is too long, else empty.

        Args:
            since: when an answer was first requested; unix seconds, as the next one.
            again_at: time of the next request; None: there is none.
            resend_s: interval between requests.
        """
        heard = max(self.last_heard or self.started, since or 0.0)
        if again_at is None or again_at - heard < _PATIENCE * resend_s:
            return ""
        return f"; is the coordinator running? (lichen status) {self.words}"

    @property
    def words(self) -> str:
        """The last contact as text."""
        if self.last_heard is None:
            return f"nothing was heard of it since the agent started, {stamp(self.started)}"
        return f"it was last heard {stamp(self.last_heard)}"
