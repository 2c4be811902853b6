"""The report of the demo on knowledge graphs."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.mmfed3_hide import plots
from lichen_lab.demo.plans.mmfed3_hide.collect_results import SHOWN
from lichen_lab.demo.plans.mmfed3_hide.devices import JUDGE_SHARE, TEXT_SHARE, TOP_K
from lichen_lab.demo.plans.mmfed3_hide.results import GraphStory


def words(name: str) -> str:
    """A name as people write it."""
    return name.replace("_", " ")


def figures(story: GraphStory) -> Mapping[str, str]:
    """All figures."""
    return {
        "byround": plots.by_round(story),
        "bytes": plots.bytes_by_round(story),
        "judged": plots.judged(story),
    }


def given(story: GraphStory) -> Mapping[str, Any]:
    """What the page names besides."""
    return {
        "ups": story.share(lambda turn: turn.up),
        "downs": story.share(lambda turn: turn.down),
        "text_share": TEXT_SHARE,
        "judge_share": JUDGE_SHARE,
        "top_k": TOP_K,
        "shown": SHOWN,
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.mmfed3_hide", figures, given, {"words": words})
