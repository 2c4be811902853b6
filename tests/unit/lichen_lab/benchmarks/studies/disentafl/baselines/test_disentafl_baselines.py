"""The baselines of the study: who shares what with whom, and that nobody shares more."""

from dataclasses import replace

import pytest
import torch

from lichen_lab.benchmarks.studies.disentafl.baselines import BASELINES, RUNS, distil, sharing
from lichen_lab.benchmarks.studies.disentafl.baselines.loop import SharingRun, options_of
from lichen_lab.benchmarks.studies.disentafl.baselines.network import LATENT
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflSetting, TargetDevice, TargetFleet
from lichen_lab.benchmarks.study import mixes
from models.contract import Profile
from models.methods.disentafl import DisentAflConfig
from protocol.errors import Misconfigured

SMALL = DisentAflSetting(rounds=2, lr=0.01, batch=8, width=16, latent=8, hidden=8, options={"tokens": 4})
A, B = Profile(("m0",)), Profile(("m1",))
AB = Profile(("m0", "m1"), ("label", "t1"))
C = Profile(("m1",), ("t1",))
PROFILES = {"a": A, "a2": A, "b": B, "ab": AB, "c": C}


@pytest.fixture(scope="module")
def fleet() -> TargetFleet:
    return build(0, devices=6, train=12, test=8)


def after_a_round(name: str, fleet: TargetFleet) -> SharingRun:
    made = SharingRun(BASELINES[name], fleet, SMALL, 3)
    made.train(1)
    return made


def told(_line: str) -> None:
    pass


def linked(rule: sharing.Linked, block: str) -> set[frozenset[str]]:
    found = sharing.cliques(PROFILES, PROFILES, block, rule)
    return {frozenset(peers) for peers in found}


def test_disentafl_baselines_share_with_those_that_their_rule_names() -> None:
    assert linked(sharing.group, "encoder/m0") == {frozenset(s) for s in (["a", "a2"], ["b"], ["ab"], ["c"])}
    assert linked(sharing.everyone, "encoder/m0") == {frozenset(PROFILES)}
    # a and b have no input in common, but both have something in common with ab: the means differ
    assert linked(sharing.related, "encoder/m0") == {
        frozenset(s) for s in (["a", "a2", "ab"], ["b", "ab"], ["a", "a2", "b", "ab", "c"], ["ab", "c"])
    }
    assert linked(sharing.related, f"{sharing.GROUP_ONLY}encoder/m0") == linked(sharing.group, "encoder/m0")
    assert sharing.unrelated(LATENT, A, C)
    assert not sharing.unrelated(LATENT, A, B), "they have a target in common"
    assert not sharing.unrelated(LATENT, B, C), "they have an input in common"


def test_disentafl_baselines_mean_is_weighted_and_pull_goes_a_part_of_the_way() -> None:
    w_PN, weight_P = torch.tensor([[0.0, 2.0], [4.0, 2.0]]), torch.tensor([1.0, 3.0])
    assert mixes.mean(w_PN, weight_P).tolist() == [[3.0, 2.0], [3.0, 2.0]]
    assert sharing.pull(0.25)(w_PN, weight_P).tolist() == [[0.75, 2.0], [3.75, 2.0]]
    assert sharing.own(w_PN, weight_P) is w_PN


def test_disentafl_baselines_attention_prefers_what_correlates_and_ends_in_the_mean() -> None:
    w_PN = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0]]) + 5
    weight_P = torch.ones(3)
    made = mixes.attention(0.1)(w_PN, weight_P)
    assert torch.allclose(made[0], w_PN[:2].mean(dim=0), atol=0.1)
    assert torch.allclose(made[2], w_PN[2], atol=1e-3)
    assert torch.allclose(mixes.attention(1e6)(w_PN, weight_P), mixes.mean(w_PN, weight_P), atol=1e-4)
    alike_PN = torch.ones(2, 3)
    assert torch.equal(mixes.attention(0.5)(alike_PN, torch.ones(2)), alike_PN), "nothing to correlate"


