"""What a daemon waits for: in words, since when, and until when (docs/reliability.md)."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from runtime.clock import Clock

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that is waited for; times in unix seconds.

    ``what``: one word for programs, as ``broker``. ``why``: for people. ``since``: None where it is not
    known. ``until``: when something happens by itself, and ``then`` says what; None where only others can
    end it.
    """

    what: str
    why: str
    since: float | None = None
    until: float | None = None
    then: str = ""

    def as_json(self, now: float) -> dict[str, Any]:
        """With both times also as durations from ``now``."""
        waited = None if self.since is None else max(0.0, round(now - self.since, 1))
        left = None if self.until is None else max(0.0, round(self.until - now, 1))
        return {**asdict(self), "waited_s": waited, "left_s": left}


def read(found: object) -> list[Wait]:
    """Waits from JSON; unknown keys and unreadable entries of other releases are ignored."""
    kept = found if isinstance(found, list) else []
    keys = tuple(field.name for field in fields(Wait))
    return [
        Wait(**{key: one[key] for key in keys if key in one})
        for one in kept
        if isinstance(one, dict) and {"what", "why"} <= one.keys()
    ]


def lines(waits: Iterable[Wait], now: float) -> list[str]:
    """A line for each, for people."""
    return [_line(wait, now) for wait in waits] or ["waits for nothing"]


def _line(wait: Wait, now: float) -> str:
    since = "since an unknown time"
    if wait.since is not None:
        since = f"for {span(now - wait.since)}, since {stamp(wait.since)}"
    if wait.until is None:
        end = wait.then or "until others end it"
    elif wait.until > now:
        end = f"in {span(wait.until - now)} {wait.then or 'it ends'}, at {stamp(wait.until)}"
    else:
        end = f"now {wait.then or 'it ends'}"
    return f"{wait.what}: {wait.why} ({since}; {end})"


def by_another_clock(waits: Iterable[Wait], ahead_s: float) -> list[Wait]:
    """The same waits with times of a clock that is ``ahead_s`` seconds ahead."""
    return [
        replace(
            wait,
            since=None if wait.since is None else wait.since + ahead_s,
            until=None if wait.until is None else wait.until + ahead_s,
        )
        for wait in waits
    ]


def span(seconds: float) -> str:
    """A duration for people: its two largest units."""
    left = max(0, round(seconds))
    if left < _MINUTE:
        return f"{left} s"
    if left < _HOUR:
        return f"{left // _MINUTE} min {left % _MINUTE} s"
    if left < _DAY:
        return f"{left // _HOUR} h {left % _HOUR // _MINUTE} min"
    return f"{left // _DAY} d {left % _DAY // _HOUR} h"


def stamp(wall: object) -> str:
    """Unix seconds as a time for people, UTC."""
    if not isinstance(wall, int | float):
        return "an unknown time"
    return datetime.fromtimestamp(wall, UTC).isoformat(sep=" ", timespec="seconds")


class StatusPart(Protocol):
    """A part of a daemon that says what it does and what it waits for; by default neither."""

    def status(self) -> Mapping[str, Any]:
        """What it does, as JSON values."""
        return {}

    def waits(self) -> Iterable[Wait]:
        """What it waits for, the most pressing first."""
        return ()


class StatusText:
    """A service that says what it does or waits for; :attr:`since` and :attr:`until` go with the words.

    Args:
        clock: for the times.
        words: what is so at first.
    """

    def __init__(self, clock: Clock, words: str) -> None:
        self.__clock = clock
        self.__why = words
        self.__began = clock.now()
        self.__ends: float | None = None

    @property
    def since(self) -> float:
        """When that began, unix seconds by the clock as it is now: that may have been set since."""
        return self.__clock.wall() - (self.__clock.now() - self.__began)

    @property
    def until(self) -> float | None:
        """When it ends in any case, as :attr:`since`; None: only others end it."""
        return None if self.__ends is None else self.__clock.wall() + self.__ends - self.__clock.now()

    @property
    def why(self) -> str:
        """In words."""
        return self.__why

    @why.setter
    def why(self, words: str) -> None:
        self.say(words)

    def say(self, words: str, limit_s: float | None = None) -> None:
        """What is so from now on, and in how many seconds it ends in any case."""
        if words == self.__why and limit_s is None:
            return
        if words != self.__why:
            self.__began = self.__clock.now()
        self.__why = words
        self.__ends = None if limit_s is None else self.__clock.now() + limit_s
