"""Renders a demo's results as one self-contained HTML file.

All reports share ``base.html``; a demo's ``page.html`` extends it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Generic

from jinja2 import DictLoader, Environment, StrictUndefined

from lichen_lab.demo.core.scenario import ResultsT
from lichen_lab.simulation.data.sets.spar import LABEL_NAMES
from lichen_lab.simulation.reporting import style

_MISSING: Final = "\N{EN DASH}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share in percent, or a dash."""
    return _MISSING if value is None else f"{100 * value:.{digits}f} %"


def points(value: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * value:+.1f}"


def size(count: float) -> str:
    """A size with its unit."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


@dataclass(frozen=True)
class DemoPage(Generic[ResultsT]):
    """One demo's report.

    Attributes:
        package: where its ``page.html`` is.
        figures: name -> SVG, of all figures with data; called once for a desk and once for a phone.
        given: further values of the template.
        filters: further filters, besides ``percent``, ``points`` and ``size``.
        parts: further templates by name, as package and file.
    """

    package: str
    figures: Callable[[ResultsT], Mapping[str, str]]
    given: Callable[[ResultsT], Mapping[str, Any]]
    filters: Mapping[str, Callable[..., str]] = field(default_factory=dict)
    parts: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def html(self, results: ResultsT) -> str:
        """The page."""
        sources = {"base": (__package__, "base.html"), "page": (self.package, "page.html"), **self.parts}
        texts = {name: (files(package) / file).read_text() for name, (package, file) in sources.items()}
        environment = Environment(
            loader=DictLoader(texts),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(percent=percent, points=points, size=size, **self.filters)
        return environment.get_template("page").render(
            results=results,
            style=style.sheet(),
            figures=style.two_widths(lambda: self.figures(results)),
            label_names=LABEL_NAMES,
            **self.given(results),
        )

    def write(self, results: ResultsT, path: Path) -> None:
        """Write the page."""
        path.write_text(self.html(results), encoding="utf-8")
