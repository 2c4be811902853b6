"""The study's baselines and its TACTFL, on a made fleet of three small devices."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lichen_lab.benchmarks.studies.tactfl import STUDY
from lichen_lab.benchmarks.studies.tactfl import variants as v
from lichen_lab.benchmarks.studies.tactfl.baselines import BASELINES, RUNS
from lichen_lab.benchmarks.studies.tactfl.baselines.autoencoder import AutoencoderReconstruction
from lichen_lab.benchmarks.studies.tactfl.baselines.loop import LabelledBaseline, LabelledRun, mean
from lichen_lab.benchmarks.studies.tactfl.baselines.prototypes import FleetPrototypes, clustered
from lichen_lab.benchmarks.studies.tactfl.baselines.pseudo import PseudoLabels, contrast
from lichen_lab.benchmarks.studies.tactfl.baselines.split import SplitRun, mixed
from lichen_lab.benchmarks.studies.tactfl.federation import run as tactfl
from lichen_lab.benchmarks.studies.tactfl.federation import shares
from lichen_lab.benchmarks.studies.tactfl.settings import (
    HERE,
    TRAINED,
    TUNED,
    TactflOutcome,
    TactflSetting,
    UnlabelledFleet,
)
from lichen_lab.benchmarks.studies.tactfl.shared import StudyCoordinator, chosen, task_of
from lichen_lab.benchmarks.study.mixes import attention
from lichen_lab.benchmarks.study.mixes import mean as plain_mean
from lichen_lab.simulation.training.guided import Guide
from models.contract import Blobs
from models.guided import DeviceWeights
from models.tensors import flatten
from protocol.errors import Misconfigured
from tests.support.lab import tactfl_study

SURE = {"confidence": 0.0, "warm_epochs": 1}


def quiet(_line: str) -> None:
    pass


def setting(**options: object) -> TactflSetting:
    return replace(tactfl_study.TINY, options={**tactfl_study.TINY.options, **options})


def federation(name: str, fleet: UnlabelledFleet | None = None, **options: object) -> LabelledRun:
    return LabelledRun(BASELINES[name], fleet or tactfl_study.fleet(), setting(**options), 0)


def trained(made: LabelledRun, member: int = 0) -> Blobs:
    """What a device sends in round 1."""
    assert made.local is not None
    found = made.local.train(made.fleet.members[member], made.state, 1)
    assert found is not None
    return found[1]


def distance(one: Blobs, other: Blobs) -> float:
    """Of trained values, by what both have."""
    a, b = flatten(one), flatten(other)
    names = [name for name in a if name in b and "running" not in name]
    return float(np.sqrt(sum(np.square(a[name] - b[name]).sum() for name in names)))


@pytest.mark.long
@pytest.mark.parametrize("name", [*BASELINES, v.LABELLED])
def test_tactfl_baseline_runs_the_same_for_the_same_seed(name: str) -> None:
    own = SURE if name in {v.FEDAVG, v.FEDOPT, v.FEDPROX, v.MOON, v.FPL, v.FEDMSPLIT} else {}
    one, again, other = (RUNS[name](tactfl_study.fleet(), setting(**own), seed, quiet) for seed in (0, 0, 1))
    assert one.scores == again.scores
    assert one.scores != other.scores
    ends = {TRAINED, TUNED} if name in {v.RANDOM, v.AUTOENCODER} else {TRAINED}
    assert set(one.scores) == ends
    assert one.by_round[-1] == (2, one.f1())


def test_tactfl_baseline_an_unknown_option_is_named() -> None:
    with pytest.raises(Misconfigured, match="FedProx: no option 'proxy'"):
        federation(v.FEDPROX, proxy=1.0)


def test_tactfl_baseline_means_are_weighted_and_what_nobody_trained_stays() -> None:
    state = {
        "encoder/a": {"encoder/a/w": np.zeros(2, np.float32)},
        "head": {"head/w": np.ones(1, np.float32)},
    }
    sent = [
        (1.0, {"encoder/a": {"encoder/a/w": np.array([4.0, 0.0], np.float32)}}),
        (3.0, {"encoder/a": {"encoder/a/w": np.array([0.0, 8.0], np.float32)}}),
    ]
    found = mean(state, sent)
    assert found["encoder/a"]["encoder/a/w"].tolist() == [1.0, 6.0]
    assert found["head"] is state["head"]


def test_tactfl_baseline_devices_send_parts_of_modalities_that_they_have() -> None:
    for name in (v.FEDAVG, v.AUTOENCODER):
        made = federation(name, **(SURE if name == v.FEDAVG else {}))
        both, one = (set(trained(made, member)) for member in (0, 2))
        assert both - one == {blob for blob in both if blob.endswith("/mic")} != set()


def test_tactfl_baseline_where_the_model_is_not_confident_nobody_trains() -> None:
    made = federation(v.FEDAVG, confidence=1.1, warm_epochs=1)
    assert isinstance(made.local, PseudoLabels)
    assert made.local.train(made.fleet.members[0], made.state, 1) is None
    alone = replace(tactfl_study.fleet(), members=())
    options = {"confidence": 1.1, "warm_epochs": 1}
    with_fleet, without = (
        RUNS[v.FEDAVG](fleet, setting(**options), 0, quiet) for fleet in (tactfl_study.fleet(), alone)
    )
    assert with_fleet.scores == without.scores
    sure = RUNS[v.FEDAVG](tactfl_study.fleet(), setting(**SURE), 0, quiet)
    assert sure.scores != without.scores


def test_tactfl_baseline_fedprox_holds_devices_to_the_global_model() -> None:
    moved = {}
    for prox in (0.0, 1e3):
        made = federation(v.FEDPROX, **SURE, prox=prox)
        moved[prox] = distance(trained(made), made.state)
    free = federation(v.FEDAVG, **SURE)
    assert moved[0.0] == distance(trained(free), free.state) > 0
    assert moved[1e3] < 0.9 * moved[0.0]


def test_tactfl_baseline_moon_is_its_equation_and_without_it_fedavg() -> None:
    z, near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert float(contrast(z, near, far, 0.5)) == pytest.approx(np.log(1 + np.exp(-2)))
    assert float(contrast(z, near, near, 0.5)) == pytest.approx(np.log(2))
    assert float(contrast(z, far, near, 0.5)) > float(contrast(z, near, far, 0.5))
    plain, off, on = (
        flatten(trained(federation(name, **SURE, **more)))
        for name, more in ((v.FEDAVG, {}), (v.MOON, {"moon": 0.0}), (v.MOON, {"moon": 5.0}))
    )
    assert all(np.array_equal(plain[name], off[name]) for name in plain)
    assert any(not np.array_equal(plain[name], on[name]) for name in plain)


def test_tactfl_baseline_fpl_clusters_prototypes_by_their_nearest() -> None:
    near, far = torch.tensor([[1.0, 0.1], [1.0, 0.2], [1.0, 0.0]]), torch.tensor([[0.1, 2.0], [0.2, 2.0]])
    found = clustered(torch.cat([near, far]))
    assert torch.allclose(found[found[:, 0].argsort()], torch.stack([far.mean(dim=0), near.mean(dim=0)]))
    assert torch.equal(clustered(near[:1]), near[:1])


def test_tactfl_baseline_fpl_draws_features_to_the_prototypes_of_their_class() -> None:
    east, north = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    shared = FleetPrototypes.of([{0: east, 1: north}])
    assert shared is not None
    z_BF, y_B = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 5])
    assert float(shared.contrast(z_BF, y_B, 0.5)) == pytest.approx(np.log(1 + np.exp(-2)))
    assert float(shared.contrast(z_BF, 1 - y_B.clamp(max=1), 0.5)) > 0.5
    assert float(shared.consistency(z_BF, y_B)) == pytest.approx(0.5), "a class that nobody sent has no part"
    assert float(shared.contrast(z_BF, y_B + 5, 0.5)) == float(shared.consistency(z_BF, y_B + 5)) == 0
    assert FleetPrototypes.of([]) is None


def test_tactfl_baseline_fpl_uses_the_prototypes_of_the_round_before() -> None:
    first, off = federation(v.FPL, **SURE), federation(v.FPL, **SURE, fpl=0.0)
    assert distance(trained(first), trained(off)) == 0
    sent = []
    for made in (first, off):
        assert made.local is not None
        found = made.local.train(made.fleet.members[0], made.state, 2)
        assert found is not None
        sent.append(found[1])
    assert distance(*sent) > 0


def test_tactfl_baseline_fedmsplit_mixes_each_block_among_the_nodes_that_have_it() -> None:
    start = {
        "encoder/a": {"encoder/a/w": np.zeros((1, 2), np.float32), "encoder/a/b": np.zeros(1, np.float32)},
        "head": {"head/w": np.zeros(1, np.float32)},
    }

    def node(weight: float, a: float, head: float | None) -> tuple[float, Blobs]:
        blobs = {"encoder/a": {name: np.full_like(x, a) for name, x in start["encoder/a"].items()}}
        if head is not None:
            blobs["head"] = {"head/w": np.array([head], np.float32)}
        return weight, blobs

    sent = {"": node(1, 4, 8), "d0": node(3, 0, 0), "d1": node(1, -4, None)}
    found = mixed(start, sent, plain_mean)
    assert {name: set(blobs) for name, blobs in found.items()} == {name: set(sent[name][1]) for name in sent}
    for blobs in found.values():
        assert flatten(blobs)["encoder/a/w"].tolist() == [[0, 0]]
        assert flatten(blobs)["encoder/a/b"].tolist() == [0]
    assert flatten(found["d0"])["head/w"].tolist() == [2]
    near = mixed(start, sent, attention(0.01))
    assert flatten(near[""])["encoder/a/w"][0, 0] > 3 > -3 > flatten(near["d1"])["encoder/a/w"][0, 0]


def test_tactfl_baseline_fedmsplit_lets_devices_continue_from_means_of_their_own() -> None:
    made = SplitRun(BASELINES[v.FEDMSPLIT], tactfl_study.fleet(), setting(**SURE, temperature=0.1), 0)
    made.round(1)
    assert set(made.own) == {member.name for member in made.fleet.members}
    one, other = (made.own[member.name] for member in made.fleet.members[:2])
    assert distance(one, other) > 0
    assert distance(one, made.model) > 0
    assert {"encoder/acc"} <= set(one)
    assert not any(blob.endswith("/mic") for blob in made.own[made.fleet.members[2].name])


def test_tactfl_baseline_fedopt_steps_by_adam_and_goes_on_with_its_moments() -> None:
    made = federation(v.FEDOPT, **SURE, server_lr=0.01)
    made.round(1)
    moments = {name: tensors for name, tensors in made.state.items() if name.startswith("optimizer/")}
    assert moments
    assert not any(name.startswith("optimizer/") for name in made.model)
    made.round(2)
    assert any(not np.array_equal(x, flatten(made.state)[name]) for name, x in flatten(moments).items())


def test_tactfl_baseline_autoencoders_reconstruct_ever_better() -> None:
    made = federation(v.AUTOENCODER)
    assert isinstance(made.local, AutoencoderReconstruction)
    assert {"decoder/acc", "decoder/mic"} <= set(made.state)
    assert not {"decoder/acc", "decoder/mic"} & set(made.model)
    errors = [made.local.error(made.fleet.members[0], made.state)]
    for round_ in (1, 2, 3):
        made.round(round_)
        errors.append(made.local.error(made.fleet.members[0], made.state))
    for name in ("acc", "mic"):
        assert errors[3][name] < errors[1][name] < errors[0][name]


def test_tactfl_baseline_all_begin_alike_and_pass_over_the_labelled_windows_as_often() -> None:
    passes = LabelledRun(
        BASELINES[v.RANDOM], tactfl_study.fleet(), replace(setting(), rounds=7, tune_epochs=60), 0
    )
    assert sum(passes._epochs(round_) for round_ in range(1, 8)) == 60
    first = StudyCoordinator.of(tactfl_study.fleet(), passes.task, setting()).client.initial(passes.task, 0)
    made = LabelledRun(
        LabelledBaseline("random", BASELINES[v.AUTOENCODER].local, {"decoder_dim": 8}),
        passes.fleet,
        setting(),
        0,
    )
    assert distance(made.model, first) == 0


def test_tactfl_study_fine_tuned_end_is_what_the_products_last_round_gives() -> None:
    fleet, plain = tactfl_study.fleet(), setting()
    found = tactfl(fleet, plain, 0, quiet)
    whole = setting(finetune_epochs=plain.tune_epochs, finetune_lr=0.01)
    product = tactfl(fleet, replace(whole, tune_epochs=0), 0, quiet)
    assert found.scores[TUNED] == product.scores[TRAINED]
    assert found.scores[TRAINED] != found.scores[TUNED]
    assert set(product.scores) == {TRAINED}


def test_tactfl_study_similarity_weights_change_the_version_and_are_told() -> None:
    weighed, equal = (
        tactfl(tactfl_study.fleet(), setting(**more), 0, quiet)
        for more in ({"sharpness": 50.0, "floor": 0.0}, {"weighting": "equal"})
    )
    assert equal.shares == pytest.approx(dict.fromkeys(("d0", "d1", "d2"), 1.0))
    assert weighed.shares != pytest.approx(equal.shares)
    assert weighed.bytes_up == pytest.approx(equal.bytes_up, rel=0.05)
    assert weighed.bytes_up > 0
    assert weighed.refused == 0
    assert set(weighed.shares) == {"d0", "d1", "d2"}


def test_tactfl_study_shares_are_of_equal_weights_over_rounds_and_parts() -> None:
    rounds = [
        DeviceWeights({"encoder/a": {"x": 0.75, "y": 0.25}, "encoder/b": {"x": 1.0}}),
        DeviceWeights({"encoder/a": {"x": 0.25, "y": 0.75}}),
    ]
    assert shares(rounds) == {"x": pytest.approx((1.5 + 1.0 + 0.5) / 3), "y": pytest.approx(1.0)}


def test_tactfl_study_the_coordinators_training_is_the_products() -> None:
    fleet = tactfl_study.fleet()
    task = task_of(fleet, tactfl_study.TINY, 0, tactfl_study.TINY.options)
    coordinator = StudyCoordinator.of(fleet, task, tactfl_study.TINY)
    state = coordinator.client.initial(task, 0)
    guide = Guide.of(task, fleet.labelled, 0)
    assert guide is not None
    made, _ = guide.finish(1, state)
    ours = flatten(coordinator.head(1, state))
    assert all(np.array_equal(x, ours[name]) for name, x in flatten(made).items())


def test_tactfl_study_devices_are_drawn_anew_for_a_round_and_alike_for_all_methods() -> None:
    few, names = replace(tactfl_study.TINY, chosen=2), ["a", "b", "c", "d", "e"]
    drawn = [chosen(names, few, 0, round_) for round_ in range(1, 21)]
    assert all(len(set(each)) == 2 and each == sorted(each) for each in drawn)
    assert set().union(*map(set, drawn)) == set(names)
    assert drawn != [chosen(names, few, 1, round_) for round_ in range(1, 21)]
    assert chosen(names, tactfl_study.TINY, 0, 1) == names
    assert chosen(names[:1], few, 0, 1) == names[:1]


def test_tactfl_study_who_is_not_chosen_trains_nothing() -> None:
    fleet, one = tactfl_study.fleet(), replace(setting(), rounds=1, chosen=1)
    [only] = chosen(fleet.members, one, 0, 1)
    assert set(tactfl(fleet, one, 0, quiet).shares) == {only.name}
    made = [
        LabelledRun(BASELINES[v.AUTOENCODER], *case, 0)
        for case in ((fleet, one), (replace(fleet, members=(only,)), one), (fleet, setting()))
    ]
    for each in made:
        each.round(1)
    assert distance(made[0].model, made[1].model) == 0 < distance(made[0].model, made[2].model)


@pytest.mark.parametrize("name", [v.METHOD, v.RANDOM])
def test_tactfl_study_looks_are_of_rounds_and_the_head_is_trained_where_it_is_looked_at(name: str) -> None:
    named = replace(setting(head_every=2), rounds=5, looks=(2, 4))
    found = RUNS[name](tactfl_study.fleet(), named, 0, quiet)
    assert [round_ for round_, _ in found.by_round] == [2, 4, 5]
    assert found.by_round[-1][1] == found.f1()
    usual = RUNS[name](tactfl_study.fleet(), replace(setting(), rounds=5), 0, quiet)
    assert [round_ for round_, _ in usual.by_round] == [5]


def test_tactfl_study_measured_encoders_have_the_labelled_windows_statistics() -> None:
    fleet = tactfl_study.fleet()
    task = task_of(fleet, tactfl_study.TINY, 0, {})
    coordinator = StudyCoordinator.of(fleet, task, tactfl_study.TINY)
    state = coordinator.client.initial(task, 0)
    before, after = flatten(state), flatten(coordinator.measured(state))
    moved = {name for name, x in after.items() if not np.array_equal(x, before[name])}
    assert moved == {name for name in before if "running_" in name}


def test_tactfl_study_an_outcome_survives_json_and_names_ends_that_are_not_there() -> None:
    outcome = TactflOutcome({TRAINED: {HERE: {"f1": 1.0, "accuracy": 2.0}}}, [(2, 1.0)])
    assert STUDY.read({**outcome.__dict__, "by_round": [[2, 1.0]]}) == outcome
    with pytest.raises(KeyError, match="fine-tuned"):
        outcome.f1(TUNED)
