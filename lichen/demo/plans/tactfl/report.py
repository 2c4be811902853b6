"""Story in, one self-contained HTML file out."""

from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lichen.demo.plans.tactfl import plots
from lichen.demo.plans.tactfl.comparing import PATIENCE
from lichen.demo.plans.tactfl.story import UnlabelledStory
from lichen.demo.report import plots as common
from lichen.demo.report import style
from lichen.demo.report.render import confused, percent, points, size
from lichen.spar import LABEL_NAMES


def figures(story: UnlabelledStory) -> dict[str, Markup]:
    """All figures that the story has data for, as SVG for a desk and for a phone."""
    return style.two_widths(lambda: _drawn(story))


def _drawn(story: UnlabelledStory) -> dict[str, str]:
    drawn = {"byround": plots.by_round(story), "sensors": common.sensors(story)}
    if story.weighed:
        drawn["weights"] = plots.weights(story)
        drawn["similarity"] = plots.last_similarity(story)
        drawn["rounds"] = plots.similarity_by_round(story)
    if story.confusion:
        drawn["confusion"] = common.confusion(story)
    if story.observer and story.observer.predictions:
        drawn["timeline"] = common.timeline(story.observer, story.labels)
    return drawn


def html(story: UnlabelledStory) -> str:
    """The page."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, points=points, size=size, short=plots.short)
    template = environment.from_string((files("lichen.demo.plans.tactfl") / "page.html").read_text())
    return template.render(
        story=story,
        style=style.sheet(),
        figures=figures(story),
        confused=confused(story),
        last=story.weighed[-1].weights if story.weighed else {},
        label_names=LABEL_NAMES,
        patience=PATIENCE,
    )


def write(story: UnlabelledStory, path: Path) -> None:
    """Write the page."""
    path.write_text(html(story), encoding="utf-8")
