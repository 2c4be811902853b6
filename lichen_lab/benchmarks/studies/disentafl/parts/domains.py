"""Domain experts where there is a choice: domains judged on a tenth held back, as in the paper, or not.

On fleets whose devices differ in domain. MERGE-AC's shape has nothing but domains to tell devices apart.
"""

from collections.abc import Mapping
from typing import Any, Final

from lichen_lab.benchmarks.result import ResultRow
from lichen_lab.benchmarks.studies.disentafl import variants as v
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflOutcome
from lichen_lab.benchmarks.studies.disentafl.variants import Line, Part, Results

_MANY: Final = 3
"""D, as in the paper."""
HELD_BACK: Final = 0.1
"""Of a device's windows; the paper's split."""
JUDGED_APART: Final = f"{v.AVG}, {_MANY} domains, judged on a tenth held back"
JUDGED_ALONG: Final = f"{v.AVG}, {_MANY} domains, judged on what trains"
ONE: Final = f"{v.AVG}, without MoDE"
LINES: Final[Mapping[str, Mapping[str, Any]]] = {
    JUDGED_APART: {"domains": _MANY, "validation": HELD_BACK},
    JUDGED_ALONG: {"domains": _MANY},
    ONE: {"families": ["mote", "mome"]},
}
"""Line -> its options."""
FLEETS: Final = (v.MERGE_AC, v.MERGE_FA, v.UCI_HAR, v.VEHICLE)
AGREED: Final = "devices of a kind in its most frequent domain, %"


def _line(fleet: str, named: str, options: Mapping[str, Any]) -> Line:
    usual = {"domains": _MANY, **v.options_of(fleet, v.AVG)}
    changed = {name: value for name, value in options.items() if value != usual.get(name)}
    return v.line(fleet, v.AVG, named=named, **changed)


def agreement(outcome: DisentAflOutcome) -> float | None:
    """Share of rounds in which devices of a kind train the domain that their kind trains most, in %.

    None without domains. With three domains chosen at random it is a third, and a little more by chance.
    """
    by_kind: dict[str, dict[str, int]] = {}
    for device, rounds in outcome.domains.items():
        kind = by_kind.setdefault(outcome.kinds[device], {})
        for domain, count in rounds.items():
            kind[domain] = kind.get(domain, 0) + count
    total = sum(sum(rounds.values()) for rounds in by_kind.values())
    return 100 * sum(max(rounds.values()) for rounds in by_kind.values() if rounds) / total if total else None


def _rows(results: Results) -> list[ResultRow]:
    rows = results.scores()
    for ours in (JUDGED_APART, JUDGED_ALONG):
        rows += results.margins(ours, (ONE, JUDGED_ALONG) if ours == JUDGED_APART else (ONE,))
        rows += results.margins(ours, (ONE,), v.AGGREGATE.of, "as the fleet gives it: ")
    for variant, runs in results.pairs():
        values = [share for one in runs.values() if (share := agreement(one)) is not None]
        rows += results.row(variant, AGREED, values)
    return rows


PART: Final = Part(
    name="domains",
    place=7,
    title="domain experts, judged on windows held back or on those that train",
    variants=tuple(_line(fleet, named, options) for fleet in FLEETS for named, options in LINES.items()),
    rows=_rows,
    by_default=False,
)
