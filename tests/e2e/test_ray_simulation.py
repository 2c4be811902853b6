"""``lichen simulate --ray``: the history of one process, from actors on a real cluster."""

import threading

import pytest

from lichen_lab.simulation.training.runner import simulate
from models.registry import methods
from protocol.errors import Misconfigured, Transient
from tests.support.methods.contract_cases import as_bytes, task_of, windows_of
from tests.support.ray_head import RayHead

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def head():
    one = RayHead()
    one.start()
    yield one
    one.close()


def fleet(count=5):
    return {f"d{i}": windows_of(task_of(methods()["qqr"]), i, missing=0.3) for i in range(count)}


def test_shards_on_a_cluster_give_the_bytes_of_one_process(head):
    task = task_of(methods()["qqr"])
    test = windows_of(task, 50)
    alone = simulate(task, fleet(), test, 3, rounds=3, keep_private=True)
    seen = []

    def watch(record):
        seen.append(record)

    spread = simulate(
        task, fleet(), test, 3, rounds=3, keep_private=True, ray=head.address, workers=2, progress=watch
    )
    assert as_bytes(spread.state) == as_bytes(alone.state)
    assert [record.accepted for record in seen] == [record.accepted for record in alone.rounds]
    assert spread.bytes_up == alone.bytes_up
    assert {name: as_bytes({"": private}) for name, private in spread.private.items()} == {
        name: as_bytes({"": private}) for name, private in alone.private.items()
    }


def test_more_workers_than_processors_are_refused(head):
    with pytest.raises(Misconfigured, match=r"--workers 5: --ray .* has 2 CPUs"):
        simulate(task_of(methods()["qqr"]), fleet(), None, 3, rounds=1, ray=head.address, workers=5)


def test_devices_of_lost_processes_go_on_elsewhere_with_the_same_bytes(head):
    task = task_of(methods()["qqr"])
    alone = simulate(task, fleet(), None, 3, rounds=6, keep_private=True)
    killed = []

    def kill(record):
        """One of two in mid-training, then both, while they train the next round."""
        if record.round in {2, 4}:
            shards = head.workers("Shard")[: record.round // 2]
            killed.append(len(shards))
            for one in shards:
                one.kill()

    spread = simulate(
        task, fleet(), None, 3, rounds=6, keep_private=True, ray=head.address, workers=2, progress=kill
    )
    assert killed[0] == 1
    assert killed[1] >= 1
    assert as_bytes(spread.state) == as_bytes(alone.state)
    assert [record.accepted for record in spread.rounds] == [record.accepted for record in alone.rounds]
    assert {name: as_bytes({"": private}) for name, private in spread.private.items()} == {
        name: as_bytes({"": private}) for name, private in alone.private.items()
    }


def test_devices_that_end_every_process_end_the_simulation(head):
    killer = threading.Thread(target=_kill_all, args=(head, over := threading.Event()))
    killer.start()
    try:
        with pytest.raises(Transient, match=r"round 1: the process with devices d\d.* was lost 4 times"):
            simulate(task_of(methods()["qqr"]), fleet(), None, 3, rounds=1, ray=head.address)
    finally:
        over.set()
        killer.join()


def _kill_all(head, over):
    while not over.wait(0.02):
        for one in head.workers("Shard"):
            one.kill()
