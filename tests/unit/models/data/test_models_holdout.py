"""Which windows are held back: always the same, none that shares a moment with one to learn from."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.data.holdout import WindowUse, rule_of
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.holdout import Holdout
from protocol.tasks.task import KnowledgeGraphTask, Task, Window
from tests.support.agent.data import toy_task


def task_of(share=0.25, stretch_s=30.0, **window: float) -> Task:
    return toy_task(holdout=Holdout(share=share, stretch_s=stretch_s), window=Window(**window))


@given(
    share=st.floats(0.05, 0.5),
    stretch_s=st.floats(12.0, 600.0),
    context_s=st.sampled_from([None, 2.56, 6.0]),
    begin=st.floats(-1e4, 2e9),
    device=st.sampled_from(["a", "b"]),
)
def test_no_window_to_learn_from_overlaps_one_that_is_held_back(share, stretch_s, context_s, begin, device):
    context = {} if context_s is None else {"context_s": context_s}
    rule = rule_of(task_of(share, stretch_s, length_s=2.56, stride_s=0.64, **context), device)
    starts = begin + 0.64 * np.arange(1000)
    held = np.array([s for s in starts if rule.side(s) is WindowUse.HOLDOUT])
    learned = np.array([s for s in starts if rule.side(s) is WindowUse.LEARNING])
    if not len(held) or not len(learned):
        return
    before = max(0.0, (context_s or 0.0) - 2.56)
    gap = np.abs(held[:, None] - learned[None]).min()
    assert gap >= 2.56 + before - 1e-6, "neither their values nor their contexts share a moment"


def test_the_share_is_about_what_is_asked_for_and_little_is_lost_at_the_ends():
    rule = rule_of(task_of(0.2, 60.0, length_s=2.56, stride_s=1.28), "d1")
    sides = [rule.side(1.28 * k) for k in range(200_000)]
    assert 0.18 < sides.count(WindowUse.HOLDOUT) / len(sides) < 0.22
    assert sides.count(WindowUse.NEITHER) / len(sides) < 0.02
    changes = sum(a != b for a, b in itertools.pairwise(sides))
    assert changes < 2 * 200_000 * 1.28 / 60, "whole stretches, not single windows"


def test_a_restart_changes_nothing_and_devices_differ():
    task = task_of(0.3, 30.0)
    one, again, other = (rule_of(task, device) for device in ("a", "a", "b"))
    starts = [10.0 * k for k in range(500)]
    assert [one.side(s) for s in starts] == [again.side(s) for s in starts]
    assert [one.side(s) for s in starts] != [other.side(s) for s in starts]
    known = [one.side(s) for s in (0.0, 31.0, 62.0, 93.0, 124.0, 155.0, 186.0, 217.0, 248.0, 279.0)]
    assert [int(side) for side in known] == GOLDEN, "a release must not move windows to the other side"


GOLDEN = [1, 0, 0, 0, 0, 1, 1, 0, 0, 1]


def test_nothing_is_held_back_without_a_share_a_device_or_a_start():
    assert rule_of(task_of(0.0), "a").side(5.0) is WindowUse.LEARNING
    assert rule_of(task_of(0.5), None).side(5.0) is WindowUse.LEARNING
    rule = rule_of(task_of(0.5), "a")
    assert rule.side(None) is WindowUse.LEARNING, "of a release that stored no start"


def test_a_fleet_that_does_not_ask_for_it_announces_nothing_new():
    assert "holdout" not in TaskAnnouncement.of(toy_task()).task
    announced = TaskAnnouncement.of(task_of(0.1))
    assert announced.needs == TaskAnnouncement.of(toy_task()).needs, "an older device may ignore it"
    assert announced.read().holdout.share == pytest.approx(0.1)


def test_stretches_shorter_than_two_windows_and_knowledge_graphs_are_refused():
    with pytest.raises(ValidationError, match=r"holdout\.stretch_s: under twice"):
        task_of(0.1, 5.0)
    with pytest.raises(ValidationError, match=r"its context"):
        task_of(0.1, 5.5, length_s=2.56, context_s=3.0)
    with pytest.raises(ValidationError, match="do not evaluate models of knowledge graphs"):
        Task(name="g", graph=KnowledgeGraphTask(), holdout=Holdout(share=0.1))
