"""The rollouts on a terminal: each watch's trial of its last model."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lichen_lab.demo.rollout.checks import figures_of
from lichen_lab.demo.rollout.results import COMMITTED, ROLLED_BACK, TRIAL, Move, RolloutResults

_DOES: Final = {
    TRIAL: ("tries it", "yellow"),
    COMMITTED: ("keeps it", "green"),
    ROLLED_BACK: ("dropped it by itself", "red"),
    "refused": ("refused it", "red"),
}


def board(results: RolloutResults, moves: Sequence[Move], words: str) -> RenderableType:
    """A table.

    Args:
        results: names the devices that take part.
        moves: the watches' moves so far.
        words: the state of the rollout.
    """
    table = Table(expand=False, header_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in ("watch", "person", "where", "version", "it", "windows", "figures"):
        table.add_column(column, justify="right" if column in {"version", "windows"} else "left")
    last = {move.device: move for move in moves}
    for watcher in results.watchers:
        cells: list[RenderableType] = [watcher.name, str(watcher.person), watcher.site]
        move = last.get(watcher.name)
        if move is None:
            table.add_row(*cells, "-", Text("starts", style="dim"), "-", "")
            continue
        does, style = _DOES.get(move.phase, (move.phase, "dim"))
        windows = f"{move.measures['windows']:.0f}" if "windows" in move.measures else "-"
        figures = "; ".join(figures_of(move.measures))
        table.add_row(*cells, str(move.version), Text(does, style=style), windows, Text(figures))
    return Group(Text(words or "the watches start", style="bold"), table)
