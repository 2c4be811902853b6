"""What must hold of the rollouts; no tick without its figures."""

from typing import Final

from lichen_lab.demo.core.results import Check
from lichen_lab.demo.rollout.results import COMMITTED, COMPLETE, FAILED, ROLLED_BACK, Move, RolloutStory

_DROPPED: Final = "a device that tries a bad model drops it by itself"
_BACK: Final = "and predicts with the model before again"
_STOPPED: Final = "the bad model's rollout failed, and no other device saw it"
_ALL: Final = "the newest model is committed on every device"
_FIRST: Final = "and was on the canary before it was on any other"


def checks(story: RolloutStory | None) -> list[Check]:
    """All of them; without the act, all of them failed."""
    if story is None:
        every = (_DROPPED, _BACK, _STOPPED, _ALL, _FIRST)
        return [Check(what, ok=False, detail="nothing was rolled out") for what in every]
    return [*_of_bad(story), *_of_good(story)]


def _of_bad(story: RolloutStory) -> list[Check]:
    release = story.bad
    if release is None:
        return [Check(what, ok=False, detail="it never began") for what in (_DROPPED, _BACK, _STOPPED)]
    version, canary = release.version, story.canary
    move = story.last(canary, version)
    dropped = move is not None and move.phase == ROLLED_BACK
    answered = story.windows(canary, version)
    back = story.went_back(canary, version)
    named = ", ".join(name for name in story.saw(version) if name != canary)
    detail = f"{release.phase or 'unknown'}: {release.why}" if release.why else release.phase or "unknown"
    return [
        Check(_DROPPED, dropped and answered > 0, told(canary, version, move, answered)),
        Check(_BACK, back, f"version {story.before}" if back else f"nothing of version {story.before} came"),
        Check(
            _STOPPED,
            release.phase == FAILED and not named,
            f"{detail}; {f'it was seen by {named}' if named else 'the others predicted on'}",
        ),
    ]


def _of_good(story: RolloutStory) -> list[Check]:
    release = story.good
    if release is None:
        return [Check(what, ok=False, detail="it never began") for what in (_ALL, _FIRST)]
    version = release.version
    kept = story.kept(version)
    lacking = [one.name for one in story.watchers if one.name not in kept]
    detail = f"version {version} on {len(kept)} of {len(story.watchers)}, the rollout is {release.phase}"
    if lacking:
        detail += f" ({release.why or 'it does not say why'}); not on {', '.join(lacking)}"
    return [Check(_ALL, not lacking and release.phase == COMPLETE, detail), _order(story, version)]


def _order(story: RolloutStory, version: int) -> Check:
    """By the devices' own predictions: no other began before the canary had committed."""
    move = story.last(story.canary, version)
    begun = [at for name in story.others if (at := story.first_answer(name, version)) is not None]
    if move is None or move.phase != COMMITTED or not begun:
        return Check(_FIRST, ok=False, detail="one of the two did not happen")
    gap = min(begun) - move.at
    detail = f"{story.canary} kept it at {move.at:.1f} s; the first other answered with it {gap:+.1f} s later"
    return Check(_FIRST, gap > 0, detail)


def told(device: str, version: int, move: Move | None, answered: int) -> str:
    """What a device made of a version, with the figures that decided."""
    if move is None:
        return f"{device} said nothing of version {version}"
    figures = ", ".join(figures_of(move.measures))
    why = f": {move.why}" if move.why else ""
    return f"{device}, version {version}, {answered} windows, {move.phase}{why}" + (
        f" ({figures})" if figures else ""
    )


def figures_of(measures: dict[str, float]) -> list[str]:
    """Those that people ask for, in words."""
    found = []
    if "agreement" in measures:
        found.append(f"says the same as the model before in {100 * measures['agreement']:.0f} %")
    if "accuracy" in measures:
        before = measures.get("accuracy_before")
        against = "" if before is None else f" against {100 * before:.0f} %"
        found.append(f"right in {100 * measures['accuracy']:.0f} %{against}")
    if "errors" in measures:
        found.append(f"{measures['errors']:.0f} errors")
    return found


def contained(story: RolloutStory | None) -> bool:
    """Whether a bad model reached one device, was dropped there, and went no further."""
    return story is not None and story.bad is not None and all(check.ok for check in _of_bad(story))
