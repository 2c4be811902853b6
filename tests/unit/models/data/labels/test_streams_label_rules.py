"""Which label a window has, by each rule; on devices, in the simulator, and in the window store's name."""

import numpy as np
import pytest
from pydantic import ValidationError

from edge_agent.windows.store_file import grid_digest
from edge_agent.windows.window_sets import windows_of_recording
from models.data.labels.rules import Labels
from models.data.streams.batches import LabelBatch
from models.data.streams.recording import Recording
from protocol.tasks.task import Window
from tests.support.agent.data import toy_recording, toy_task

START, END = np.array([0.0, 10.0, 20.0, 30.0]), np.array([10.0, 20.0, 30.0, 40.0])


def labels(classes: int = 3, **window) -> Labels:
    """Class 0 from 0 s, 1 from 6 s, none from 12 s, 2 from 13 s, 0 from 25 s."""
    found = Labels(classes, Window(**window))
    found.add(LabelBatch(np.array([0.0, 6, 12, 13, 25]), np.array([0.0, 1, np.nan, 2, 0])))
    return found


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        ({}, [np.nan, np.nan, np.nan, 0]),
        ({"label_rule": "majority"}, [0, 2, np.nan, 0]),  # from 20 to 30 s two hold equally long
        ({"label_rule": "majority", "min_share": 0.65}, [np.nan, 2, np.nan, 0]),
        ({"label_rule": "last"}, [1, 2, 0, 0]),
        ({"label_rule": "center"}, [0, 2, 0, 0]),
    ],
)
def test_a_class_by_each_rule(window, wanted):
    np.testing.assert_array_equal(labels(**window).of(START, END), wanted)


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        ({}, [0.4, np.nan, 1.0, 0]),
        ({"label_rule": "majority"}, [0.4, 16 / 9, 1.0, 0]),  # the mean over what is labelled
        ({"label_rule": "majority", "min_share": 0.95}, [0.4, np.nan, 1.0, 0]),
        ({"label_rule": "last"}, [1, 2, 0, 0]),
    ],
)
def test_a_number_by_each_rule(window, wanted):
    np.testing.assert_allclose(labels(0, **window).of(START, END), wanted)


def test_a_window_before_the_first_label_has_none_by_any_rule():
    for rule in ("whole", "majority", "last", "center"):
        assert np.isnan(labels(label_rule=rule).of(START - 20, END - 20)[0])


def test_windows_longer_than_the_activities_have_labels_by_majority():
    task, recording = toy_task(), toy_recording(60)
    t = np.arange(0, 60, 2.0)
    changing = Recording(recording.streams, t, (np.arange(len(t)) % 3).astype(np.int64))
    assert set(windows_of_recording(task, changing).y_B) == {-1}
    chosen = task.window.model_copy(update={"label_rule": "majority"})
    assert set(windows_of_recording(task.model_copy(update={"window": chosen}), changing).y_B) >= {0, 1, 2}


def test_a_rule_of_its_own_has_a_store_of_its_own():
    task = toy_task()
    other = task.model_copy(update={"window": task.window.model_copy(update={"label_rule": "last"})})
    assert grid_digest(task) != grid_digest(other)


def test_a_share_without_majority_is_refused():
    with pytest.raises(ValidationError, match='label_rule = "majority"'):
        Window(min_share=0.8)