@pytest.mark.parametrize("name", BASELINES)
def test_disentafl_baselines_every_parameter_is_in_one_block_and_begins_alike(
    name: str, fleet: TargetFleet
) -> None:
    made = SharingRun(BASELINES[name], fleet, SMALL, 3)
    begun: dict[tuple[str, int], torch.Tensor] = {}
    for device in made.devices.values():
        blocks = [p for block in device.blocks.values() for p in block]
        assert sorted(map(id, blocks)) == sorted(map(id, device.network.parameters()))
        for block, w_N in device.held().items():
            assert torch.equal(begun.setdefault((block, len(w_N)), w_N), w_N)


def test_disentafl_baselines_local_shares_nothing_and_fedavg_within_the_group_alone(
    fleet: TargetFleet,
) -> None:
    for name, alike in (("local", False), ("fedavg", True)):
        made = after_a_round(name, fleet)
        before = {member: device.held() for member, device in made.devices.items()}
        made.share()
        after = {member: device.held() for member, device in made.devices.items()}
        one, same, other = (m.name for m in _three(fleet))
        block = next(b for b in after[one] if b.startswith("encoder"))
        assert torch.equal(after[one][block], after[same][block]) == alike
        assert torch.equal(after[one][block], before[one][block]) != alike
        if block in after[other]:
            assert not torch.equal(after[one][block], after[other][block])


def _three(fleet: TargetFleet) -> tuple[TargetDevice, TargetDevice, TargetDevice]:
    """Two members of a kind, and one of another that reads the same."""
    kinds = [members for members in fleet.kinds.values() if len(members) > 1]
    one, same = kinds[0][:2]
    first = one.profile.modalities[0]
    other = next(m for m in fleet.members if m.kind != one.kind and first in m.profile.modalities)
    return one, same, other


def test_disentafl_baselines_align_shares_an_encoder_between_kinds(fleet: TargetFleet) -> None:
    made = after_a_round("align_fedavg", fleet)
    made.share()
    one, _, other = _three(fleet)
    block = f"encoder/{one.profile.modalities[0]}"
    held = [made.devices[m.name].held()[block] for m in (one, other)]
    assert torch.equal(*held)


def test_disentafl_baselines_devices_that_share_a_mean_train_on_copies_of_it(fleet: TargetFleet) -> None:
    made = after_a_round("fedavg", fleet)
    made.share()
    one, same, _ = _three(fleet)
    kept = made.devices[same.name].held()
    made.devices[one.name].train(2, 0, 0.0, keep_adam=True)
    now = made.devices[same.name].held()
    assert all(torch.equal(kept[block], now[block]) for block in kept)


def test_disentafl_baselines_distil_by_class_and_one_row_by_its_mean() -> None:
    z = {"m0.label": torch.tensor([[1.0, 1.0], [5.0, 1.0], [9.0, 9.0]]), LATENT: torch.tensor([[2.0], [4.0]])}
    y = {"m0.label": torch.tensor([0, 1, -1]), LATENT: torch.tensor([0, 0])}
    sums: distil.Sums = {}
    distil.add(sums, z, y, {"m0.label": 3, LATENT: 1})
    rows = distil.exchanged({"a": sums, "c": sums}, {"a": A, "c": C}, sharing.everyone)["a"]
    assert rows["m0.label"][:2].tolist() == [[1.0, 1.0], [5.0, 1.0]]
    assert rows["m0.label"][2].isnan().all(), "a class that nobody has seen"
    assert distil.loss(z, y, rows).item() == 0
    moved = {"m0.label": rows["m0.label"] + 1, LATENT: rows[LATENT] + 2}
    assert distil.loss(z, y, moved).item() == pytest.approx((1 + 4) / 2)
    assert distil.loss(z, y, {}).item() == 0
    lonely = distil.exchanged({"a": sums, "b": sums}, {"a": A, "b": B}, sharing.unrelated)
    assert lonely == {"a": {}, "b": {}}


def test_disentafl_baselines_distillation_draws_features_towards_the_fleets(fleet: TargetFleet) -> None:
    def distance(weight: float) -> float:
        made = after_a_round("cross_fedavg", fleet)
        made.share()
        device = next(iter(made.devices.values()))
        device.train(2, 0, weight, keep_adam=False)
        with torch.no_grad():
            seen = device.network(device.train_on.present_BM, *device.train_on.x)
        (segment,) = seen.z
        y_B = device.train_on.truth[segment.partition(".")[2]].y
        return distil.loss(seen.z, {segment: y_B}, device.rows).item()

    assert distance(100.0) < distance(0.0)


