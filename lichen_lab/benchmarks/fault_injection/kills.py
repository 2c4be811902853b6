"""SIGKILL at random times for broker, coordinator and agents, in rounds over Mosquitto.

Every process is a real one; the agents train with torch on a small synthetic task. A seed names the plan of
kills, the recordings and the training. After a run each version of the global model is computed again,
undisturbed, from the kept frames of exactly the accepted updates, and compared by its manifest's digest.
"""

from functools import partial
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection import kill_trial as trial
from lichen_lab.benchmarks.fault_injection.kill_trial import KillOutcome
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR

SEEDS: Final = 10
ROUNDS: Final = 20
QUICK_ROUNDS: Final = 8
_SOUND: Final = "seeds sound, %"
_VIOLATIONS: Final = "violations"
_ALL_OF_THEM: Final = 99.99


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Ten seeds of 20 rounds; quick: one of 8."""
    first, seeds, rounds = (0, 1, QUICK_ROUNDS) if quick else (0, SEEDS, ROUNDS)
    return measure(range(first, first + seeds), rounds, say)


def measure(
    seeds: range, rounds: int, say: Say, keep: Path | None = None, *, power: bool = False
) -> list[ResultRow]:
    """Run these seeds one after the other.

    Args:
        seeds: of the runs.
        rounds: of each.
        say: called with the progress.
        keep: parent of the folders of runs with violations.
        power: see :func:`lichen_lab.benchmarks.fault_injection.kill_trial.run`.
    """
    outcomes = []
    for number, seed in enumerate(seeds, start=1):
        where = f"seed {seed} ({number} of {len(seeds)})"
        outcome = trial.run(seed, rounds, partial(_tell, say, where, rounds), keep, power=power)
        say(f"{where}: {words(outcome)}")
        outcomes.append(outcome)
    return rows(outcomes, f"{rounds} rounds, {len(trial.DEVICES)} agents" + (", power cuts" if power else ""))


def _tell(say: Say, where: str, rounds: int, round_: int, kills: int) -> None:
    say(f"{where}: round {round_} of {rounds}, {kills} kills")


def words(outcome: KillOutcome) -> str:
    """One seed in one line, and its violations below."""
    kills = ", ".join(f"{name} {count}" for name, count in outcome.kills.items())
    end = "ended" if outcome.ended else "DID NOT END"
    verdict = outcome.verdict
    summary = (
        f"{end} after {outcome.seconds:.0f} s; kills: {kills}; {verdict.accepted} updates accepted, "
        f"{verdict.acknowledged} seen acknowledged; {verdict.compared} of {outcome.rounds + 1} versions "
        f"equal the undisturbed fold"
    )
    lines = [summary]
    lines += [f"VIOLATION: {violation}" for violation in outcome.verdict.violations]
    if outcome.folder is not None:
        lines.append(f"files are kept in {outcome.folder}")
    return "\n".join(lines)


def rows(outcomes: list[KillOutcome], setting: str) -> list[ResultRow]:
    """The figures over all seeds."""
    figures: dict[str, list[float]] = {
        _SOUND: [100.0 * one.sound for one in outcomes],
        _VIOLATIONS: [float(len(one.verdict.violations)) for one in outcomes],
        "versions equal to the undisturbed fold, %": [
            100.0 * one.verdict.compared / (one.rounds + 1) for one in outcomes
        ],
        "kills of the broker": [float(one.kills.get(BROKER, 0)) for one in outcomes],
        "kills of the coordinator": [float(one.kills.get(COORDINATOR, 0)) for one in outcomes],
        "kills of agents": [float(sum(one.kills.get(name, 0) for name in trial.DEVICES)) for one in outcomes],
        "processes started again": [float(one.restarts) for one in outcomes],
        "updates accepted": [float(one.verdict.accepted) for one in outcomes],
        "updates seen acknowledged": [float(one.verdict.acknowledged) for one in outcomes],
        "update messages sent again": [float(one.repeats) for one in outcomes],
        "receipts sent again": [float(one.receipts_again) for one in outcomes],
        "updates refused (of a closed round, and the like)": [
            float(sum(one.refusals.values())) for one in outcomes
        ],
        "seconds a seed": [one.seconds for one in outcomes],
    }
    taken = sum(one.seconds for one in outcomes)
    return figure_rows("synthetic, 2 modalities", "qqr", setting, figures, seconds=taken)


BENCH: Final = Bench(
    name="kills",
    run=run,
    promises=(Goal(_SOUND, _ALL_OF_THEM, above=True), Goal(_VIOLATIONS, 0.01)),
)
