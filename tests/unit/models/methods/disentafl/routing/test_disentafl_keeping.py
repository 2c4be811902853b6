"""What a device of DisentAFL keeps for itself and what travels: last layers, and features with kd."""

import numpy as np
import torch

from models.contract import Profile
from models.data import window_set
from models.methods.disentafl.client import make_client
from models.methods.disentafl.personal import blended
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing.blob_names import config_of
from models.registry import method
from models.tensors import flatten
from tests.support.methods.disentafl_cases import ACC, ALL
from tests.support.methods.disentafl_learning import learnable, on, small, taken, train, whole


def test_a_private_last_layer_never_leaves_and_is_where_the_next_round_begins():
    task = small(last_layer="private")
    state, windows = whole(task), learnable(task)
    first = train(task, windows, on(task, state, ALL))
    assert not any(name.startswith("last/") for name in first.tensors)
    own = {name for name in first.private if name.startswith("last/")}
    assert {name.rpartition("/")[0] for name in own} == {f"last/{o}" for o in ALL.targets}
    # with nothing but the private part changed, so is what travels
    quiet = {name: np.zeros_like(t) if name in own else t for name, t in first.private.items()}
    second, other = (train(task, windows, on(task, state, ALL), p, round_=2) for p in (first.private, quiet))
    name = "decoder/label/fc.weight"
    assert second.tensors[name].tobytes() != other.tensors[name].tobytes()
    taken(task, state, first)


def test_an_interpolated_last_layer_travels_is_kept_and_every_round_begins_with_the_fleets():
    task = small(last_layer="interpolated", keep_moments=False)
    state, windows = whole(task), learnable(task)
    held = on(task, state, ALL)
    first = train(task, windows, held)
    name = "last/label/fc.weight"
    np.testing.assert_allclose(
        first.private[name], held["last/label"][name] + first.tensors[name], rtol=1e-6, atol=1e-6
    )
    only_gate = {domain_gate.MEMORY: first.private[domain_gate.MEMORY]}
    second, again = (train(task, windows, held, p, round_=2) for p in (first.private, only_gate))
    assert second.tensors[name].tobytes() == again.tensors[name].tobytes()


def test_both_last_layers_keep_the_own_one_as_a_private_one_and_train_the_fleets_beside_it():
    results = {}
    for last_layer in ("private", "both"):
        task = small(last_layer=last_layer, keep_moments=False, epochs=4, domains=1)
        held, windows = on(task, whole(task), ALL), learnable(task)
        first = train(task, windows, held)
        results[last_layer] = train(task, windows, held, first.private, round_=2)
    private, both = results.values()
    assert {n: t.tobytes() for n, t in private.private.items()} == {
        n: t.tobytes() for n, t in both.private.items()
    }
    lasts = both.tensors.keys() - private.tensors.keys()
    assert lasts == {f"last/{target}/fc.{of}" for target in ALL.targets for of in ("weight", "bias")}
    start = flatten(held)
    assert all(not np.array_equal(start[n] + both.tensors[n], both.private[n]) for n in lasts)

    def loss(moved):
        state = {
            blob: {n: t + both.tensors[n] if n in moved else t for n, t in tensors.items()}
            for blob, tensors in held.items()
        }
        return method("disentafl").client().evaluate(task, windows, state).metrics["loss"]

    assert loss(both.tensors.keys()) < loss(private.tensors.keys())


def test_a_shared_last_layer_stays_nowhere_else():
    task = small(last_layer="shared", keep_moments=False)
    result = train(task, learnable(task), on(task, whole(task), ALL))
    assert set(result.private) == {domain_gate.MEMORY}
    assert "last/label/fc.weight" in result.tensors


def test_a_target_that_comes_back_finds_its_own_last_layer():
    task = small()
    held = on(task, whole(task), ALL)
    first = train(task, learnable(task), held)
    fewer = train(task, learnable(task), on(task, whole(task), ACC), first.private, profile=ACC, round_=2)
    name = "last/speed/fc.weight"
    assert fewer.private[name].tobytes() == first.private[name].tobytes()


