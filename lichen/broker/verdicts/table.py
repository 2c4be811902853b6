"""The findings that the checks make of facts."""

from collections.abc import Iterable

from lichen.broker.facts import Facts
from lichen.broker.verdicts import connection, messages  # noqa: F401 - they fill the table
from lichen.broker.verdicts.finding import TABLE, BrokerFinding
from runtime import exit_codes


def findings(facts: Facts) -> list[BrokerFinding]:
    """The rows that these facts give."""
    rows = ((check, check.judge(facts)) for check in TABLE[type(facts)])
    return [
        BrokerFinding(check.name, check.tried, row.result, row.measured, row.consequence)
        for check, row in rows
        if row is not None
    ]


def broken(kind: type[Facts], words: str) -> list[BrokerFinding]:
    """The rows of a probe that the broker interrupted: failed where lichen cannot do without."""
    return [
        BrokerFinding(one.name, one.tried, "failed" if one.required else "limited", words, one.needed)
        for one in TABLE[kind]
    ]


def untried(kinds: Iterable[type[Facts]], words: str) -> list[BrokerFinding]:
    """The rows of probes that did not run."""
    return [BrokerFinding(one.name, one.tried, "untried", words) for kind in kinds for one in TABLE[kind]]


def exit_code(rows: Iterable[BrokerFinding]) -> int:
    """0: the broker can be used; 65: it lacks what lichen needs; 75: that is not known."""
    rows = list(rows)
    if any(row.result == "failed" for row in rows):
        return exit_codes.DATAERR
    unknown = any(row.result == "untried" and not row.check.startswith("access.") for row in rows)
    return exit_codes.TEMPFAIL if unknown else exit_codes.OK
