"""QQR's report."""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.demo.figures import describe_confusion, sensors, window_figures
from lichen_lab.demo.page import DemoPage
from lichen_lab.demo.plans.qqr import plots
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.plans.qqr.simulated_seeds import spread, summarise
from lichen_lab.demo.rollout import page as rollout
from lichen_lab.demo.rollout.checks import bad_model_contained


def figures(results: QqrResults) -> Mapping[str, str]:
    """All figures with data."""
    drawn = {
        "accuracy": plots.accuracy_by_round(results),
        "bytes": plots.bytes_by_round(results),
        "sensors": sensors(results.devices, results.modalities),
        "coverage": plots.coverage(results),
        **window_figures(results),
        **rollout.figures(results.rollout),
    }
    if results.study:
        drawn["study"] = plots.study(results.study)
    return drawn


def template_values(results: QqrResults) -> Mapping[str, Any]:
    """Further values of the template."""
    return {
        "confused": describe_confusion(results),
        "contained": bad_model_contained(results.rollout),
        "table": summarise(results.study),
        "alone": spread(results.alone) if results.alone else None,
        **rollout.template_values(results.rollout),
    }


PAGE: Final = DemoPage("lichen_lab.demo.plans.qqr", figures, template_values, parts=rollout.PARTS)
