"""How long to wait before the next attempt to connect, and the likely cause if connections keep breaking."""

import random
from dataclasses import dataclass
from typing import Final

from runtime.pacing import backoff_s
from runtime.settings.load import MqttSettings

_STABLE_S: Final = 10.0
"""A connection that lasts this long, and twice the wait before it, resets the back-off."""
_SUSPICIOUS: Final = 3
"""After this many short connections in a row the likely cause is reported. More of them do not lengthen the
back-off: on a link that is cut every few seconds, a long wait would waste the seconds in which it works."""
_STOLEN: Final = 6
"""After this many short connections in a row that the broker closed in order, without a failed attempt in
between, another client has the session: a network does not do that, but a broker of MQTT 3.1.1 (and Mosquitto
2.0.11) does. A fast reconnect would take the session back and forth."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one attempt to connect went.

    ``was_open``: there was a connection. ``lasted_s``: its duration. ``taken_over``: the broker said that
    another client has the session. ``in_order``: the broker closed it without a reason, but not by RST.
    ``patient``: only a person can repair it.
    """

    was_open: bool
    lasted_s: float
    taken_over: bool = False
    in_order: bool = False
    patient: bool = False


class Backoff:
    """Exponential with full jitter; the longest wait if only a person can help."""

    def __init__(self, settings: MqttSettings, rng: random.Random) -> None:
        self._settings = settings
        self._random = rng
        self._failures = 0
        self._broken = 0
        self._stolen = 0
        self._waited_s = 0.0

    @property
    def suspicion(self) -> str:
        """The likely cause, as the end of a sentence with ``{id}``; empty if there is none."""
        if self._stolen >= _STOLEN:
            return "; again and again, and always in order: another process uses id {id}; stop one of the two"
        if self._broken >= _SUSPICIOUS:
            return "; again and again: is the link poor, or does another process use id {id}?"
        return ""

    def after(self, ending: Ending) -> float:
        """Seconds to wait."""
        if ending.was_open:
            lasted = ending.lasted_s > max(_STABLE_S, 2 * self._waited_s)
            self._stolen = 0 if lasted or not ending.in_order or self._failures else self._stolen + 1
            self._failures, self._broken = 0, 0 if lasted else min(self._broken + 1, _SUSPICIOUS)
        else:
            self._failures += 1
        slowest = self._settings.backoff_max_s
        if ending.patient or ending.taken_over or self._stolen >= _STOLEN:
            self._waited_s = self._random.uniform(slowest / 2, slowest)
        else:
            longest = backoff_s(self._settings.backoff_min_s, slowest, self._failures + self._broken)
            self._waited_s = self._random.uniform(0, longest)
        return self._waited_s
