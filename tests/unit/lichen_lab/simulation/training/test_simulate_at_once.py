"""``--devices-at-once``: the same rounds as without, values nearly to the bit, whatever the processes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import lichen
from lichen_lab.simulation.training.crew.groups import deliver_all, shards
from lichen_lab.simulation.training.crew.parts import fleet_of, site_of
from lichen_lab.simulation.training.runner import History, simulate
from models.contract import Blobs, WindowSet
from models.methods.qqr.client import QqrClient
from models.training.group_client import GroupMember
from protocol.errors import Misconfigured
from protocol.tasks.links import Downlink, Uplink
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task
from tests.support.lab.simulated import task, windows

EXACT = {"uplink": Uplink(codec="float32"), "downlink": Downlink(codec="float32")}


def fleet(count: int = 10) -> dict[str, WindowSet]:
    """Of one size but two: one has fewer windows, one lacks a modality in some."""
    devices = {f"d{i}": windows(24, i) for i in range(count)}
    holes_BM = devices["d2"].present_BM.copy()
    holes_BM[:5, 1] = False
    return {**devices, "d1": windows(20, 1), "d2": replace(devices["d2"], present_BM=holes_BM)}


def rounds_of(its: Task, at_once: int, workers: int = 1) -> History:
    return simulate(its, fleet(), windows(30, 50), 3, devices_at_once=at_once, workers=workers)


def test_simulate_at_once_is_the_same_training() -> None:
    its = task(rounds=Rounds(count=2, devices_per_round=7), **EXACT)
    one, several = rounds_of(its, 1), rounds_of(its, 3)
    for before, after in zip(one.rounds, several.rounds, strict=True):
        assert list(before.accepted) == list(after.accepted)
        assert (before.refused, before.bytes_down) == (after.refused, after.bytes_down)
        for device, metrics in before.accepted.items():
            assert after.accepted[device] == pytest.approx(metrics, rel=1e-4)
        assert after.metrics == pytest.approx(before.metrics, rel=1e-3)
    for name, tensor in one.state["head"].items():
        np.testing.assert_allclose(several.state["head"][name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)
    assert any(
        several.state[blob][name].tobytes() != tensor.tobytes()
        for blob, tensors in one.state.items()
        for name, tensor in tensors.items()
    ), "nothing trained at once"


def test_simulate_at_once_repeats_to_the_byte() -> None:
    its = task(rounds=Rounds(count=1))
    assert _bytes(rounds_of(its, 4)) == _bytes(rounds_of(its, 4))


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 5])
def test_simulate_at_once_processes_change_no_byte(workers: int) -> None:
    its = task(rounds=Rounds(count=2, devices_per_round=7))
    here, there = rounds_of(its, 3), rounds_of(its, 3, workers)
    assert here.rounds == there.rounds
    assert _bytes(here) == _bytes(there)


def _bytes(history: History) -> list[bytes]:
    return [tensor.tobytes() for blob in history.state.values() for tensor in blob.values()]


@pytest.mark.parametrize(
    ("at_once", "in_round", "sizes"), [(1, 4, [1] * 10), (4, 8, [5, 5]), (4, None, [4, 3, 3]), (50, 4, [10])]
)
def test_simulate_at_once_shards_depend_on_the_fleet_alone(
    at_once: int, in_round: int | None, sizes: list[int]
) -> None:
    its = task(rounds=Rounds(count=1, devices_per_round=in_round))
    devices = fleet_of(fleet(), {}, {})
    dealt = shards(site_of(its, 1, devices, at_once), devices)
    assert [len(shard) for shard in dealt] == sizes
    assert sorted(device.name for shard in dealt for device in shard) == sorted(fleet())


def test_simulate_at_once_groups_are_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard may have more devices in a round than train at once: a last group of one would gain nothing."""
    sizes: list[int] = []

    def no_group(_client: QqrClient, members: Sequence[GroupMember], _state: Blobs) -> list[None]:
        sizes.append(len(members))
        return [None] * len(members)

    monkeypatch.setattr(QqrClient, "train_group", no_group)
    its = task(rounds=Rounds(count=1))
    devices = fleet_of(fleet(9), {}, {})
    site = site_of(its, 1, devices, 4)
    results = list(deliver_all(site, devices, site.client.initial(its, 1), 1))
    assert sizes == [3, 3, 3]
    assert [result.device for result in results] == [device.name for device in devices]
    assert all(result.frame for result in results)
    assert not list(deliver_all(site, [], {}, 1))


def test_simulate_at_once_says_why_devices_cannot() -> None:
    lstm = {"a": Encoder(kind="lstm", width=4, depth=1), "b": Encoder(width=4, depth=1)}
    networks = task().model_copy(update={"network": Network(encoders=lstm, feature_dim=8, hidden_dim=16)})
    cases = {
        "--devices-at-once 4: method 'disentafl' trains its devices one by one": task(
            method="disentafl", config={}
        ),
        "--devices-at-once 4: modality 'a': its encoder has a step": networks,
        "config.model_every = 2": task(config={"model_every": 2}),
    }
    for words, its in cases.items():
        with pytest.raises(Misconfigured, match=words):
            rounds_of(its, 4)
    with pytest.raises(Misconfigured, match="--devices-at-once 0: at least 1"):
        rounds_of(task(), 0)
    with pytest.raises(Misconfigured, match="not for a Ray cluster"):
        simulate(task(), fleet(), None, 3, devices_at_once=2, ray="local")


def test_simulate_at_once_from_python() -> None:
    its = task(rounds=Rounds(count=1))
    made = lichen.simulate(its, fleet(), devices_at_once=4, seed=3)
    assert made.history[0]["devices"] == 10
    with pytest.raises(Misconfigured, match="at least 1"):
        lichen.simulate(its, fleet(), devices_at_once=0)
