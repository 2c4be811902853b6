"""What the steps of the rollout's machine share."""

from typing import Final

from coordinator.rollout.model import MAX_STORY, Command, Rollout, RolloutLogEntry, RolloutState

Outcome = tuple[RolloutState, tuple[Command, ...]]
_BEGAN_S: Final = 1_577_836_800.0


def next_serial(course: RolloutState, now: float) -> int:
    """Of a new decision; above those of a book that was lost, or put back from an old copy.

    By the book and the clock alone: what devices report is not believed, for one member could report the
    highest number there is, and no decision could follow it. A device goes by decisions that were taken, and
    of these there is less than one a minute; where a root is, it has none but those that were signed.
    """
    return max(course.serial + 1, int((now - _BEGAN_S) // 60))


def told(rollout: Rollout, now: float, what: str, words: str) -> Rollout:
    """With one more line in its story."""
    story = (*rollout.story, RolloutLogEntry(wall=now, what=what, words=words[:500]))
    return rollout.model_copy(update={"story": story[-MAX_STORY:]})


def with_rollout(course: RolloutState, rollout: Rollout) -> RolloutState:
    """The course with its rollout changed."""
    return course.model_copy(update={"rollout": rollout})
