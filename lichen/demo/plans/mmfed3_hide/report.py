"""Story in, one self-contained HTML file out."""

from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lichen.demo.plans.mmfed3_hide import plots
from lichen.demo.plans.mmfed3_hide.cast import JUDGE_SHARE, TEXT_SHARE, TOP_K
from lichen.demo.plans.mmfed3_hide.story import GraphStory
from lichen.demo.plans.mmfed3_hide.telling import SHOWN
from lichen.demo.report import style
from lichen.demo.report.render import percent, size


def words(name: str) -> str:
    """A name as people write it."""
    return name.replace("_", " ")


def figures(story: GraphStory) -> dict[str, Markup]:
    """All figures, as SVG for a desk and for a phone."""
    return style.two_widths(lambda: _drawn(story))


def _drawn(story: GraphStory) -> dict[str, str]:
    return {
        "byround": plots.by_round(story),
        "bytes": plots.bytes_by_round(story),
        "judged": plots.judged(story),
    }


def html(story: GraphStory) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, size=size, words=words)
    template = environment.from_string((files("lichen.demo.plans.mmfed3_hide") / "page.html").read_text())
    return template.render(
        story=story,
        style=style.sheet(),
        figures=figures(story),
        ups=story.share(lambda turn: turn.up),
        downs=story.share(lambda turn: turn.down),
        text_share=TEXT_SHARE,
        judge_share=JUDGE_SHARE,
        top_k=TOP_K,
        shown=SHOWN,
    )


def write(story: GraphStory, path: Path) -> None:
    """Write the page."""
    path.write_text(html(story), encoding="utf-8")
