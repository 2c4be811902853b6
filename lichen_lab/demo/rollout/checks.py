"""Checks of the rollouts. Each tick has its figures."""

from typing import Final

from lichen_lab.demo.core.results import Check
from lichen_lab.demo.rollout.results import COMMITTED, COMPLETE, FAILED, ROLLED_BACK, Move, RolloutResults

_DROPPED: Final = "a device that tries a bad model drops it by itself"
_BACK: Final = "and predicts with the model before again"
_STOPPED: Final = "the bad model's rollout failed, and no other device saw it"
_ALL: Final = "the newest model is committed on every device"
_FIRST: Final = "and was on the canary before it was on any other"


def checks(results: RolloutResults | None) -> list[Check]:
    """All checks; all fail if there were no rollouts."""
    if results is None:
        every = (_DROPPED, _BACK, _STOPPED, _ALL, _FIRST)
        return [Check(what, ok=False, detail="nothing was rolled out") for what in every]
    return [*_of_bad(results), *_of_good(results)]


def _of_bad(results: RolloutResults) -> list[Check]:
    release = results.bad
    if release is None:
        return [Check(what, ok=False, detail="it never began") for what in (_DROPPED, _BACK, _STOPPED)]
    version, canary = release.version, results.canary
    move = results.last(canary, version)
    dropped = move is not None and move.phase == ROLLED_BACK
    answered = results.windows(canary, version)
    back = results.went_back(canary, version)
    named = ", ".join(name for name in results.saw(version) if name != canary)
    detail = f"{release.phase or 'unknown'}: {release.why}" if release.why else release.phase or "unknown"
    return [
        Check(_DROPPED, dropped and answered > 0, describe_outcome(canary, version, move, answered)),
        Check(
            _BACK, back, f"version {results.before}" if back else f"nothing of version {results.before} came"
        ),
        Check(
            _STOPPED,
            release.phase == FAILED and not named,
            f"{detail}; {f'it was seen by {named}' if named else 'the others predicted on'}",
        ),
    ]


def _of_good(results: RolloutResults) -> list[Check]:
    release = results.good
    if release is None:
        return [Check(what, ok=False, detail="it never began") for what in (_ALL, _FIRST)]
    version = release.version
    kept = results.kept(version)
    lacking = [one.name for one in results.watchers if one.name not in kept]
    detail = f"version {version} on {len(kept)} of {len(results.watchers)}, the rollout is {release.phase}"
    if lacking:
        detail += f" ({release.why or 'it does not say why'}); not on {', '.join(lacking)}"
    return [Check(_ALL, not lacking and release.phase == COMPLETE, detail), _order(results, version)]


def _order(results: RolloutResults, version: int) -> Check:
    """By the devices' own predictions: none began before the canary had committed."""
    move = results.last(results.canary, version)
    begun = [at for name in results.others if (at := results.first_answer(name, version)) is not None]
    if move is None or move.phase != COMMITTED or not begun:
        return Check(_FIRST, ok=False, detail="one of the two did not happen")
    gap = min(begun) - move.at
    detail = (
        f"{results.canary} kept it at {move.at:.1f} s; the first other answered with it {gap:+.1f} s later"
    )
    return Check(_FIRST, gap > 0, detail)


def describe_outcome(device: str, version: int, move: Move | None, answered: int) -> str:
    """A device's outcome for a version, with the figures that decided."""
    if move is None:
        return f"{device} said nothing of version {version}"
    figures = ", ".join(figures_of(move.measures))
    why = f": {move.why}" if move.why else ""
    return f"{device}, version {version}, {answered} windows, {move.phase}{why}" + (
        f" ({figures})" if figures else ""
    )


def figures_of(measures: dict[str, float]) -> list[str]:
    """The main figures, in words."""
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


def bad_model_contained(results: RolloutResults | None) -> bool:
    """Whether a bad model reached one device, was dropped there, and went no further."""
    return results is not None and results.bad is not None and all(check.ok for check in _of_bad(results))
