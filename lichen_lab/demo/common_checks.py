"""Checks that several demos share. Each tick has its number."""

from typing import Final

from lichen_lab.demo.core.results import Check, ObserverResults, Results, WindowResults
from lichen_lab.demo.core.scenario import Options

MEMORY_GOAL_MB: Final = 90.0
CHANCES: Final = 2.0
"""The deployed model must be right this many times as often as guessing."""


def rounds_checks(results: Results, options: Options) -> list[Check]:
    """All rounds were finished; with chaos, the killed processes came back."""
    detail = f"{len(results.rounds)} of {options.rounds}, with {_mean_accepted(results):.1f} devices a round"
    found = [Check("all rounds were finished", len(results.rounds) == options.rounds, detail)]
    return [*found, _returned(results)] if results.chaos else found


def _returned(results: Results) -> Check:
    """Both killed processes run again, the device was heard again, and rounds were finished after that."""
    what = "killed processes came back and the rounds went on"
    if not results.struck:
        return Check(what, ok=False, detail="nobody was killed")
    names = ("coordinator", results.struck)
    gone = [name for name in names if name not in results.returned]
    if gone:
        return Check(what, ok=False, detail=f"no new process of {' and '.join(gone)} was running at the end")
    delivered = [
        r.round for r in results.rounds if r.round > results.struck_round and results.struck in r.accepted
    ]
    went_on = bool(results.rounds) and results.rounds[-1].round >= results.struck_round
    heard = f"delivered again in round {delivered[0]}" if delivered else "connected again"
    if not (delivered or results.reconnected):
        heard = "was not heard of again"
    last = results.rounds[-1].round if results.rounds else 0
    detail = (
        f"SIGKILL for the coordinator and {results.struck} in round {results.struck_round}; "
        f"{results.struck} {heard}, the new coordinator went on to round {last}"
    )
    return Check(what, went_on and bool(delivered or results.reconnected), detail)


def deployment_checks(results: WindowResults) -> list[Check]:
    """The exported model predicts on the observing device, without torch and in little memory."""
    watched = results.observer
    predicts, free = "the ONNX model predicts on the observing device", "torch is absent there"
    if watched is None:
        return [
            Check(predicts, ok=False, detail="it never ran"),
            Check(free, ok=False, detail="it never ran"),
        ]
    live, bound = watched.accuracy(), CHANCES / len(results.labels)
    detail = (
        f"version {watched.version}, {len(watched.predictions)} windows, {percent(live)} right "
        f"(must be above {percent(bound)}, guessing is {percent(1 / len(results.labels))})"
    )
    return [
        Check(predicts, live is not None and live > bound, detail),
        Check(free, watched.torch_free, f"import torch fails in {watched.how}"),
        *memory_checks(watched),
    ]


def memory_checks(watched: ObserverResults) -> list[Check]:
    """The goal is for PSS; RSS has a mark of its own."""
    rows = (
        (f"its memory is under {MEMORY_GOAL_MB:.0f} MB as PSS", watched.memory_mb),
        ("the same as RSS", watched.rss_mb),
    )
    why = (
        "the goal: in the sum over its processes each shared page counts once",
        "counts shared pages whole in every process; not the goal",
    )
    return [
        Check(
            what,
            ok=value is not None and value < MEMORY_GOAL_MB,
            detail="it was not measured" if value is None else f"{value:.0f} MB ({words})",
            must=False,
        )
        for (what, value), words in zip(rows, why, strict=True)
    ]


def _mean_accepted(results: Results) -> float:
    return sum(len(r.accepted) for r in results.rounds) / max(1, len(results.rounds))


def percent(value: float | None) -> str:
    """A share in percent."""
    return "nothing" if value is None else f"{100 * value:.1f} %"