def test_with_kd_weights_stay_and_features_by_class_travel():
    task = small(aggregate="kd", epochs=2)
    state, windows = whole(task), learnable(task)
    first = train(task, windows, on(task, state, ALL))
    parts = {name.split("/")[0] for name in first.tensors}
    assert parts == {"gate", "features"}
    assert set(first.extra["rows"]["features/acc.label"]) == {0, 1, 2}
    # label has 3 rows, pose 2, speed and picture one each
    assert first.extra["rows"]["features/_shared._shared"] == list(range(7))
    assert first.tensors["features/gyro.pose/values"].shape == (2, 4)
    own = {name.split("/")[0] for name in first.private} - {"gate_memory", "moments"}
    assert own == {"base", "domain", "expert", "decoder", "last"}
    second = taken(task, state, first)
    changed = {blob for blob in state if any((second[blob][n] != t).any() for n, t in state[blob].items())}
    assert {blob.split("/")[0] for blob in changed} == {"gate", "features"}
    later = train(task, windows, on(task, second, ALL), first.private, round_=2)
    assert later.metrics["loss"] < first.metrics["loss"]
    assert first.metrics["distil"] == 0
    assert later.metrics["distil"] > 0


def test_only_rows_with_data_travel():
    task = small(aggregate="kd")
    windows = learnable(task)
    windows = window_set.select(windows, windows.y_B != 1)
    rows = train(task, windows, on(task, whole(task), ACC), profile=ACC).extra["rows"]
    assert rows["features/acc.label"] == [0, 2]
    assert rows["features/acc._shared"] == [0, 2]


def test_the_features_sent_are_the_means_by_class_of_what_trained():
    task = small(aggregate="kd", domains=1)
    state, windows = on(task, whole(task), ACC), learnable(task)
    result = train(task, windows, state, profile=ACC)
    own = blended(config_of(task), state, result.private)
    net = make_client().inference_model(task, own).net
    with torch.no_grad():
        seen = net(torch.ones(48, 1, dtype=torch.bool), torch.from_numpy(windows.x["acc"]))
    for blob, (m, o) in {"acc.label": (0, 0), "acc._shared": (0, 1), "_shared.label": (1, 0)}.items():
        want = [seen.z_BMOF[windows.y_B == k, m, o].mean(dim=0).numpy() for k in range(3)]
        np.testing.assert_allclose(result.tensors[f"features/{blob}/values"], want, rtol=1e-4, atol=1e-5)


def test_distillation_draws_features_to_the_fleets():
    def apart(distil):
        task = small(aggregate="kd", domains=1, epochs=10, distil=distil)
        state = on(task, whole(task), ACC)
        for blob in [name for name in state if name.startswith("features/")]:
            values, rounds = f"{blob}/values", f"{blob}/rounds"
            count = len(state[blob][rounds])
            state[blob] = {
                values: np.full_like(state[blob][values], 2),
                rounds: np.ones(count, np.float32),
            }
        return train(task, learnable(task), state, profile=ACC).metrics["distil"]

    assert apart(5.0) < apart(0.0) / 2


def test_distillation_leaves_windows_of_a_target_without_classes_apart() -> None:
    """Its windows have one row: drawn to it one by one, nothing would be left to generate or measure by."""
    task = small(aggregate="kd", domains=1, epochs=20, distil=50.0, align=0.0, orthogonal=0.0)
    profile = Profile(("acc",), ("speed",))
    state, windows = on(task, whole(task), profile), learnable(task)
    for blob in [name for name in state if name.startswith("features/")]:
        values, rounds = (f"{blob}/{part}" for part in ("values", "rounds"))
        shape, count = state[blob][values].shape, len(state[blob][rounds])
        state[blob] = {values: np.full(shape, 0.5, np.float32), rounds: np.ones(count, np.float32)}
    result = train(task, windows, state, profile=profile)
    net = make_client().inference_model(task, blended(config_of(task), state, result.private)).net
    with torch.no_grad():
        seen = net(torch.ones(48, 1, dtype=torch.bool), torch.from_numpy(windows.x["acc"]))
    z_BQF = seen.z_BMOF.flatten(1, 2)
    assert float((z_BQF.mean(dim=0) - 0.5).abs().max()) < 0.2, "their mean is drawn to the fleet's"
    assert float(z_BQF.var(dim=0).sum(dim=0).mean()) > 0.03, "a tenth of it where each window is drawn there"
