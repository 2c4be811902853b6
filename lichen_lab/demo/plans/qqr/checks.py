"""Checks of QQR's demo: those that must hold for success, and findings. Each tick has its number."""

from typing import Final

from lichen_lab.demo.common_checks import deployment_checks, percent, rounds_checks
from lichen_lab.demo.core.results import Check, spread
from lichen_lab.demo.core.scenario import Options
from lichen_lab.demo.plans.qqr import simulated_seeds
from lichen_lab.demo.plans.qqr.results import QqrResults
from lichen_lab.demo.plans.qqr.simulated_seeds import ALONE, SeedSummary
from lichen_lab.demo.rollout import checks as rollout

PROTOTYPE_LIMIT_BYTES: Final = 2048
DELTA_LIMIT: Final = 0.27


def checks(results: QqrResults, options: Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *rounds_checks(results, options),
        *deployment_checks(results),
        *rollout.checks(results.rollout),
        _above_alone(results),
        *_simulated(results),
        *_sizes(results),
    ]


def _above_alone(results: QqrResults) -> Check:
    what = "the fleet is above its devices alone"
    if results.accuracy is None or not results.alone:
        return Check(what, ok=False, detail="one of them was not evaluated")
    mean, sd = spread(results.alone)
    margin = results.accuracy - mean
    detail = (
        f"{percent(results.accuracy)} against {percent(mean)} ± {100 * sd:.1f} over devices: "
        f"{100 * margin:+.1f} points"
    )
    return Check(what, margin > 0, detail)


def _simulated(results: QqrResults) -> list[Check]:
    """Sharing must help; which way of imputing is better is a finding, with its spread."""
    return [
        _margin(row)
        for row in simulated_seeds.summarise(results.study)
        if row.variant != simulated_seeds.FEDERATED
    ]


def _margin(row: SeedSummary) -> Check:
    detail = f"{100 * row.margin:+.1f} ± {100 * row.margin_sd:.1f} points over {row.seeds} seeds"
    if not row.clear:
        detail += ", within the spread" if row.seeds > 1 else ": one seed shows no spread"
    if row.variant == ALONE:
        return Check("in simulation, sharing beats a device alone", row.margin > 0, detail)
    what = f"in simulation, prototypes beat {row.variant}"
    return Check(what, row.clear and row.margin > 0, detail, must=False)


def _sizes(results: QqrResults) -> list[Check]:
    sizes = results.sizes
    if sizes is None:
        return [Check("sizes on the wire", ok=False, detail="they were not measured")]
    limit = f"under {100 * DELTA_LIMIT:.0f} %"
    small = sizes.prototypes_4bit < PROTOTYPE_LIMIT_BYTES
    same = f"{sizes.delta_int8} of {sizes.delta_float32} bytes, {100 * sizes.ratio:.1f} %"
    bare = (
        f"{sizes.delta_int8} of {sizes.parameters} bytes, {100 * sizes.ratio_to_parameters:.1f} %: "
        "prototypes, names and headers count on one side only, and weigh much beside so small a network"
    )
    return [
        Check("a 4-bit prototype upload is under 2 KB on the wire", small, f"{sizes.prototypes_4bit} bytes"),
        Check(f"an int8 update is {limit} of the same update in float32", sizes.ratio < DELTA_LIMIT, same),
        Check(
            f"and {limit} of the bare parameters in float32",
            sizes.ratio_to_parameters < DELTA_LIMIT,
            bare,
            must=False,
        ),
    ]
