"""Story in, one self-contained HTML file out."""

from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lichen.demo.report import plots, style
from lichen.demo.rollout import page as rollout
from lichen.demo.rollout.checks import contained
from lichen.demo.story import Story
from lichen.demo.study import spread, summarise
from lichen.spar import LABEL_NAMES

_MISSING = "\N{EN DASH}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share in percent, or a dash."""
    return _MISSING if value is None else f"{100 * value:.{digits}f} %"


def points(value: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * value:+.1f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit, factor in (("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def confused(story: Story) -> str:
    """The largest confusion in words: which class is taken for which other, by share of its windows."""
    found = [
        (count / sum(row), count, sum(row), done, said)
        for done, row in enumerate(story.confusion)
        for said, count in enumerate(row)
        if done != said and count
    ]
    if not found:
        return "No window is taken for another exercise."
    share, count, windows, done, said = max(found)
    names = [LABEL_NAMES.get(label, label) for label in story.labels]
    return (
        f"The largest confusion: {names[done]} is taken for {names[said]} in {percent(share)} of its windows "
        f"({count} of {windows})."
    )


def figures(story: Story) -> dict[str, Markup]:
    """All figures that the story has data for, as SVG for a desk and for a phone."""
    return style.two_widths(lambda: _drawn(story))


def _drawn(story: Story) -> dict[str, str]:
    drawn = {
        "accuracy": plots.accuracy_by_round(story),
        "bytes": plots.bytes_by_round(story),
        "sensors": plots.sensors(story),
        "coverage": plots.coverage(story),
    }
    if story.confusion:
        drawn["confusion"] = plots.confusion(story)
    if story.observer and story.observer.predictions:
        drawn["timeline"] = plots.timeline(story.observer, story.labels)
    if story.study:
        drawn["study"] = plots.study(story.study)
    return drawn


def html(story: Story) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, points=points, size=size)
    template = environment.from_string((files("lichen.demo.report") / "page.html").read_text())
    rolled_out = rollout.section(story.rollout, environment)
    return template.render(
        rolled_out=rolled_out,
        contained=contained(story.rollout),
        story=story,
        style=style.sheet(),
        figures=figures(story),
        confused=confused(story),
        table=summarise(story.study),
        alone=spread(story.alone) if story.alone else None,
        label_names=LABEL_NAMES,
    )


def write(story: Story, path: Path) -> None:
    """Write the page."""
    path.write_text(html(story), encoding="utf-8")
