"""The canary test: a lower bound of epsilon by attack, beside the claim; and without the clip."""

from functools import partial
from typing import Any, Final

from lichen_lab.benchmarks.result import Goal, ResultRow
from lichen_lab.benchmarks.studies.privacy.settings import (
    CANARIES,
    CANARY,
    PrivacyOutcome,
    PrivacyRun,
    PrivacySetting,
    Shards,
)
from lichen_lab.benchmarks.studies.privacy.variants import Line, Results
from lichen_lab.benchmarks.study.part import Figure, Part

RUNS: Final = 20
_COUNT: Final = 2048
CLIPPED: Final = "clip and noise"
UNCLIPPED: Final = "clip removed"
UNCHECKED: Final = "clip removed on devices alone"
HALVED: Final = "noise halved"
EACH: Final = "each device in both rounds"
DRAWN: Final = "one device in five drawn, 20 rounds"
_DELTA: Final = 1e-5
_SETTINGS: Final = {
    EACH: PrivacySetting(rounds=2, rate=1.0, noise_multiplier=8**0.5, delta=_DELTA),
    DRAWN: PrivacySetting(rounds=20, rate=0.2, noise_multiplier=1.5, delta=_DELTA),
}
_MECHANISMS: Final[dict[str, dict[str, Any]]] = {
    CLIPPED: {},
    UNCLIPPED: {"device_clips": False, "coordinator_checks": False},
    UNCHECKED: {"device_clips": False},
    HALVED: {"noise_share": 0.5},
}
"""Title -> what of the mechanism is changed (:class:`...audit.canaries.CanaryFleet`)."""
BOUND: Final = "lower bound of epsilon"
NORMAL: Final = "lower bound of epsilon, noise known to be normal"
BOUNDS: Final = {"bound": BOUND, "bound_if_normal": NORMAL}


def _bound(key: str, outcome: PrivacyOutcome) -> float | None:
    return outcome.attack.get(key)


def above(metric: str) -> str:
    """The metric of how many runs have a bound above the claim."""
    return f"runs with the {metric} above the claim"


def rows(results: Results) -> list[ResultRow]:
    """Figures, and of each bound how many runs are above the claim and the highest one."""
    made = results.scores()
    for line, runs in results.pairs():
        for key, metric in BOUNDS.items():
            pairs = [
                (one.attack[key], one.epsilon) for one in runs.values() if key in one.attack and one.epsilon
            ]
            if pairs:
                over = sum(bound > claim for bound, claim in pairs)
                made += results.row(line, above(metric), [over])
                made += results.row(line, f"highest {metric}", [max(bound for bound, _ in pairs)])
    return made


def _line(title: str, under: str) -> Line:
    setting = _SETTINGS[under]
    changed = PrivacySetting(
        setting.rounds, setting.rate, setting.noise_multiplier, delta=_DELTA, config=_MECHANISMS[title]
    )
    return Line(title, PrivacyRun(CANARIES, CANARY, changed, Shards(_COUNT)), under)


CANARY_TEST: Final = Part[PrivacyRun, PrivacyOutcome](
    name="canary",
    place=2,
    title="canary test: lower bounds of epsilon by attack, 95 % confidence, beside the account's epsilon",
    figures=(
        *(Figure[PrivacyOutcome](metric, partial(_bound, key)) for key, metric in BOUNDS.items()),
        Figure[PrivacyOutcome]("claimed epsilon", lambda outcome: outcome.epsilon),
        Figure[PrivacyOutcome]("refused updates", lambda outcome: float(outcome.refused)),
        Figure[PrivacyOutcome]("canaries", lambda outcome: float(outcome.devices)),
        Figure[PrivacyOutcome]("CPU seconds of a run", lambda outcome: outcome.seconds),
    ),
    rows=rows,
    variants=(
        *(_line(title, EACH) for title in _MECHANISMS),
        *(_line(title, DRAWN) for title in (CLIPPED, UNCLIPPED)),
    ),
    goals=(
        *(Goal(above(BOUND), 0.5, method=CLIPPED, setting=under) for under in _SETTINGS),
        Goal(above(NORMAL), 0.5, method=CLIPPED, setting=EACH),
        *(Goal(above(BOUND), RUNS - 0.5, above=True, method=UNCLIPPED, setting=under) for under in _SETTINGS),
        Goal(above(NORMAL), RUNS - 0.5, above=True, method=HALVED, setting=EACH),
    ),
    seeds=tuple(range(RUNS)),
)
