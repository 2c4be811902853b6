"""QQR's ``model_every``: own weights between the rounds in which model deltas travel."""

import numpy as np
import pytest

from edge_agent.training.update_encoding import encode_update
from models.contract import ClientContext, Update
from models.methods.qqr import QqrConfig
from models.methods.qqr.client import make_client
from models.methods.qqr.local_rounds import model_travels
from models.methods.qqr.prototypes import rounds_name
from models.methods.qqr.server import make_server
from models.tensors import apply, flatten, unflatten
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Offer
from tests.support.methods.qqr_cases import task, windows, with_prototypes, without


def rounds_of(count: int, **config):
    made = task(**config)
    return made.model_copy(update={"rounds": made.rounds.model_copy(update={"count": count})})


def learn(the_task, round_, state, private, some=None, *, device="d"):
    context = ClientContext(the_task, device, round_, 0)
    return make_client().train(context, windows() if some is None else some, state, private)


def model_of(result):
    return {name: t for name, t in result.tensors.items() if not name.startswith("prototypes/")}


def moved(state):
    """Another base: as after a round in which models travelled."""
    flat = flatten(state)
    name = "head/fc1.bias"
    return unflatten(flat | {name: flat[name] + np.float32(0.25)})


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(t, b[name]) for name, t in a.items())


def test_models_travel_every_nth_round_and_in_the_last():
    the_task, config = rounds_of(12), QqrConfig(model_every=5)
    assert [r for r in range(1, 13) if model_travels(the_task, config, r)] == [5, 10, 12]
    assert all(model_travels(the_task, QqrConfig(), r) for r in range(1, 13))


def test_three_local_rounds_in_one_delta_are_the_three_rounds_one_after_the_other():
    the_task, each = rounds_of(9, model_every=3), rounds_of(9)
    base = with_prototypes(the_task)
    private, state = {}, base
    for round_ in (1, 2, 3):
        between = learn(the_task, round_, base, private)
        private = between.private
        assert bool(model_of(between)) == (round_ == 3)
        assert any(name.startswith("prototypes/") for name in between.tensors)
        # beside it: the same device, were its model the fleet's after each round
        step = learn(each, round_, state, {})
        state = unflatten(apply(flatten(state), model_of(step)))
    assert between.metrics["local_rounds"] == 3
    whole = {name: flatten(state)[name] - flatten(base)[name] for name in model_of(between)}
    for name, delta in model_of(between).items():
        np.testing.assert_allclose(delta, whole[name], atol=2e-5, err_msg=name)


def test_a_base_that_moved_makes_a_device_begin_from_it():
    the_task = rounds_of(9, model_every=2)
    base = with_prototypes(the_task)
    private = learn(the_task, 1, base, {}).private
    assert private
    after = moved(base)
    away, new = learn(the_task, 4, after, private), learn(the_task, 4, after, {})
    assert same(away.tensors, new.tensors)
    assert away.metrics["local_rounds"] == 1


def test_a_base_that_stayed_lets_a_device_go_on_whatever_happened_to_prototypes_and_rounds():
    the_task = rounds_of(9, model_every=2)
    base = with_prototypes(the_task)
    sent = learn(the_task, 2, base, {})  # this round is given up: nobody's model arrives
    again = learn(the_task, 4, base, sent.private)
    assert again.metrics["local_rounds"] == 2
    newer = dict(base) | {"prototypes/acc": {k: v * 2 for k, v in base["prototypes/acc"].items()}}
    assert learn(the_task, 4, newer, sent.private).metrics["local_rounds"] == 2


def test_a_device_cut_off_before_it_kept_its_weights_makes_the_same_update_again():
    the_task = rounds_of(9, model_every=2)
    base = with_prototypes(the_task)
    private = learn(the_task, 1, base, {}).private
    assert same(learn(the_task, 2, base, private).tensors, learn(the_task, 2, base, private).tensors)


def test_a_device_whose_training_diverged_recovers_from_the_base():
    the_task = rounds_of(9, model_every=2)
    base = with_prototypes(the_task)
    private = learn(the_task, 1, base, {}).private
    name = next(name for name in private if name.endswith("head/fc1.weight"))
    diverged = private | {name: np.full_like(private[name], np.nan)}
    after, new = learn(the_task, 2, base, diverged), learn(the_task, 2, base, {})
    assert same(after.tensors, new.tensors)


