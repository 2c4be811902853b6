"""What the demo makes of the coordinator's history, and when it calls itself a success."""

from pathlib import Path

import pytest

from lichen import spar
from lichen.demo import course, plan
from lichen.demo.story import DeviceStory, ObserverStory, Prediction, RoundStory, Sizes, Story
from lichen.demo.study import ALONE, FEDERATED, Line

OPTIONS = plan.Options(out=Path("unused"), rounds=2)


@pytest.fixture
def good() -> Story:
    story = Story(spar.LABELS, ("accelerometer", "gyroscope"), plan.UNSEEN)
    story.rounds = [RoundStory(1, 0.4, 10, 20, ("usnea",)), RoundStory(2, 0.8, 20, 40, ("usnea",))]
    story.devices = [DeviceStory("usnea", (5,), "", alone=0.5), DeviceStory("evernia", (2,), "", alone=0.6)]
    seen = [Prediction(1.0, "PEN", "PEN", 0.9, {})]
    story.observer = ObserverStory("physcia", 7, "python", torch_free=True, how="own", predictions=seen)
    story.study = [Line(1, FEDERATED, 0.8, 1.0), Line(1, ALONE, 0.5, 1.0)]
    story.sizes = Sizes(1094, 26, 100)
    return story


def worked(story: Story) -> bool:
    story.checks = course.checks(story, OPTIONS)
    return story.worked


def test_all_well(good: Story) -> None:
    assert worked(good)


def _no_observer(story: Story) -> None:
    story.observer = None


def _silent(story: Story) -> None:
    assert story.observer is not None
    story.observer.predictions = []


def _torch(story: Story) -> None:
    assert story.observer is not None
    story.observer.torch_free = False


def _one_round(story: Story) -> None:
    story.rounds.pop()


def _below(story: Story) -> None:
    story.devices[0].alone = 0.99
    story.devices[1].alone = 0.99


def _no_baseline(story: Story) -> None:
    for device in story.devices:
        device.alone = None


def _no_sizes(story: Story) -> None:
    story.sizes = None


def _chaos_that_never_struck(story: Story) -> None:
    story.chaos = True


def _large(story: Story) -> None:
    story.sizes = Sizes(2048, 26, 100)


@pytest.mark.parametrize(
    "spoil",
    [
        _no_observer,
        _silent,
        _torch,
        _one_round,
        _below,
        _no_baseline,
        _no_sizes,
        _large,
        _chaos_that_never_struck,
    ],
)
def test_each_thing_that_fails_fails_the_demo(good: Story, spoil) -> None:
    spoil(good)
    assert not worked(good)


def test_history_becomes_cumulative_bytes_accuracy_and_the_last_words_of_each_device(good: Story) -> None:
    good.rounds, good.confusion = [], []
    update = {
        "device": "usnea",
        "lost": False,
        "samples": 30,
        "counts": {"gyroscope": [1, 2]},
        "quality": {"gyroscope": 0.5},
        "missing": {"gyroscope": 0.25},
    }
    lost = {**update, "device": "evernia", "lost": True}
    history = {
        "rounds": [
            {
                "round": 1,
                "bytes_up": 100,
                "bytes_down": 10,
                "metrics": {"accuracy": 0.4},
                "updates": [update],
            },
            {
                "round": 2,
                "bytes_up": 50,
                "bytes_down": 5,
                "metrics": {"accuracy": 0.6},
                "updates": [{**update, "samples": 40}, lost],
            },
            {"round": 3, "bytes_up": None, "bytes_down": None, "metrics": {}, "updates": []},
        ],
        "confusion": {"matrix": [[1, 0], [0, 1]]},
        "devices": [{"device": "usnea", "modalities": {"gyroscope": {"reasons": ["stuck"]}}}],
    }
    course.tell_history(good, history)
    assert [(r.round, r.bytes_up, r.bytes_down) for r in good.rounds] == [(1, 100, 10), (2, 150, 15)]
    assert good.rounds[1].accepted == ("usnea",)
    assert good.accuracy == 0.6
    assert good.devices[0].windows == 40
    assert good.devices[0].reasons == {"gyroscope": ["stuck"]}
    assert good.confusion == [[1, 0], [0, 1]]
