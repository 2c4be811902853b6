"""The report of the demo without labels."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.figures import confused, of_windows, sensors
from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.tactfl import plots
from lichen_lab.demo.plans.tactfl.comparison import PATIENCE
from lichen_lab.demo.plans.tactfl.results import UnlabelledStory


def figures(story: UnlabelledStory) -> Mapping[str, str]:
    """All figures that the story has data for."""
    drawn = {
        "byround": plots.by_round(story),
        "sensors": sensors(story.devices, story.modalities),
        **of_windows(story),
    }
    if story.weighed:
        drawn["weights"] = plots.weights(story)
        drawn["similarity"] = plots.last_similarity(story)
        drawn["rounds"] = plots.similarity_by_round(story)
    return drawn


def given(story: UnlabelledStory) -> Mapping[str, Any]:
    """What the page names besides."""
    last = story.weighed[-1].weights if story.weighed else {}
    return {"confused": confused(story), "last": last, "patience": PATIENCE}


PAGE: Final = DemoPage("lichen_lab.demo.plans.tactfl", figures, given, {"short": plots.short})
