"""A device's update on a fixed grid: of a secure round, and of a plain one that asks for the same numbers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.training.update_encoding import encode_update
from lichen_lab.simulation.training.runner import simulate
from models.contract import LocalResult, Update, WindowSet
from models.privacy.clipping import norm_of
from models.tensors import flatten
from protocol.errors import Refused
from protocol.frames.fixed_point import rounded
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec
from protocol.messages import Offer
from protocol.tasks.folding import Privacy, SecureAggregation
from protocol.tasks.links import Uplink
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.support.lab.simulated import task as simulated_task
from tests.support.lab.simulated import windows
from tests.support.tasks import sensors, small_task

OFFER = Offer(task="t", round=1, base="0" * 64, base_size=0, closes_in_s=0)
WINDOWS = WindowSet(
    {"a": np.zeros((3, 1, 4), np.float32)},
    np.ones((3, 1), np.bool_),
    np.ones((3, 1), np.float32),
    np.array([0, 1, 0]),
)
SECURE = SecureAggregation(fraction_bits=8, bound=0.5, min_devices=3)
PLAIN = Uplink(codec="steps", fraction_bits=8, bound=0.5)


def task_with(**fields: Any) -> Task:
    return small_task(sensors(a=(1, 2.0)), "ab", method="fedavg", **fields)


def sent(task: Task, result: LocalResult, carry: dict[str, Any]) -> tuple[Update, dict[str, Any]]:
    frame, left = encode_update(OFFER, task, ("d", ["a"]), WINDOWS, result, carry=carry)
    return Update(*decode_frame(frame, UpdateHeader)), left or {}


@pytest.mark.parametrize(
    "fields", [{"secure_aggregation": SECURE}, {"uplink": PLAIN}], ids=["secure", "plain"]
)
def test_values_are_whole_steps_within_the_bound_and_nothing_is_lost_over_rounds(fields) -> None:
    rng, task, carry = np.random.default_rng(1), task_with(**fields), {}
    wanted, got = np.zeros(200), np.zeros(200)
    for _ in range(12):
        delta = (rng.standard_normal(200) * 0.3).astype(np.float32)
        update, carry = sent(task, LocalResult({"head/w": delta}), carry)
        steps = update.tensors["head/w"].astype(np.float64) * 2**8
        np.testing.assert_array_equal(steps, np.rint(steps))
        assert np.abs(steps).max() <= 128
        wanted += delta
        got += update.tensors["head/w"]
    np.testing.assert_allclose(got + carry["head/w"], wanted, atol=1e-5)


def test_a_plain_task_sends_the_same_numbers_as_a_secure_one() -> None:
    result = LocalResult({"head/w": np.linspace(-2, 2, 300, dtype=np.float32)})
    (secure, left), (plain, its) = (
        sent(task_with(**fields), result, {})
        for fields in ({"secure_aggregation": SECURE}, {"uplink": PLAIN})
    )
    assert secure.tensors["head/w"].tobytes() == plain.tensors["head/w"].tobytes()
    assert left["head/w"].tobytes() == its["head/w"].tobytes()


@pytest.mark.parametrize(("secure", "weight"), [({}, 1), ({"weights": "samples", "max_weight": 20}, 20)])
def test_the_weight_is_capped(secure: dict[str, Any], weight: int) -> None:
    task = task_with(secure_aggregation=SECURE.model_copy(update=secure))
    update, _ = sent(task, LocalResult({"head/w": np.ones(3, np.float32) / 4}, weight=50), {})
    assert update.header.weight == weight


def test_a_tensor_that_has_no_error_carry_is_rounded_or_refused_but_never_cut() -> None:
    task = task_with(secure_aggregation=SECURE)
    fits = LocalResult({"prototypes/a": np.full(4, 0.4, np.float32)}, codecs={"prototypes/a": Codec.INT4})
    update, left = sent(task, fits, {})
    assert update.tensors["prototypes/a"].tolist() == [round(0.4 * 256) / 256] * 4
    assert left == {}
    fits.tensors["prototypes/a"][2] = -0.6
    with pytest.raises(Refused, match=r"'prototypes/a' has a value of magnitude 0\.6; .*bound is 0\.5"):
        sent(task, fits, {})


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 23), st.floats(-1e6, 1e6, width=32), st.integers(1, (1 << 23) - 1))
def test_a_rounded_value_is_exact_and_the_nearest_within_the_level(
    bits: int, value: float, level: int
) -> None:
    [found] = rounded(np.array([value], np.float32), bits, level).tolist()
    steps = found * 2**bits
    assert steps == int(steps)
    assert abs(steps) <= level
    if abs(value) * 2**bits < level:
        assert abs(found - value) <= 2.0 ** -(bits + 1)


def test_simulated_secure_rounds_give_the_bytes_of_plain_rounds_with_the_same_numbers() -> None:
    devices = {f"d{n}": windows(40, n) for n in range(5)}
    rounds = Rounds(count=2, min_devices=3)
    grid = {"fraction_bits": 12, "bound": 2.0}
    secure = SecureAggregation.model_validate({"min_devices": 3, "weights": "samples", **grid})
    uplink = Uplink.model_validate({"codec": "steps", **grid})
    states = [
        simulate(simulated_task(method="fedavg", rounds=rounds, **fields), devices, None, 1).state
        for fields in ({"secure_aggregation": secure}, {"uplink": uplink})
    ]
    first, second = ({name: x.tobytes() for name, x in flatten(state).items()} for state in states)
    assert first == second


@pytest.mark.parametrize("scale", [1e-4, 0.02, 3.0])
@pytest.mark.parametrize("fraction_bits", [4, 8, 16])
def test_the_clip_holds_after_rounding_however_coarse_the_steps(scale: float, fraction_bits: int) -> None:
    secure = SecureAggregation(fraction_bits=fraction_bits, bound=0.5, min_devices=3)
    task = task_with(secure_aggregation=secure, privacy=Privacy(clip=0.6, noise_multiplier=1.0))
    rng, carry = np.random.default_rng(7), {}
    for _ in range(5):
        delta = (rng.standard_normal(3000) * scale).astype(np.float32)
        update, carry = sent(task, LocalResult({"head/w": delta}, weight=9), carry)
        steps = update.tensors["head/w"].astype(np.float64) * 2**fraction_bits
        np.testing.assert_array_equal(steps, np.rint(steps))
        assert norm_of(update.tensors) <= 0.6
        assert update.header.weight == 1
        assert norm_of(carry) <= 0.6 + np.sqrt(3000) / 2 / 2**fraction_bits