def test_own_weights_that_do_not_fit_the_network_or_the_route_are_dropped():
    the_task = rounds_of(9, model_every=2)
    base = with_prototypes(the_task)
    private = learn(the_task, 1, base, {}).private
    name = next(name for name in private if name.endswith("head/fc1.weight"))
    damaged = private | {name: private[name][:1]}
    assert learn(the_task, 2, base, damaged).metrics["local_rounds"] == 1
    no_gyro = {blob: tensors for blob, tensors in base.items() if blob != "encoder/gyro"}
    result = learn(the_task, 2, no_gyro, private, without(windows(), 1, np.arange(12) >= 0))
    assert result.metrics["local_rounds"] == 1
    assert not any(name.startswith("encoder/gyro") for name in result.tensors)


def test_an_encoder_trained_earlier_travels_with_the_head_that_was_trained_on_it():
    the_task = rounds_of(9, model_every=2)
    base = with_prototypes(the_task)
    private = learn(the_task, 1, base, {}).private
    silent = without(windows(), 1, np.arange(12) >= 0)
    result = learn(the_task, 2, base, private, silent)
    assert result.tensors["encoder/gyro/fc.weight"].any()
    assert not any(n.startswith("encoder/gyro") for n in learn(the_task, 2, base, {}, silent).tensors)


def test_where_every_window_waits_in_a_sending_round_the_rounds_before_still_travel():
    the_task = rounds_of(9, model_every=2, missing_prototype="wait")
    base = with_prototypes(the_task)
    private = learn(the_task, 1, base, {}).private
    base["prototypes/gyro"][rounds_name("gyro")] = np.zeros(3, np.float32)
    result = learn(the_task, 2, base, private, without(windows(), 1, np.arange(12) >= 0))
    assert (result.metrics["windows"], result.metrics["local_rounds"]) == (0, 1)
    assert result.tensors["encoder/gyro/fc.weight"].any()


def test_the_paper_keeps_nothing_private():
    assert learn(rounds_of(9), 1, with_prototypes(task()), {}).private == {}


class _Device:
    """Trains, packs with error carry, and keeps what an agent keeps."""

    def __init__(self, name):
        self.name, self.private, self.carry = name, {}, {}

    def update(self, the_task, round_, state):
        result = learn(the_task, round_, state, self.private, device=self.name)
        self.private = result.private
        offer = Offer(task="t", round=round_, base="0" * 64, base_size=0, closes_in_s=0)
        before = self.carry
        frame, self.carry = encode_update(
            offer, the_task, (self.name, ("acc", "gyro")), windows(), result, carry=before
        )
        return result, Update(*decode_frame(frame, UpdateHeader)), before


@pytest.mark.parametrize("codec", ["int8", "int2"])
def test_in_a_fleet_the_base_moves_only_in_sending_rounds_and_the_error_carry_stays_right(codec):
    made = rounds_of(7, model_every=3)
    the_task = made.model_copy(update={"uplink": made.uplink.model_copy(update={"codec": codec})})
    server, state = make_server(), with_prototypes(the_task)
    devices = [_Device("a"), _Device("b")]
    local_rounds = {"a": [], "b": []}
    for round_ in range(1, 8):
        fold = server.open(the_task, round_, state)
        for device in devices:
            if device.name == "b" and round_ in {2, 6}:  # away; at 6 it misses a sending round
                continue
            result, update, before = device.update(the_task, round_, state)
            server.check(the_task, state, update)
            fold.fold(update)
            local_rounds[device.name].append(result.metrics["local_rounds"])
            if not model_of(result):
                assert same(device.carry, before)
            for name, delta in model_of(result).items():
                lost = before.get(name, np.zeros_like(delta))
                np.testing.assert_allclose(update.tensors[name] + device.carry[name], delta + lost, atol=1e-5)
        after = fold.close()
        head_moved = not same(after["head"], state["head"])
        assert head_moved == (round_ in {3, 6, 7})
        assert not same(after["prototypes/acc"], state["prototypes/acc"])
        state = after
    assert local_rounds == {"a": [1, 2, 3, 1, 2, 3, 1], "b": [1, 2, 1, 2, 1]}
