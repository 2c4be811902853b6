"""A finding, and the parts that the table makes it of."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Result = Literal["passed", "limited", "failed", "untried"]
NOTHING: Final = ""


@dataclass(frozen=True, slots=True)
class BrokerFinding:
    """One row.

    Attributes:
        check: its stable name, as ``retained.wildcard``.
        tried: what was done.
        result: ``limited``: lichen runs, with less than it could, or with a setting; ``failed``: it does not;
            ``untried``: unknown.
        measured: what was seen.
        consequence: for lichen, and what to do; empty if there is none.
    """

    check: str
    tried: str
    result: Result
    measured: str
    consequence: str = NOTHING

    def as_json(self) -> dict[str, Any]:
        """For ``--format json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """Result, measured value and consequence of one check."""

    result: Result
    measured: str
    consequence: str = NOTHING


@dataclass(frozen=True, slots=True)
class BrokerCheck:
    """A row of the table.

    Attributes:
        name: of the check.
        tried: what the probe does.
        judge: the verdict on the probe's facts; None: there is nothing to say.
        needed: the consequence if the probe could not be carried out.
        required: whether lichen cannot run without it.
    """

    name: str
    tried: str
    judge: Callable[[Any], RowVerdict | None]
    needed: str
    required: bool = True


def passed(measured: str, consequence: str = NOTHING) -> RowVerdict:
    """All that lichen needs."""
    return RowVerdict("passed", measured, consequence)


def limited(measured: str, consequence: str) -> RowVerdict:
    """Less than lichen could use."""
    return RowVerdict("limited", measured, consequence)


def failed(measured: str, consequence: str) -> RowVerdict:
    """Less than lichen needs."""
    return RowVerdict("failed", measured, consequence)


def either(good: bool, measured: tuple[str, str], consequence: str, *, required: bool = True) -> RowVerdict:  # noqa: FBT001 - the question itself
    """Passed with the first text, or failed (limited, if not required) with the second."""
    if good:
        return passed(measured[0])
    return (failed if required else limited)(measured[1], consequence)
