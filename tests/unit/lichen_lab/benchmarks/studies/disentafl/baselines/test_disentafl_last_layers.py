"""Last layers that the devices of a baseline keep or blend, and what a newcomer gets."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lichen_lab.benchmarks.studies.disentafl.baselines import BASELINES, RUNS
from lichen_lab.benchmarks.studies.disentafl.baselines.loop import SharingRun
from lichen_lab.benchmarks.studies.disentafl.baselines.sharing import LAST
from lichen_lab.benchmarks.studies.disentafl.data.made import build
from lichen_lab.benchmarks.studies.disentafl.settings import DisentAflSetting, TargetFleet

SMALL = DisentAflSetting(rounds=2, lr=0.01, batch=8, width=16, latent=8, hidden=8, options={"tokens": 4})
SHARING = [name for name, baseline in BASELINES.items() if baseline.shares]


@pytest.fixture(scope="module")
def fleet() -> TargetFleet:
    return build(0, devices=6, train=12, test=8)


def shared(name: str, fleet: TargetFleet, **options: Any) -> SharingRun:
    """A run after one round."""
    made = SharingRun(BASELINES[name], fleet, replace(SMALL, options={"tokens": 4, **options}), 3)
    made.train(1)
    made.share()
    return made


def lasts(made: SharingRun, device: str) -> dict[str, torch.Tensor]:
    return {block: w_N for block, w_N in made.devices[device].held().items() if block.startswith(LAST)}


@pytest.mark.parametrize("name", SHARING)
def test_disentafl_baselines_a_private_last_layer_stays_and_all_else_is_shared(
    name: str, fleet: TargetFleet
) -> None:
    plain, private = shared(name, fleet), shared(name, fleet, last_layer="private")
    for member in fleet.members:
        assert not lasts(plain, member.name), "by default it is a part of its decoder"
        own = lasts(private, member.name)
        assert {block.removeprefix(LAST) for block in own} == set(member.profile.targets)
        for block, w_N in own.items():
            assert torch.equal(w_N, private.trained[member.name][block])
        assert private.traffic(member.name)[1] < plain.traffic(member.name)[1]
    changed = [
        not torch.equal(w_N, private.trained[member][block])
        for member, device in private.devices.items()
        for block, w_N in device.held().items()
        if not block.startswith(LAST)
    ]
    assert any(changed)


def test_disentafl_baselines_training_with_a_blended_last_layer_begins_with_the_fleets(
    fleet: TargetFleet,
) -> None:
    plain = shared("fedavg", fleet)
    blended = shared("fedavg", fleet, last_layer="interpolated", last_share=1.0)
    private = shared("fedavg", fleet, last_layer="private")
    for member in fleet.members:
        with_its, begins = (
            torch.cat([*made.devices[member.name].held().values()]).sort().values for made in (plain, blended)
        )
        assert torch.equal(with_its, begins)
    assert blended.given() == private.given(), "a device predicts with its own alone"
    half = shared("fedavg", fleet, last_layer="interpolated", last_share=0.0)
    before = {name: device.held() for name, device in half.devices.items()}
    assert half.given() == plain.given() == plain.scores()
    assert all(
        torch.equal(w_N, before[name][block])
        for name, device in half.devices.items()
        for block, w_N in device.held().items()
    ), "evaluating changes nothing"


def test_disentafl_baselines_a_newcomer_gets_the_fleets_parts_and_none_of_a_devices_own(
    fleet: TargetFleet,
) -> None:
    plain = shared("fedavg", fleet)
    assert plain.newcomer() == plain.given()
    pulled = shared("cross_pfl", fleet, pull=0.0)
    assert pulled.newcomer() == shared("cross_pfl", fleet, pull=1.0).given() != pulled.given()
    private = shared("fedavg", fleet, last_layer="private")
    for device in private.devices.values():
        w = {block: w_N + 100 for block, w_N in device.held().items() if block.startswith(LAST)}
        device.take(w)
    first = private.newcomer()
    private.trained = {
        name: {b: w_N - 100 if b.startswith(LAST) else w_N for b, w_N in held.items()}
        for name, held in private.trained.items()
    }
    assert private.newcomer() == first, "no device's last layer is in it"


def test_disentafl_baselines_a_device_may_keep_a_share_of_its_own_weights(fleet: TargetFleet) -> None:
    own, plain = shared("fedavg", fleet, own_share=0.25), shared("fedavg", fleet)
    for name, device in own.devices.items():
        for block, w_N in device.held().items():
            wanted = 0.75 * plain.devices[name].held()[block] + 0.25 * own.trained[name][block]
            assert torch.allclose(w_N, wanted, atol=1e-6)
    assert own.newcomer() == plain.newcomer()


def test_disentafl_baselines_local_has_nothing_to_give(fleet: TargetFleet) -> None:
    outcome = RUNS["local"](fleet, SMALL, 0, lambda _line: None)
    assert outcome.aggregate is None
    assert outcome.newcomer is None


@pytest.mark.long
def test_disentafl_a_newcomer_gets_no_private_part_of_the_product(fleet: TargetFleet) -> None:
    def made(**options: Any) -> Any:
        setting = replace(SMALL, options={"tokens": 4, **options})
        return RUNS["disentafl"](fleet, setting, 0, lambda _line: None)

    plain, blended = made(last_layer="shared"), made(last_layer="interpolated")
    assert plain.newcomer == plain.aggregate == blended.newcomer
    assert blended.aggregate != blended.newcomer
    kept = made(last_layer="shared", own_share=0.5)
    assert kept.newcomer != kept.aggregate
    rounds = plain.domains[fleet.members[0].name]
    assert sum(rounds.values()) == SMALL.rounds
    assert set(rounds) <= {"0", "1", "2"}
