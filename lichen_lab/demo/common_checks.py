"""Checks of several demos: no tick without its number."""

from typing import Final

from lichen_lab.demo.core.results import Check, ObserverStory, Results, WindowResults
from lichen_lab.demo.core.scenario import Options

MEMORY_GOAL_MB: Final = 90.0
CHANCES: Final = 2.0
"""The deployed model must be right so many times as often as guessing is."""


def finished(story: Results, options: Options) -> list[Check]:
    """All rounds; with chaos, that who was killed came back."""
    detail = f"{len(story.rounds)} of {options.rounds}, with {_mean_accepted(story):.1f} devices a round"
    found = [Check("all rounds were finished", len(story.rounds) == options.rounds, detail)]
    return [*found, _returned(story)] if story.chaos else found


def _returned(story: Results) -> Check:
    """Both killed processes run anew, the device was heard again, and rounds were finished after that."""
    what = "killed processes came back and the rounds went on"
    if not story.struck:
        return Check(what, ok=False, detail="nobody was killed")
    names = ("coordinator", story.struck)
    gone = [name for name in names if name not in story.returned]
    if gone:
        return Check(what, ok=False, detail=f"no new process of {' and '.join(gone)} was running at the end")
    delivered = [r.round for r in story.rounds if r.round > story.struck_round and story.struck in r.accepted]
    went_on = bool(story.rounds) and story.rounds[-1].round >= story.struck_round
    heard = f"delivered again in round {delivered[0]}" if delivered else "connected again"
    if not (delivered or story.reconnected):
        heard = "was not heard of again"
    last = story.rounds[-1].round if story.rounds else 0
    detail = (
        f"SIGKILL for the coordinator and {story.struck} in round {story.struck_round}; "
        f"{story.struck} {heard}, the new coordinator went on to round {last}"
    )
    return Check(what, went_on and bool(delivered or story.reconnected), detail)


def deployed(story: WindowResults) -> list[Check]:
    """That the exported model predicts on the observing device, without torch and in little memory."""
    watched = story.observer
    predicts, free = "the ONNX model predicts on the observing device", "torch is absent there"
    if watched is None:
        return [
            Check(predicts, ok=False, detail="it never ran"),
            Check(free, ok=False, detail="it never ran"),
        ]
    live, bound = watched.accuracy(), CHANCES / len(story.labels)
    detail = (
        f"version {watched.version}, {len(watched.predictions)} windows, {percent(live)} right "
        f"(must be above {percent(bound)}, guessing is {percent(1 / len(story.labels))})"
    )
    return [
        Check(predicts, live is not None and live > bound, detail),
        Check(free, watched.torch_free, f"import torch fails in {watched.how}"),
        *memory(watched),
    ]


def memory(watched: ObserverStory) -> list[Check]:
    """The goal is meant as PSS; RSS stands beside it with its own mark."""
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


def _mean_accepted(story: Results) -> float:
    return sum(len(r.accepted) for r in story.rounds) / max(1, len(story.rounds))


def percent(value: float | None) -> str:
    """A share for people."""
    return "nothing" if value is None else f"{100 * value:.1f} %"
