"""The demo's screen: a live table on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runtime.fleet_view import DeviceView, FleetView

_KEPT: Final = 8
_PHASES: Final = {
    "initialising": "making the initial model",
    "waiting_for_devices": "waiting for devices",
    "collecting": "devices learn and send",
    "aggregating": "aggregating",
    "evaluating": "judging on unseen people",
    "exporting": "exporting to ONNX, checking against torch",
    "done": "done",
    "offline": "the coordinator is not connected",
    "stopped": "the coordinator was stopped",
}


def size(count: int) -> str:
    """A size with its unit."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"  # noqa: PLR2004 - a megabyte


def summary(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 0) -> Table:
    """The table that the terminal shows at the end.

    Args:
        title: of the first column.
        columns: the others; numbers but for the first ``words`` of them.
        rows: their cells.
        words: columns of text.
    """
    table = Table(title, box=None, padding=(0, 2, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at < words else "right")
    for row in rows:
        table.add_row(*row)
    return table


class Screen:
    """Collects events; draws them with the fleet's state. Use as a context manager."""

    def __init__(self, console: Console | None = None, *, quiet: bool = False) -> None:
        self.console = console or Console()
        self.events: list[tuple[float, str]] = []
        self.note = ""
        """Progress beside the rounds (the study, the observer's predictions)."""
        self._board: Callable[[], RenderableType] | None = None
        self._quiet = quiet
        self._recent: deque[str] = deque(maxlen=_KEPT)
        self._started = time.monotonic()
        self._live: Live | None = None
        self._last = -1

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self._quiet:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """Keep an event for the report, and show it at once."""
        self.events.append((round(self.seconds, 1), text))
        line = f"{self.seconds:6.1f} s  {text}"
        self._recent.append(line)
        if self._live is not None:
            # Above the live table, so that it stays in the scroll-back.
            self._live.console.print(line, markup=False, highlight=False)
        elif not self._quiet:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, view: FleetView, people: dict[str, str]) -> None:
        """Draw the fleet; without a terminal, print a line for each finished round."""
        if self._live is not None:
            self._live.update(
                self._picture(view, people) if self._board is None else self._of_board(self._board())
            )
            return
        line = round_line(view)
        judged = max(view.history, default=-1)
        if line and judged != self._last and not self._quiet:
            self._last = judged
            self.console.print(
                f"{self.seconds:6.1f} s  {line}", markup=False, highlight=False, soft_wrap=True
            )

    def show_board(self, board: Callable[[], RenderableType]) -> None:
        """Show this instead of the rounds, once they are over."""
        self._board = board

    def _of_board(self, board: RenderableType) -> RenderableType:
        return Group(board, Text(self.note, style="dim")) if self.note else board

    def _picture(self, view: FleetView, people: dict[str, str]) -> RenderableType:
        table = Table(expand=False, header_style="bold", box=None, padding=(0, 2, 0, 0))
        graph = view.task is not None and view.task.graph is not None
        who, what = ("about", "facts") if graph else ("person", "windows")
        for column in ("device", who, what, *_modalities(view), "this round", "loss"):
            table.add_column(column, justify="right" if column in {what, "loss"} else "left")
        for name, person in people.items():
            table.add_row(*_row(view, view.devices.get(name, DeviceView(name)), person))
        parts: list[RenderableType] = [Text(headline(view) or "starting", style="bold"), table]
        if self.note:
            parts.append(Text(self.note, style="dim"))
        return Group(*parts)


def _modalities(view: FleetView) -> tuple[str, ...]:
    return view.task.modality_names if view.task else ()


def _row(view: FleetView, device: DeviceView, person: str) -> list[RenderableType]:
    style = {"online": "green", "offline": "red"}.get(device.status, "dim")
    cells: list[RenderableType] = [Text(device.name, style=style), person, _count(device.windows)]
    for name in _modalities(view):
        state = device.modalities.get(name)
        there = 100 * (1 - state.missing) if state else 0.0
        quality = None if state is None else state.quality
        words = f"{there:3.0f} % there" if state else "-"
        words += "" if quality is None else f", quality {quality:.2f}"
        bad = state is not None and (state.missing > 1 / 3 or (quality is not None and quality < 1 / 2))
        cells.append(Text(words, style="yellow" if bad else ""))
    if device.name in view.delivered():
        cells.append(Text("● delivered", style="green"))
    elif view.round is not None and device.name in view.round.selected:
        cells.append(Text("○ learning", style="cyan"))
    else:
        cells.append(Text("offline" if device.status == "offline" else "-", style=style))
    loss = device.metrics.get("loss")
    return [*cells, f"{loss:.2f}" if loss is not None else "-"]


def _count(windows: int | None) -> str:
    return "-" if windows is None else str(windows)


def round_line(view: FleetView) -> str:
    """One line for each judged version: who delivered, bytes, accuracy."""
    if not view.history or view.round is None:
        return ""
    last = view.history[max(view.history)]
    if last.round == 0:
        return f"round 0/{view.round.rounds} · the initial model"
    names = sorted(view.receipts.get(last.round, ()))
    # Of that round, not of the open one: after a restart they may differ.
    everybody = bool(names) and set(names) == set(view.selected.get(last.round, ()))
    parts = [
        f"round {last.round}/{view.round.rounds}",
        f"from all {len(names)}" if everybody else f"from {', '.join(names)}",
        f"up {size(last.bytes_up)}, down {size(last.bytes_down)}",
        describe_quality(last.metrics) or "not judged",
    ]
    return " · ".join(parts)


def headline(view: FleetView) -> str:
    """Round, phase, who has delivered, bytes, accuracy: one line."""
    if view.round is None:
        return ""
    now = view.round
    parts = [f"round {now.round}/{now.rounds}", _PHASES.get(now.phase, now.phase)]
    if now.selected and now.phase == "collecting":
        parts.append(f"{len(view.delivered())}/{len(now.selected)} delivered")
    parts.append(f"up {size(now.bytes_up)}, down {size(now.bytes_down)}")
    known = [
        words for number in sorted(view.history) if (words := describe_quality(view.history[number].metrics))
    ]
    return " · ".join([*parts, *known[-1:]])


def describe_quality(metrics: Mapping[str, float]) -> str:
    """A version's main metric, in words; empty if there is none."""
    if "accuracy" in metrics:
        return f"accuracy on unseen people {100 * metrics['accuracy']:.1f} %"
    return f"MRR on the devices' own facts {metrics['mrr']:.3f}" if "mrr" in metrics else ""
