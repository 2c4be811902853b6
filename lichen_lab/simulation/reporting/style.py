"""Style of plots: figures become inline SVG with the page's colours, light or dark."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.resources import files
from typing import Any, Final

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Stand-ins that the SVG text exchanges for CSS; no plot uses them as colours of its own.
_INK: Final = "#010203"
_FAINT: Final = "#040506"
_PHONE_INCHES: Final = 3.7
"""Width of a figure for a phone, on which its text has about its own size."""
_PHONE: ContextVar[bool] = ContextVar("figures for a phone", default=False)
_CSS: Final = {_INK: "currentColor", _FAINT: "var(--line)"}

GREEN: Final = "#2a9d78"
OCHRE: Final = "#e0952f"
BLUE: Final = "#5b8fd6"
RED: Final = "#d1495b"
GREY: Final = "#8a8f98"
INK: Final = _INK
FAINT: Final = _FAINT
CLASSES: Final = ("#2a9d78", "#e0952f", "#5b8fd6", "#d1495b", "#8d6cc4", "#4fb3c8", "#b08a4f")

SHADES: Final = LinearSegmentedColormap.from_list("lichen", ["#eef3ee", "#a9d3bd", "#2a9d78", "#14614a"])
WARM: Final = LinearSegmentedColormap.from_list("ochre", ["#f6f1e8", "#f0c583", "#e0952f", "#9c5a10"])
_RC: Final[Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "svg.fonttype": "none",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _FAINT,
    "grid.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
}


def sheet() -> Markup:
    """The pages' ``<style>`` element: light and dark, narrow and wide."""
    return Markup((files("lichen_lab.simulation.reporting") / "style.html").read_text())  # noqa: S704 - a file of this package


@contextmanager
def context(*, phone: bool = False) -> Iterator[None]:
    """In it, every artist is made in the report's style.

    Args:
        phone: figures are narrow, and their panels stand one below the other.
    """
    token = _PHONE.set(phone)
    try:
        with mpl.rc_context(_RC):
            yield
    finally:
        _PHONE.reset(token)


def on_phone() -> bool:
    """Whether figures are made for a phone."""
    return _PHONE.get()


def legend_columns(wide: int, phone: int = 2) -> int:
    """Columns of a legend."""
    return min(wide, phone) if on_phone() else wide


def rounds_axis(axes: Axes, label: str) -> None:
    """Axes of a figure by round: whole rounds across, ``label`` and a grid for the values."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.grid(axis="y")


def rows_axis(axes: Axes, names: Sequence[str], label: str) -> None:
    """Axes of a figure with a row for each name, the first above: ``label`` and a grid for the values."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def number_beside(axes: Axes, text: str, x: float, y: float) -> None:
    """Write a number at the right of the end of its bar."""
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)


def row_names(names: list[str], panel: int) -> list[str]:
    """Labels of a panel's rows: panels side by side have them once, panels that are stacked each."""
    return names if panel == 0 or on_phone() else [""] * len(names)


def figure(width: float, height: float, columns: int = 1, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure (inches) and its axes, left to right; on a phone from top to bottom."""
    if on_phone() and width > _PHONE_INCHES:
        width, height, rows, columns = _PHONE_INCHES, height * columns, rows * columns, 1
    made = Figure(figsize=(width, height), layout="constrained")
    return made, list(made.subplots(rows, columns, squeeze=False).flat)


def two_widths(draw: Callable[[], Mapping[str, str]]) -> dict[str, Markup]:
    """Figures for a desk and for a phone; the page's style shows one of the two.

    Args:
        draw: makes all figures as SVG, by name; called once for each width.
    """
    with context():
        wide = draw()
    with context(phone=True):
        narrow = draw()
    return {
        name: Markup('<div class="desk">{}</div><div class="phone">{}</div>').format(
            Markup(wide[name]),  # noqa: S704 - matplotlib's own SVG, texts escaped
            Markup(narrow[name]),  # noqa: S704 - matplotlib's own SVG, texts escaped
        )
        for name in wide
    }


def svg(made: Figure, name: str) -> str:
    """The figure as an ``<svg>`` element; ``name`` keeps its ids apart from those of other figures."""
    if on_phone():
        name = f"{name}-phone"
    sink = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        made.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    for stand_in, css in _CSS.items():
        text = text.replace(stand_in, css)
    text = re.sub(r' id="image[0-9a-f]+"', "", text)  # a digest of the picture: equal panels have the same
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(|href=")#', rf"\1#{name}-", text)
