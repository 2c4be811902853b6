"""The report of the demo on knowledge graphs."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.mmfed3_hide import plots
from lichen_lab.demo.plans.mmfed3_hide.collect_results import SHOWN
from lichen_lab.demo.plans.mmfed3_hide.devices import JUDGE_SHARE, TEXT_SHARE, TOP_K
from lichen_lab.demo.plans.mmfed3_hide.results import GraphResults


def words(name: str) -> str:
    """A name as people write it."""
    return name.replace("_", " ")


def figures(results: GraphResults) -> Mapping[str, str]:
    """All figures."""
    return {
        "byround": plots.by_round(results),
        "bytes": plots.bytes_by_round(results),
        "judged": plots.judged(results),
    }


def template_values(results: GraphResults) -> Mapping[str, Any]:
    """Further values of the template."""
    return {
        "ups": results.share(lambda turn: turn.up),
        "downs": results.share(lambda turn: turn.down),
        "text_share": TEXT_SHARE,
        "judge_share": JUDGE_SHARE,
        "top_k": TOP_K,
        "shown": SHOWN,
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.mmfed3_hide", figures, template_values, {"words": words})
