"""A device's update under ``[privacy]``: within the clip as it is decoded, whatever its codec."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.training.update_encoding import encode_update
from models.contract import LocalResult, Update, WindowSet
from models.privacy.clipping import check_clipped, norm_of
from protocol.errors import Refused
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec
from protocol.messages import Offer
from protocol.tasks.folding import Privacy
from protocol.tasks.links import Uplink
from protocol.tasks.task import Task
from tests.support.tasks import sensors, small_task

CLIP = 0.5
OFFER = Offer(task="t", round=1, base="0" * 64, base_size=0, closes_in_s=0)
CODECS = ["float32", "float16", "int8", "int4", "int2", "steps"]
WINDOWS = WindowSet(
    {"a": np.zeros((3, 1, 4), np.float32)},
    np.ones((3, 1), np.bool_),
    np.ones((3, 1), np.float32),
    np.array([0, 1, 0]),
)


def task_with(codec: str, privacy: Privacy | None) -> Task:
    fields = {"method": "fedavg", "uplink": Uplink.model_validate({"codec": codec}), "privacy": privacy}
    return small_task(sensors(a=(1, 2.0)), "ab", **fields)


def tensors(seed: int, scale: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"head/fc2.weight": (40, 30), "head/fc2.bias": (40,), "encoder/a/w": (7, 5, 3)}
    return {name: (scale * rng.standard_t(2, shape)).astype(np.float32) for name, shape in shapes.items()}


def sent(task: Task, result: LocalResult, carry: dict) -> tuple[Update, dict]:
    frame, left = encode_update(OFFER, task, ("d", ["a"]), WINDOWS, result, carry=carry)
    return Update(*decode_frame(frame, UpdateHeader)), left or {}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("scale", [1e-6, 0.01, 1.0, 300.0])
def test_no_codec_and_no_carried_error_takes_an_update_beyond_the_clip(codec: str, scale: float) -> None:
    privacy = Privacy(clip=CLIP, noise_multiplier=1.0)
    task, carry = task_with(codec, privacy), {}
    for round_ in range(6):
        update, carry = sent(task, LocalResult(tensors(round_, scale), weight=50), carry)
        assert norm_of(update.tensors) <= CLIP
        assert update.header.weight == 1
        check_clipped(privacy, update)
        # what the clip cuts off is not carried on: the carry is a rounding error of what was sent
        assert norm_of(carry) <= (1.5 if codec in {"int2", "steps"} else 0.6) * CLIP
    if scale >= 1.0:
        assert norm_of(update.tensors) > 0.4 * CLIP  # scaled to the clip, and not away


@settings(max_examples=40, deadline=None)
@given(codec=st.sampled_from(CODECS), seed=st.integers(0, 2**32), exponent=st.integers(-12, 6))
def test_any_values_are_within_the_clip_or_refused_in_words(codec: str, seed: int, exponent: int) -> None:
    task = task_with(codec, Privacy(clip=CLIP, noise_multiplier=1.0))
    values = tensors(seed, 10.0**exponent)
    values["head/fc2.bias"][:1] = 10.0**exponent * 1000
    update, _ = sent(task, LocalResult(values, codecs={"encoder/a/w": Codec.INT8}), {})
    assert norm_of(update.tensors) <= CLIP


@pytest.mark.parametrize("codec", CODECS)
def test_an_update_within_the_clip_is_sent_as_without_it(codec: str) -> None:
    small = tensors(3, 1e-3)
    plain, left = sent(task_with(codec, None), LocalResult(small), {})
    clipped, same = sent(task_with(codec, Privacy(clip=50.0, noise_multiplier=1.0)), LocalResult(small), {})
    assert plain.tensors.keys() == clipped.tensors.keys() == small.keys()
    for name in small:
        np.testing.assert_array_equal(plain.tensors[name], clipped.tensors[name])
        np.testing.assert_array_equal(left[name], same[name])


def test_a_clip_that_adapts_is_that_of_the_offer_and_the_bit_says_who_was_within() -> None:
    adaptive = {"clip": CLIP, "noise_multiplier": 1.0, "adaptive_clip": {"count_noise": 2.0}}
    task = task_with("int8", Privacy.model_validate(adaptive))
    for offered, scale, bit in ((None, 10.0, 0.0), (4.0, 10.0, 0.0), (4.0, 1e-3, 1.0), (0.1, 1e-3, 1.0)):
        offer = OFFER.model_copy(update={"clip": offered})
        result = LocalResult(tensors(2, scale), metrics={"loss": 1.0})
        frame, _ = encode_update(offer, task, ("d", ["a"]), WINDOWS, result, carry={})
        update = Update(*decode_frame(frame, UpdateHeader))
        assert norm_of(update.tensors) <= (offered or CLIP)
        assert update.header.metrics == {"loss": 1.0, "within_clip": bit}
    fixed = task_with("int8", Privacy(clip=CLIP, noise_multiplier=1.0))
    frame, _ = encode_update(
        OFFER.model_copy(update={"clip": 4.0}),
        fixed,
        ("d", ["a"]),
        WINDOWS,
        LocalResult(tensors(2, 10.0)),
        carry={},
    )
    update = Update(*decode_frame(frame, UpdateHeader))
    assert norm_of(update.tensors) <= CLIP, "a task whose clip is fixed takes none from an offer"
    assert not update.header.metrics


def test_directions_are_kept() -> None:
    values = tensors(1, 10.0)
    update, _ = sent(task_with("float32", Privacy(clip=CLIP, noise_multiplier=1.0)), LocalResult(values), {})
    factor = CLIP / norm_of(values)
    for name, tensor in update.tensors.items():
        np.testing.assert_allclose(tensor, values[name] * factor, rtol=1e-5)


def test_the_coordinator_refuses_what_the_noise_does_not_cover() -> None:
    privacy = Privacy(clip=CLIP, noise_multiplier=1.0)
    update, _ = sent(task_with("float32", privacy), LocalResult(tensors(1, 10.0)), {})
    longer = {name: tensor * np.float32(1.0001) for name, tensor in update.tensors.items()}
    with pytest.raises(Refused, match=r"has the norm 0\.50005; privacy\.clip is 0\.5"):
        check_clipped(privacy, Update(update.header, longer))
    heavy = update.header.model_copy(update={"weight": 2})
    with pytest.raises(Refused, match=r"weight is 2; with \[privacy\] every device weighs: 1"):
        check_clipped(privacy, Update(heavy, update.tensors))
    check_clipped(None, Update(heavy, longer))
