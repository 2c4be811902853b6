"""Kinds of modalities in a task: the shape of their windows, their encoders, and what is refused in words."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.kinds import KINDS, EncoderKind
from protocol.tasks.task import Task


def task(encoder: dict[str, Any] | None = None, **modality: Any) -> Task:
    one = {"name": "a", "channels": 1, "rate_hz": 5, **modality}
    network = {} if encoder is None else {"encoders": {"a": encoder}}
    return Task.model_validate({"name": "t", "labels": ["x", "y"], "modalities": [one], "network": network})


def test_a_window_of_frames_holds_one_frame_and_one_of_sound_its_samples() -> None:
    image = task(kind="image", height=28, width=20, channels=3)
    assert (image.samples("a"), image.context_samples("a")) == (560, 560)
    assert (
        image.model_copy(
            update={"window": image.window.model_copy(update={"context_s": 60.0})}
        ).context_samples("a")
        == 560
    ), "a frame has no past"
    assert task(kind="vector", channels=384).samples("a") == 1
    assert task(kind="sound", rate_hz=16_000).samples("a") == 40_960


@pytest.mark.parametrize(
    ("kind", "default"),
    [("stream", "cnn1d"), ("sound", "mel"), ("image", "cnn2d"), ("vector", "mlp"), ("text", "text")],
)
@pytest.mark.parametrize("table", [None, {}, {"width": 8}])
def test_an_encoder_without_a_kind_is_that_of_its_modality_here_and_on_devices(kind, default, table) -> None:
    size = {"height": 8, "width": 8} if kind == "image" else {}
    made = task(table, kind=kind, **size)
    assert made.encoder("a").kind == default
    assert TaskAnnouncement.of(made).read() == made


def test_the_default_of_a_stream_equals_the_kind_written_out() -> None:
    assert task({"width": 8}) == task({"width": 8, "kind": "cnn1d"})


def test_every_encoder_takes_some_kind() -> None:
    assert {name for rules in KINDS.values() for name in rules.encoders} == set(get_args(EncoderKind))


@pytest.mark.parametrize(
    ("modality", "words"),
    [
        ({"kind": "image"}, "modality 'a' of kind 'image': height and width are needed, in pixels"),
        ({"kind": "image", "height": 8}, "height and width are needed"),
        ({"height": 8, "width": 8}, "height and width are for images"),
        ({"channels": 65}, "modality 'a' of kind 'stream': channels: at most 64"),
        ({"kind": "image", "height": 8, "width": 8, "rate_hz": 300}, "rate_hz: at most 240"),
        ({"kind": "image", "height": 2048, "width": 2048, "channels": 3}, "a window has"),
        ({"kind": "smell"}, "'stream', 'sound', 'image', 'vector' or 'text'"),
        ({"kind": ["image"]}, "'stream', 'sound', 'image', 'vector' or 'text'"),
    ],
)
def test_what_does_not_fit_a_kind_is_refused_by_name(modality, words) -> None:
    with pytest.raises(ValidationError, match=words):
        task({"width": 8}, **modality)


def test_an_encoder_of_another_kind_is_refused_with_those_that_fit() -> None:
    with pytest.raises(
        ValidationError, match=r"network\.encoders\.a: 'lstm' does not take .* \(fitting: cnn2d\)"
    ):
        task({"kind": "lstm"}, kind="image", height=8, width=8)
