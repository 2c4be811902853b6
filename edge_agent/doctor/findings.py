"""Findings of a check: severity, observation, remedy."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from runtime import exit_codes

Level = Literal["ok", "warn", "fail"]
MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's output.

    Attributes:
        check: its stable name, as ``disk.space``.
        level: ``warn``: the agent runs, with less than it could; ``fail``: it does not, or not as configured.
        seen: the observation.
        todo: the remedy; empty if there is no problem.
        code: of a failure: 78 if a file of the configuration is to be changed, else 69.
    """

    check: str
    level: Level
    seen: str
    todo: str = ""
    code: int = exit_codes.UNAVAILABLE

    def as_json(self) -> dict[str, Any]:
        """For ``--format json``."""
        found = asdict(self)
        if self.level != "fail":
            del found["code"]
        return found


def ok(check: str, seen: str) -> Finding:
    """No problem."""
    return Finding(check, "ok", seen)


def warn(check: str, seen: str, todo: str) -> Finding:
    """A limitation."""
    return Finding(check, "warn", seen, todo)


def fail(check: str, seen: str, todo: str, code: int = exit_codes.UNAVAILABLE) -> Finding:
    """A failure."""
    return Finding(check, "fail", seen, todo, code)


def status_of(findings: Iterable[Finding]) -> int:
    """The exit status: 0 if nothing failed, 78 if the configuration is wrong, else 69."""
    codes = {finding.code for finding in findings if finding.level == "fail"}
    if exit_codes.CONFIG in codes:
        return exit_codes.CONFIG
    return exit_codes.UNAVAILABLE if codes else exit_codes.OK
