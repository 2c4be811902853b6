"""The report of the demo without labels."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.figures import describe_confusion, sensors, window_figures
from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.tactfl import plots
from lichen_lab.demo.plans.tactfl.comparison import PATIENCE
from lichen_lab.demo.plans.tactfl.results import TactflResults


def figures(results: TactflResults) -> Mapping[str, str]:
    """All figures with data."""
    drawn = {
        "byround": plots.by_round(results),
        "sensors": sensors(results.devices, results.modalities),
        **window_figures(results),
    }
    if results.weighed:
        drawn["weights"] = plots.weights(results)
        drawn["similarity"] = plots.last_similarity(results)
        drawn["rounds"] = plots.similarity_by_round(results)
    return drawn


def template_values(results: TactflResults) -> Mapping[str, Any]:
    """Further values of the template."""
    last = results.weighed[-1].weights if results.weighed else {}
    return {"confused": describe_confusion(results), "last": last, "patience": PATIENCE}


PAGE: Final = DemoPage("lichen_lab.demo.plans.tactfl", figures, template_values, {"short": plots.short})
