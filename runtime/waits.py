"""Waits of a daemon: what it waits for, since when, and until when (docs/reliability.md)."""

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
    """One wait; times in Unix seconds.

    ``what``: one word for programs, such as ``broker``. ``why``: for people. ``since``: None if unknown.
    ``until``: when something happens by itself, and ``then`` names it; None if only others can end the wait.
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


def read(value: object) -> list[Wait]:
    """Waits from JSON; unknown keys and unreadable entries of other releases are ignored."""
    entries = value if isinstance(value, list) else []
    keys = tuple(field.name for field in fields(Wait))
    return [
        Wait(**{key: one[key] for key in keys if key in one})
        for one in entries
        if isinstance(one, dict) and {"what", "why"} <= one.keys()
    ]


def lines(waits: Iterable[Wait], now: float) -> list[str]:
    """One line per wait, for people."""
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
    """A part of a daemon that reports its state and its waits; by default neither."""

    def status(self) -> Mapping[str, Any]:
        """Its state, as JSON values."""
        return {}

    def waits(self) -> Iterable[Wait]:
        """Its waits, the most pressing first."""
        return ()


class StatusText:
    """The state or wait of a service; :attr:`since` and :attr:`until` belong to the present text.

    Args:
        clock: for the times.
        words: the first text.
    """

    def __init__(self, clock: Clock, words: str) -> None:
        self.__clock = clock
        self.__why = words
        self.__began = clock.now()
        self.__ends: float | None = None

    @property
    def since(self) -> float:
        """When the present state began, Unix seconds by the clock's present setting."""
        return self.__clock.wall() - (self.__clock.now() - self.__began)

    @property
    def until(self) -> float | None:
        """When it ends in any case, as :attr:`since`; None: only others end it."""
        return None if self.__ends is None else self.__clock.wall() + self.__ends - self.__clock.now()

    @property
    def why(self) -> str:
        """The present state in words."""
        return self.__why

    @why.setter
    def why(self, words: str) -> None:
        self.say(words)

    def say(self, words: str, limit_s: float | None = None) -> None:
        """Set the text, and the seconds after which its state ends in any case."""
        if words == self.__why and limit_s is None:
            return
        if words != self.__why:
            self.__began = self.__clock.now()
        self.__why = words
        self.__ends = None if limit_s is None else self.__clock.now() + limit_s
