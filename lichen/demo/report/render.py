"""QQR's report."""

from collections.abc import Mapping
from typing import Any, Final

from lichen.demo.figures import confused, of_windows, sensors
from lichen.demo.page import Page
from lichen.demo.qqr_results import Story
from lichen.demo.report import plots
from lichen.demo.rollout import page as rollout
from lichen.demo.rollout.checks import contained
from lichen.demo.study import spread, summarise


def figures(story: Story) -> Mapping[str, str]:
    """All figures that the story has data for."""
    drawn = {
        "accuracy": plots.accuracy_by_round(story),
        "bytes": plots.bytes_by_round(story),
        "sensors": sensors(story.devices, story.modalities),
        "coverage": plots.coverage(story),
        **of_windows(story),
        **rollout.figures(story.rollout),
    }
    if story.study:
        drawn["study"] = plots.study(story.study)
    return drawn


def given(story: Story) -> Mapping[str, Any]:
    """What the page names besides."""
    return {
        "confused": confused(story),
        "contained": contained(story.rollout),
        "table": summarise(story.study),
        "alone": spread(story.alone) if story.alone else None,
        **rollout.given(story.rollout),
    }


PAGE: Final = Page("lichen.demo.report", figures, given, parts=rollout.PARTS)
