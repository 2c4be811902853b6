"""The table of a state machine: the handler of an event in a phase, and the phases it may lead to. Pure.

The pages under docs show a table as a diagram and a list, and tests compare them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

P = TypeVar("P", bound=StrEnum)
E = TypeVar("E")
H = TypeVar("H")


class Row(Generic[P, H]):
    """A cell of a table.

    Args:
        handler: decides on the event.
        to: every phase the handler may lead to, with the reason in words.
    """

    def __init__(self, handler: H, *to: tuple[P, str]) -> None:
        self.handler = handler
        self.to = to


@dataclass(frozen=True)
class StateTable(Generic[P, E, H]):
    """All rows of a machine. An event without a row is ignored: a late or repeated one does no harm.

    ``first``, ``last``: the machine's first phase, and its last, if any. ``alike``: phases with the same
    rows, which the list shows once.
    """

    rows: Mapping[tuple[P, type[E]], Row[P, H]]
    first: P
    last: P | None = None
    alike: tuple[P, ...] = ()

    def handler(self, phase: P, event: E) -> H | None:
        """The handler of an event in a phase; None without a row."""
        row = self.rows.get((phase, type(event)))
        return None if row is None else row.handler

    def diagram(self) -> str:
        """A mermaid state diagram: every step from one phase to another."""
        lines = ["stateDiagram-v2", f"  [*] --> {self.first.value}"]
        lines += [
            f"  {phase.value} --> {target.value} : {event.__name__}: {reason}"
            for (phase, event), row in self.rows.items()
            for target, reason in row.to
            if target is not phase
        ]
        return "\n".join(lines if self.last is None else [*lines, f"  {self.last.value} --> [*]"])

    def listing(self) -> str:
        """The whole table in Markdown, with events that leave the phase unchanged."""
        lines = ["| phase | event | leads to |", "|---|---|---|"]
        for (phase, event), row in self.rows.items():
            if phase in self.alike[1:]:
                continue
            phases = ", ".join(self.alike) if phase in self.alike else phase.value
            leads = "; ".join(
                f"{'as it is' if self.alike and target is phase else target.value} ({reason})"
                for target, reason in row.to
            )
            lines.append(f"| {phases} | {event.__name__} | {leads} |")
        return "\n".join(lines)
