"""A finding, the table of all checks, and the verdicts that the checks give."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeVar

from lichen.broker.facts import Facts

Result = Literal["passed", "limited", "failed", "untried"]
NOTHING: Final = ""
F = TypeVar("F", bound=Facts)
Judge = Callable[[F], "RowVerdict | None"]


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
    required: bool


TABLE: Final[dict[type, list[BrokerCheck]]] = {}
"""The checks that judge a probe's facts."""


def check(
    kind: type[F], name: str, tried: str, needed: str = NOTHING, *, required: bool = True
) -> Callable[[Judge[F]], Judge[F]]:
    """Put the verdict on these facts into the table; arguments as of :class:`BrokerCheck`."""

    def put(judge: Judge[F]) -> Judge[F]:
        TABLE.setdefault(kind, []).append(
            BrokerCheck(name, tried, judge, needed, required and needed != NOTHING)
        )
        return judge

    return put


def passed(measured: str, consequence: str = NOTHING) -> RowVerdict:
    """All that lichen needs."""
    return RowVerdict("passed", measured, consequence)


def limited(measured: str, consequence: str) -> RowVerdict:
    """Less than lichen could use."""
    return RowVerdict("limited", measured, consequence)


def failed(measured: str, consequence: str) -> RowVerdict:
    """Less than lichen needs."""
    return RowVerdict("failed", measured, consequence)


def either(good: bool, measured: tuple[str, str], consequence: str, *, required: bool = False) -> RowVerdict:  # noqa: FBT001 - the question itself
    """Passed with the first text, or limited (failed, if required) with the second."""
    if good:
        return passed(measured[0])
    return (failed if required else limited)(measured[1], consequence)
