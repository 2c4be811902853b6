"""Which of the announced pointers a device follows."""

import pytest

from edge_agent.deployment.announced_pointers import MAX_REFUSED, AnnouncedPointers
from protocol.messages import BlobRef, ModelPointer


def pointer(version: int, serial: int = 0, digest: str = "a", **metrics: float) -> ModelPointer:
    bundle = BlobRef(digest=digest * 64, size=1)
    return ModelPointer(task="toy", version=version, bundle=bundle, serial=serial, metrics=metrics)


@pytest.fixture
def said() -> AnnouncedPointers:
    return AnnouncedPointers()


def test_the_newest_pointer_of_each_topic_counts(said: AnnouncedPointers) -> None:
    assert said.best is None
    said.store(pointer(1), own=False)
    said.store(pointer(2), own=False)
    assert said.best == pointer(2)
    said.store(pointer(1, 5), own=True)
    assert said.best == pointer(1, 5), "a decision counts more than a version"
    said.clear(own=True)
    assert said.best == pointer(2)
    said.clear(own=True)
    said.clear(own=False)
    assert said.best is None


def test_a_pointer_that_is_passed_over_leaves_the_other_topic_until_all_is_looked_at_again(
    said: AnnouncedPointers,
) -> None:
    forged = pointer(9, 9)
    said.store(pointer(1, 5), own=False)
    said.store(forged, own=True)
    assert said.best is forged
    said.skip(forged)
    assert said.best == pointer(1, 5)
    said.store(pointer(9, 9), own=True)
    assert said.best == forged, (
        "the same words again are looked at again: what vouches for them may have come"
    )
    said.skip(said.best)
    said.reset_skipped()
    assert said.best == forged


def test_what_was_refused_is_known_whatever_metrics_stand_beside_it(said: AnnouncedPointers) -> None:
    said.refuse(pointer(2, 7, f1=0.5))
    assert said.is_refused(pointer(2, 7, f1=0.9))
    assert not said.is_refused(pointer(2, 8, f1=0.5))
    assert not said.is_refused(pointer(2, 7, digest="b", f1=0.5))


def test_only_the_last_refusals_are_remembered(said: AnnouncedPointers) -> None:
    for version in range(MAX_REFUSED + 1):
        said.refuse(pointer(version))
    assert not said.is_refused(pointer(0))
    assert all(said.is_refused(pointer(version)) for version in range(1, MAX_REFUSED + 1))
