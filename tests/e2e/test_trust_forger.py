"""A forger at the broker: a real agent with a root acts on no task and no offer that nobody signed."""

import time

import pytest

from coordinator.storage.database import Database
from coordinator.trust import root_ceremony
from coordinator.trust.keys import Key
from coordinator.trust.repository import DAY_S, Repository
from coordinator.trust.signer import PointerSigner
from coordinator.trust.work_signer import WorkSigner
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Offer, encode
from protocol.tasks.announcement import TaskAnnouncement
from protocol.topics import Kind, broadcast_topic
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.e2e.test_agent_e2e import DEVICE, ROOT, TASK, agent_of, coordinator, version, write_config
from tests.support.agent.fake_coordinator import FLEET
from tests.support.network.brokers import broker
from tests.support.services import until

__all__ = ["broker"]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Child processes find this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Signing:
    """The fleet's key, and what it signs; whoever has the broker may publish what he likes."""

    def __init__(self, folder, fake):
        self.repository = Repository(folder / "trust")
        root_ceremony.init(self.repository, [Key.new()], 1, 365 * DAY_S, time.time())
        safe = PointerSigner(self.repository, BlobStore(folder / "blobs"), SystemClock(), FLEET)
        self.store = Database(folder / "c.sqlite3")
        self.signer = WorkSigner(safe, self.store, SystemClock())
        self.fake = fake

    async def task(self, task, *, signed=None):
        announcement = TaskAnnouncement.of(task)
        if signed is None:
            announcement = self.signer.task(announcement)
        elif signed:
            announcement = announcement.model_copy(update={"signed": signed})
        await self.fake.link.publish(broadcast_topic(FLEET, Kind.TASK), encode(announcement), retain=True)
        return announcement.signed

    def offer(self, base, round_=1):
        offer = Offer(task=TASK.name, round=round_, base=base.digest, base_size=base.size, closes_in_s=60)
        return self.signer.offer(offer)

    async def send(self, offer):
        await self.fake.link.publish(broadcast_topic(FLEET, Kind.OFFER), encode(offer), retain=True)


@pytest.mark.long
async def test_an_agent_acts_on_nothing_that_a_forger_publishes(tmp_path, broker):
    async with coordinator(broker) as fake:
        fleet = Signing(tmp_path, fake)
        config = write_config(tmp_path, broker.port)
        config.write_text(f'trust_file = "{fleet.repository.newest}"\n' + config.read_text())
        async with agent_of(config) as agent:

            async def refused(words):
                await until(lambda: words in agent.status()["work_refused"], 30)
                await fake.until(lambda: words[:40] in (fake.states[-1].distrusts or ""), 30)
                waits = {wait["what"]: wait["why"] for wait in agent.status()["waits"]}
                assert words in waits["signatures"]

            # an unsigned task, and one that was altered
            await fake.until(lambda: fake.states, 30)
            await fleet.task(TASK, signed="")
            await refused("it is not signed, and this device has a root")
            good = await fleet.task(TASK)
            await fake.until(lambda: fake.states[-1].windows >= 8 and not fake.states[-1].distrusts, 30)
            noisier = TASK.model_copy(update={"seed": TASK.seed + 1})
            await fleet.task(noisier, signed=good)
            await refused("the task is not the one that was signed")
            assert agent.tasks.workspace.task == TASK
            # an offer of another base, with an encoder model, and unsigned
            base, other = version(fake), version(fake, 1, seed=1)
            genuine = fleet.offer(base)
            for change, words in (
                ({"base": other.digest, "base_size": other.size}, f"version {other.digest[:12]} is offered"),
                ({"graphs": {"acc": other}}, "the encoder model of acc is not one that was signed"),
                ({"signed": None}, "it is not signed"),
                ({"signed": genuine.signed.replace('"sig":"', '"sig":"00')}, "0 of its signatures"),
            ):
                await fleet.send(genuine.model_copy(update=change))
                await refused(words)
            assert fake.fetched == [], "nothing of it was pulled"
            assert agent.learner.trained == 0
            # the coordinator's own; then an older one again
            await fleet.send(genuine)
            await fake.until(lambda: fake.updates, 60)
            assert decode_frame(fake.updates[-1], UpdateHeader)[0].base == base.digest
            await fake.receipt(DEVICE, TASK, 1, fake.updates[-1])
            await fleet.send(fleet.offer(other, 2))
            await fake.until(lambda: decode_frame(fake.updates[-1], UpdateHeader)[0].round == 2, 60)
            await fleet.task(TASK)
            await fake.until(lambda: not fake.states[-1].distrusts, 30)
            await fleet.send(genuine)
            await refused("it is an older one")
            assert agent.learner.trained == 2
        async with agent_of(config) as agent:  # after a restart too
            await fake.until(lambda: fake.states[-1].status == "online", 30)
            await fleet.send(genuine)
            await until(lambda: "it is an older one" in agent.status()["work_refused"], 30)
        fleet.store.close()
