"""The table of a state machine, as the pages under docs show it. Pure.

A table is ``(phase, type of event) -> row``; a row says every phase it may lead to, with the reason in words.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol


class Row(Protocol):
    """A cell of a table."""

    @property
    def to(self) -> tuple[tuple[Any, str], ...]:
        """Phases, and why."""


def diagram(table: Mapping[tuple[Any, type], Row], first: StrEnum, last: StrEnum | None = None) -> str:
    """A mermaid state diagram: every step from one phase to another.

    Args:
        table: of the machine.
        first: where it begins.
        last: where it ends, if anywhere.
    """
    lines = ["stateDiagram-v2", f"  [*] --> {first.value}"]
    lines += [
        f"  {phase.value} --> {target.value} : {event.__name__}: {words}"
        for (phase, event), row in table.items()
        for target, words in row.to
        if target is not phase
    ]
    return "\n".join(lines if last is None else [*lines, f"  {last.value} --> [*]"])


def listing(table: Mapping[tuple[Any, type], Row]) -> str:
    """The whole table in Markdown, with what leaves the phase as it is."""
    lines = ["| phase | event | leads to |", "|---|---|---|"]
    for (phase, event), row in table.items():
        leads = "; ".join(f"{target.value} ({words})" for target, words in row.to)
        lines.append(f"| {phase.value} | {event.__name__} | {leads} |")
    return "\n".join(lines)