@pytest.mark.parametrize("name", BASELINES)
def test_disentafl_baselines_read_in_normalised_units_and_not_what_is_missing(
    name: str, fleet: TargetFleet
) -> None:
    task, config = fleet.task, DisentAflConfig(width=16, hidden=8, tokens=4)
    scaled = [m.model_copy(update={"offset": 1.0, "scale": 2.0}) for m in task.modalities]
    units = task.model_copy(update={"modalities": tuple(scaled)})
    plain_net, net = (BASELINES[name].network(t, AB, config, 0).eval() for t in (task, units))
    x = [torch.from_numpy(fleet.members[0].train.x[m]) for m in AB.modalities]
    present_BM = torch.ones(len(x[0]), 2, dtype=torch.bool)
    with torch.no_grad():
        plain = plain_net(present_BM, *x).made
        same = net(present_BM, *(2 * x_BCT + 1 for x_BCT in x)).made
        present_BM[:, 1] = False
        less, other = (plain_net(present_BM, x[0], x[1] * k).made for k in (1, -3))
    for target in AB.targets:
        assert torch.allclose(plain[target], same[target], atol=1e-5)
        assert torch.equal(less[target], other[target])
        assert not torch.allclose(plain[target], less[target], atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_disentafl_baselines_a_run_is_whole_and_the_same_twice(name: str, fleet: TargetFleet) -> None:
    outcomes = [RUNS[name](fleet, SMALL, 5, told) for _ in range(2)]
    first = outcomes[0]
    assert first.personal == outcomes[1].personal
    assert set(first.personal) == {m.name for m in fleet.members}
    assert all(set(first.personal[m.name]) == set(m.profile.targets) for m in fleet.members)
    assert [round_ for round_, _ in first.by_round] == [2]
    assert (first.aggregate is None) == (name == "local")
    sent = set(first.bytes_up.values())
    assert (sent == {0.0}) == (name == "local")
    assert all(0 <= first.bytes_up[m] <= first.bytes_down[m] for m in first.bytes_up)


def test_disentafl_baselines_learning_rate_decays_by_the_round_and_moments_are_kept(
    fleet: TargetFleet,
) -> None:
    for keep in (True, False):
        options = {"tokens": 4, "lr_decay": 0.5, "keep_adam": keep}
        made = SharingRun(BASELINES["fedavg"], fleet, replace(SMALL, options=options), 3)
        device = next(iter(made.devices.values()))
        steps = []
        for round_ in (1, 2, 3):
            made.train(round_)
            assert device.adam.param_groups[0]["lr"] == SMALL.lr * 0.5 ** (round_ - 1)
            steps.append(next(iter(device.adam.state.values()))["step"].item())
        assert (steps[2] == 3 * steps[0]) == keep


def test_disentafl_baselines_learn(fleet: TargetFleet) -> None:
    setting = replace(SMALL, rounds=15)
    one_round = replace(setting, rounds=1, lr=1e-6)
    better = RUNS["fedavg"](fleet, setting, 0, told).mean - RUNS["fedavg"](fleet, one_round, 0, told).mean
    assert better > 10


def test_disentafl_baselines_an_unknown_option_is_named() -> None:
    with pytest.raises(Misconfigured, match=r"FedAvg.*'pull'.*keep_adam"):
        options_of(BASELINES["fedavg"], replace(SMALL, options={"pull": 0.5}))
    config, options = options_of(BASELINES["cross_pfl"], replace(SMALL, options={"pull": 0.25, "layers": 2}))
    sizes = {"width": 16, "latent": 8, "hidden": 8, "lr": 0.01, "batch": 8, "epochs": 1, "layers": 2}
    assert config == DisentAflConfig(last_layer="shared", **sizes), "a baseline averages its last layer"
    assert options == {"keep_adam": True, "distil": 0.1, "pull": 0.25}
