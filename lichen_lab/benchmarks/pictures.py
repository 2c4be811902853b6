"""Pictures of the docs, drawn from stored results by layouts. Imports matplotlib where one is drawn.

Each table ``[NAME]`` of a file of ``docs/benchmarks/pictures`` becomes ``docs/pictures/NAME.png``::

    [bench-tactfl-rounds]
    bench = "tactfl"
    x = "round"
    y = "F1 on test people, %"
    where = { dataset = "uci-har", setting = "missing 0.5" }
    lines = [{ head = "TACTFL", method = "TACTFL" }, { head = "the paper", method = "paper", level = true }]
    points = [{ at = 15, metric = "F1 after 15 rounds, %" }, { at = 200, metric = "F1, %" }]

``where``, a line and a point select stored rows by their fields, as in the tables of
:mod:`lichen_lab.benchmarks.stored_results`. A point without a figure is left out. The figure of a line with
``level`` is drawn across the picture, and with ``zero = true`` of the picture a line at 0. Bars are one
standard deviation, with ``spread = "se"`` one standard error. Where points have a ``name`` each, they are
conditions: their names stand below, and lines are marks side by side.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lichen_lab.benchmarks import stored_results
from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.stored_results import Stored
from protocol.errors import Misconfigured

LAYOUTS: Final = Path("benchmarks") / "pictures"
PICTURES: Final = Path("pictures")
_DPI: Final = 110
_BESIDE: Final = 0.1
"""Distance of marks side by side, where conditions are one apart."""
_INK: Final = "#1d2521"
_COLOURS: Final[Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.edgecolor": "#c9d0cb",
}
"""A picture has a white ground, in light and dark pages."""


def layouts(docs: Path) -> dict[str, Stored]:
    """The layout of each picture by its name.

    Raises:
        Misconfigured: two files have a picture of the same name.
    """
    found: dict[str, Stored] = {}
    for path in sorted((docs / LAYOUTS).glob("*.toml")):
        made = tomllib.loads(path.read_text(encoding="utf-8"))
        if twice := sorted(found.keys() & made.keys()):
            raise Misconfigured(f"{path}: another file has a picture {twice[0]!r}, too")
        found |= made
    return found


def draw(docs: Path) -> list[Path]:
    """Draw every picture; returns their files.

    Raises:
        Misconfigured: a line has no stored figure; the message names picture and line.
    """
    rows = stored_results.rows_by_bench(docs)
    made = []
    for name, layout in layouts(docs).items():
        path = docs / PICTURES / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        _draw(layout, series(name, layout, rows.get(layout["bench"], ())), path)
        made.append(path)
    return made


def series(
    name: str, layout: Mapping[str, Any], rows: Sequence[ResultRow]
) -> list[tuple[Mapping[str, Any], list[tuple[float, ResultRow]]]]:
    """Each line of a picture with its points, (place, row), in the layout's order.

    Raises:
        Misconfigured: a line has no stored figure, or a point of it has several.
    """
    made = []
    for line in layout["lines"]:
        points: list[tuple[float, ResultRow]] = []
        for point in layout["points"]:
            wanted = {**layout.get("where", {}), **line, **point}
            found = [row for row in rows if stored_results.selects(wanted, row)]
            if len(found) > 1:
                raise Misconfigured(
                    f"picture {name}: {len(found)} figures for {line['head']} at {point['at']}"
                )
            points += [(float(point["at"]), row) for row in found]
        if not points:
            raise Misconfigured(f"picture {name}: no stored figure of {layout['bench']} for {line['head']!r}")
        made.append((line, points))
    return made


def _draw(
    layout: Mapping[str, Any],
    lines: Sequence[tuple[Mapping[str, Any], Sequence[tuple[float, ResultRow]]]],
    path: Path,
) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - a second, and only for pictures
    from matplotlib.figure import Figure  # noqa: PLC0415 - likewise

    from lichen_lab.benchmarks.study.report.plots import below, look  # noqa: PLC0415 - likewise
    from lichen_lab.simulation.reporting import style  # noqa: PLC0415 - likewise

    with style.context(), mpl.rc_context(_COLOURS):
        made = Figure(figsize=(6.4, 4.4), layout="constrained", facecolor="white")
        axes = made.subplots()
        names = [point["name"] for point in layout["points"] if "name" in point]
        if layout.get("zero"):
            axes.axhline(0.0, color=style.GREY, lw=1.2)
        for place, (line, points) in enumerate(lines):
            colour, dash = look(place)
            if line.get("level"):
                axes.axhline(points[-1][1].mean, color=colour, ls="--", lw=1.4, label=line["head"])
                continue
            beside = _BESIDE * (place - (len(lines) - 1) / 2) if names else 0.0
            spread = layout.get("spread", "sd")
            at, mean, bar = zip(
                *((x + beside, row.mean, getattr(row, spread) if row.n > 1 else 0.0) for x, row in points),
                strict=True,
            )
            style_of: dict[str, Any] = {"ls": "none", "ms": 5} if names else {"ls": dash, "ms": 4}
            axes.errorbar(
                at, mean, bar, fmt="o", color=colour, lw=2, elinewidth=1, label=line["head"], **style_of
            )
        if names:
            axes.set_xticks([float(point["at"]) for point in layout["points"]], names)
        axes.set_xlabel(layout.get("x", ""))
        axes.set_ylabel(layout["y"])
        axes.grid(axis="y", color="#e3e7e4")
        below(axes)
        made.savefig(path, dpi=_DPI, metadata={"Software": None})
