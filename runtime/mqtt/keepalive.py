"""Whether a connection is alive: to TCP, a link that loses every packet looks healthy for many minutes.

PUBACK, SUBACK and messages count as signs of life, since they show that the broker handles messages. PINGRESP
does not: some front ends answer PINGREQ for a broker that is gone. After ``ping_s`` of silence the link
publishes an empty message to a topic of its own; if nothing comes in ``ping_timeout_s``, the connection ends.
"""

from enum import Enum

from runtime.clock import Clock
from runtime.settings.load import MqttSettings


class Ask(Enum):
    """The next step, if the connection need not end."""

    NOTHING = "all is well, or there is nothing to do but wait"
    PING = "publish a ping"


class KeepaliveMonitor:
    """Times of the last signs of life on one connection. :meth:`heard` may be called from any thread."""

    def __init__(self, settings: MqttSettings, clock: Clock) -> None:
        self._settings = settings
        self._now = clock.now
        self._heard = self._now()
        self._acked = self._heard
        self._pinged: float | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between checks: one, or less if the limits are shorter (tests)."""
        if self._settings.ping_s <= 0:
            return 1.0
        return min(1.0, self._settings.ping_s / 2, self._settings.ping_timeout_s / 2)

    @property
    def patience_s(self) -> float:
        """If packets wait for a PUBACK and none comes for this long, the connection ends."""
        return max(1.5 * self._settings.keepalive_s, self._settings.ping_s + self._settings.ping_timeout_s)

    @property
    def quiet(self) -> str:
        """A message about an unanswered ping; empty if there is none."""
        if self._pinged is None:
            return ""
        return f"nothing came for {self._now() - self._heard:.0f} s; a ping is out"

    def heard(self) -> None:
        """A message came, or a SUBACK."""
        self._heard = self._now()
        self._pinged = None

    def acked(self) -> None:
        """A PUBACK came."""
        self.heard()
        self._acked = self._heard

    def silent_for(self, seconds: float) -> bool:
        """Whether no PUBACK came for ``seconds``."""
        return self._now() - self._acked > seconds

    def look(self, oldest_unacked: float | None) -> Ask | str:
        """The next step.

        Args:
            oldest_unacked: since when the oldest packet waits for its PUBACK; None if none does.

        Returns:
            The reason, if the connection must end.
        """
        now, where = self._now(), self._settings.where
        if oldest_unacked is not None and now - max(oldest_unacked, self._acked) > self.patience_s:
            return f"the broker at {where} acknowledged nothing for {self.patience_s:g} s; reconnecting"
        if self._settings.ping_s <= 0:
            return Ask.NOTHING
        pinged = self._pinged  # read once: the network thread may clear it at any moment
        if pinged is None:
            if now - self._heard < self._settings.ping_s:
                return Ask.NOTHING
            self._pinged = now
            return Ask.PING
        if now - pinged < self._settings.ping_timeout_s:
            return Ask.NOTHING
        return (
            f"the link to the broker at {where} loses every packet: nothing came for "
            f"{now - self._heard:.0f} s, no answer to a ping in {self._settings.ping_timeout_s:g} s; "
            "reconnecting"
        )
