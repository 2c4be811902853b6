"""What a mutation run has found, as a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.mutants.mutant import Mutant
from tests.mutants.trial import Verdict

ALIVE = ("alive", "unreached")
AT_MOST = 0.05


@dataclass(frozen=True)
class Result:
    """One mutant that was tried."""

    group: str
    mutant: Mutant
    verdict: Verdict

    @property
    def lives(self) -> bool:
        """Whether no test noticed it."""
        return self.verdict.outcome in ALIVE


def failings(results: Sequence[Result], reasons: Mapping[str, str]) -> list[str]:
    """What keeps the run from passing: survivors without a reason, and too many of them in all."""
    alive = [result for result in results if result.lives]
    unexplained = sum(result.mutant.key not in reasons for result in alive)
    found = []
    if unexplained:
        found.append(f"{unexplained} survivors have no reason in tests/mutants/accepted.toml")
    if len(alive) > AT_MOST * len(results):
        found.append(f"{len(alive)} of {len(results)} live; at most {AT_MOST:.0%} may")
    return found


def page(results: Sequence[Result], reasons: Mapping[str, str], command: str) -> str:
    """The report: a row for each group, then each survivor with its change and its reason, if it has one."""
    lines = [
        "# Mutants",
        "",
        f"`{command}`",
        "",
        "| group | tried | killed | timed out | alive |",
        "|---|---|---|---|---|",
    ]
    for name in [*sorted({result.group for result in results}), "all"]:
        of_group = [result for result in results if name in (result.group, "all")]
        outcomes = Counter(result.verdict.outcome for result in of_group)
        alive = sum(result.lives for result in of_group)
        lines.append(
            f"| {name} | {len(of_group)} | {outcomes['killed']} | {outcomes['timed out']} | {alive} |"
        )
    alive_ones = [result for result in results if result.lives]
    for known in (False, True):
        chosen = [result for result in alive_ones if (result.mutant.key in reasons) is known]
        lines += ["", "## Survivors with a reason" if known else "## Survivors without a reason"]
        lines += [text for result in chosen for text in _survivor(result, reasons)] or ["", "None."]
    return "\n".join([*lines, ""])


def _survivor(result: Result, reasons: Mapping[str, str]) -> list[str]:
    mutant = result.mutant
    what = (
        "no test runs it" if result.verdict.outcome == "unreached" else f"{result.verdict.tests} tests pass"
    )
    reason = reasons.get(mutant.key)
    return [
        "",
        f"{mutant.module}:{mutant.line} `{mutant.function}` ({mutant.operator}; {what})",
        "",
        f"    - {mutant.before}",
        f"    + {mutant.after}" + (f"   #{mutant.number}" if mutant.number else ""),
        *(["", reason] if reason else []),
    ]
