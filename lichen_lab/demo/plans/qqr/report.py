"""QQR's report."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.figures import confused, of_windows, sensors
from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.qqr import plots
from lichen_lab.demo.plans.qqr.results import Story
from lichen_lab.demo.plans.qqr.simulated_seeds import spread, summarise
from lichen_lab.demo.rollout import page as rollout
from lichen_lab.demo.rollout.checks import contained


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


PAGE: Final = DemoPage("lichen_lab.demo.plans.qqr", figures, given, parts=rollout.PARTS)
