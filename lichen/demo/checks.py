"""What must hold for the demo to have worked, and what was found besides: no tick without its number."""

from typing import Final

from lichen.demo import plan, study
from lichen.demo.rollout import checks as rollout
from lichen.demo.story import Check, ObserverStory, Story, Struck
from lichen.demo.study import ALONE, Summary, spread

PROTOTYPE_LIMIT_BYTES: Final = 2048
DELTA_LIMIT: Final = 0.27
MEMORY_GOAL_MB: Final = 90.0
CHANCES: Final = 2.0
"""The deployed model must be right so many times as often as guessing is."""


def checks(story: Story, options: plan.Options) -> list[Check]:
    """All checks, the most important first."""
    return [
        *finished(story, options),
        *deployed(story),
        *rollout.checks(story.rollout),
        _above_alone(story),
        *_simulated(story),
        *_sizes(story),
    ]


def finished(story: Struck, options: plan.Options) -> list[Check]:
    """All rounds; with chaos, that who was killed came back."""
    detail = f"{len(story.rounds)} of {options.rounds}, with {_mean_accepted(story):.1f} devices a round"
    found = [Check("all rounds were finished", len(story.rounds) == options.rounds, detail)]
    return [*found, _returned(story)] if story.chaos else found


def _returned(story: Struck) -> Check:
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


def deployed(story: Story) -> list[Check]:
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


def _above_alone(story: Story) -> Check:
    what = "the fleet is above its devices alone"
    if story.accuracy is None or not story.alone:
        return Check(what, ok=False, detail="one of them was not judged")
    mean, sd = spread(story.alone)
    margin = story.accuracy - mean
    detail = (
        f"{percent(story.accuracy)} against {percent(mean)} ± {100 * sd:.1f} over devices: "
        f"{100 * margin:+.1f} points"
    )
    return Check(what, margin > 0, detail)


def _simulated(story: Story) -> list[Check]:
    """That sharing helps is a promise; which way of imputing is better is a finding, with its spread."""
    return [_margin(row) for row in study.summarise(story.study) if row.variant != study.FEDERATED]


def _margin(row: Summary) -> Check:
    detail = f"{100 * row.margin:+.1f} ± {100 * row.margin_sd:.1f} points over {row.seeds} seeds"
    if not row.clear:
        detail += ", within the spread" if row.seeds > 1 else ": one seed shows no spread"
    if row.variant == ALONE:
        return Check("in simulation, sharing beats a device alone", row.margin > 0, detail)
    what = f"in simulation, prototypes beat {row.variant}"
    return Check(what, row.clear and row.margin > 0, detail, must=False)


def _sizes(story: Story) -> list[Check]:
    sizes = story.sizes
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


def _mean_accepted(story: Struck) -> float:
    return sum(len(r.accepted) for r in story.rounds) / max(1, len(story.rounds))


def percent(value: float | None) -> str:
    """A share for people."""
    return "nothing" if value is None else f"{100 * value:.1f} %"
