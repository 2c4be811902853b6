"""Signed bundles over a real broker: the coordinator's keys and signing, a real agent, scripted messages."""

import time

import pytest

from coordinator.storage.database import Database
from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import DAY_S, BundleTarget, Repository
from coordinator.trust.signer import PointerSigner
from coordinator.trust.work_signer import WorkSigner
from edge_agent.trust.updater import FILE
from protocol.messages import ModelPointer, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.topics import Kind, broadcast_topic
from runtime.clock import SystemClock
from tests.e2e.test_agent_e2e import DEVICE, ROOT, TASK, agent_of, coordinator, write_config
from tests.support.agent.bundle import bundle, ref_of
from tests.support.agent.fake_coordinator import FLEET
from tests.support.network.brokers import broker
from tests.support.services import until

__all__ = ["broker"]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Child processes find this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Shelf:
    """The scripted coordinator's blobs, as the signing side stores them."""

    def __init__(self, fake):
        self.put = fake.put
        self.has = fake.blobs.__contains__


@pytest.mark.long
async def test_a_device_runs_what_is_signed_and_goes_with_the_root_and_refuses_the_rest(tmp_path, broker):
    key, repository = Key.new(), Repository(tmp_path / "trust")
    root_ceremony.init(repository, [key], 1, 365 * DAY_S, time.time())
    config = write_config(tmp_path, broker.port)
    config.write_text(f'trust_file = "{repository.newest}"\n' + config.read_text())
    (tmp_path / "first.json").write_bytes(repository.newest.read_bytes())
    config.write_text(config.read_text().replace(str(repository.newest), str(tmp_path / "first.json")))
    async with coordinator(broker) as fake:
        store = Database(tmp_path / "c.sqlite3")
        safe = PointerSigner(repository, Shelf(fake), SystemClock(), FLEET)

        async def announce(number, *, signed=True, listed=None):
            ref = fake.put(bundle(TASK, number))
            said = ModelPointer(task=TASK.name, version=number, bundle=ref)
            if signed:
                said = safe.vouched(said, [BundleTarget(task=TASK.name, version=number, ref=listed or ref)])
            topic = broadcast_topic(FLEET, Kind.FLEET_MODEL)
            await fake.link.publish(topic, encode(said), qos=1, retain=True)
            return ref.digest

        async def announce_task():
            signer = WorkSigner(safe, store, SystemClock())
            said = signer.task(TaskAnnouncement.of(TASK))
            await fake.link.publish(broadcast_topic(FLEET, Kind.TASK), encode(said), retain=True)

        async with agent_of(config) as agent:
            await announce_task()
            await fake.until(lambda: fake.states and fake.states[-1].windows >= 8)
            assert "nothing signed has come yet" in agent.status()["trust"]["bundles"]
            await announce(1, signed=False)
            await until(lambda: "unsigned" in agent.status()["model_refused"], 20)
            first = await announce(2)
            await fake.until(lambda: fake.states[-1].model == first, 30)
            assert agent.status()["trust"]["bundles"] == "are signed"
            assert not agent.status()["model_refused"], "that is over"
            other = ref_of(b"something else")
            await announce(3, listed=other)
            await until(lambda: "not among the bundles" in agent.status()["model_refused"], 20)
            assert agent.status()["model_version"] == 2
            root_ceremony.rotate(repository, [key], None, None, 365 * DAY_S, time.time())
            last = await announce(4)
            await fake.until(lambda: fake.states[-1].model == last, 30)
            assert agent.status()["trust"]["root"] == 2
        assert (tmp_path / "state" / "trust" / FILE).is_file()
        async with agent_of(config) as agent:
            await fake.until(lambda: fake.states[-1].model == last and fake.states[-1].device == DEVICE, 30)
            assert agent.status()["trust"]["root"] == 2
        store.close()
