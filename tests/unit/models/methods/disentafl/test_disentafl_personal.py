"""What a device keeps of its own, and how its predictions use it."""

import numpy as np
import pytest

from models.methods.disentafl.personal import begun, blended, kept
from models.methods.disentafl.routing.blob_names import config_of
from models.registry import method
from models.tensors import flatten
from tests.support.methods.disentafl_cases import state_of, task_of

OWN = {"private": 1.0, "both": 1.0, "interpolated": 0.25, "shared": 0.0}


def own_of(state):
    return {name: tensor + 1 for name, tensor in flatten(state).items()}


@pytest.mark.parametrize(("last_layer", "share"), OWN.items())
def test_the_last_layer_is_blended_by_its_share_and_all_else_stays(last_layer, share):
    task = task_of(last_layer=last_layer, last_share=0.25)
    state = state_of(task)
    new = method("disentafl").blended(task, state, own_of(state))
    assert new.keys() == state.keys()
    for blob, tensors in state.items():
        if blob.startswith("last/"):
            for name, tensor in tensors.items():
                assert new[blob][name] == pytest.approx(tensor + share, abs=1e-6)
                assert new[blob][name].dtype == np.float32
        else:
            assert new[blob] is tensors


def test_with_kd_all_weights_are_the_devices_own():
    task = task_of(aggregate="kd", last_share=0.25)
    state = state_of(task)
    new = method("disentafl").blended(task, state, own_of(state))
    for blob, tensors in state.items():
        moved = 0.0 if blob.split("/")[0] in {"gate", "features"} else 1.0
        assert all(new[blob][n] == pytest.approx(t + moved) for n, t in tensors.items()), blob


def test_what_a_device_has_not_trained_or_in_another_shape_stays_global():
    task = task_of(last_layer="private")
    state = state_of(task)
    own = {
        n: t for n, t in own_of(state).items() if n.startswith(("last/label/", "last/pose/", "last/speed/"))
    }
    del own["last/pose/fc.bias"]
    own["last/speed/fc.weight"] = own["last/speed/fc.weight"][:, :-1]
    own["last/picture/fc.weight"] = np.full((2, 3), np.nan, np.float32)
    own["last/picture/fc.bias"] = np.zeros(2, np.float32)
    own["gate_memory/pairs"] = np.zeros((3, 2), np.float32)
    new = blended(config_of(task), state, own)
    changed = {blob for blob in state if new[blob] is not state[blob]}
    assert changed == {"last/label"}
    assert blended(config_of(task), state, {}) == state


def test_a_device_keeps_what_is_personal_and_what_it_did_not_train_now():
    state = state_of(task_of())
    trained = {n: t for n, t in own_of(state).items() if "label" in n}
    before = {
        "last/label/fc.bias": np.zeros(2, np.float32),
        "last/pose/fc.bias": np.ones(2, np.float32),
        "gate_memory/pairs": np.zeros((1, 2), np.float32),
    }
    own = kept(config_of(task_of(last_layer="private")), before, trained)
    assert set(own) == {"last/label/fc.bias", "last/label/fc.weight", "last/pose/fc.bias"}
    assert own["last/label/fc.bias"] is trained["last/label/fc.bias"]
    assert kept(config_of(task_of(last_layer="shared")), before, trained) == {}
    parts = {n.split("/")[0] for n in kept(config_of(task_of(aggregate="kd")), before, own_of(state))}
    assert parts == {"base", "domain", "expert", "decoder", "last"}


def test_a_share_of_the_devices_own_weights_is_blended_into_every_knowledge_type():
    task = task_of(own_share=0.25, last_share=0.5)
    config, state = config_of(task), state_of(task)
    for blend, last in ((blended, 0.5), (begun, 0.0)):
        new = blend(config, state, own_of(state))
        for blob, tensors in state.items():
            part = blob.split("/")[0]
            moved = {"gate": 0.0, "last": last}.get(part, 0.25)
            assert all(new[blob][n] == pytest.approx(t + moved, abs=1e-6) for n, t in tensors.items()), blob
    for kept_layer in ("private", "both"):
        alone = begun(config_of(task_of(last_layer=kept_layer)), state, own_of(state))["last/label"]
        assert all(alone[n] == pytest.approx(t + 1) for n, t in state["last/label"].items())
