"""Killed between the two writes that a receipt causes: the update is sent again, and not trained again."""

import errno
from pathlib import Path

import pytest

from edge_agent.agent import Agent
from edge_agent.app import load
from lichen_lab.simulation.deterministic.machine.disk import SimDisk
from protocol.errors import Reason, Transient
from protocol.frames.frame import digest
from protocol.messages import Offer, Receipt, encode
from protocol.topics import Kind, device_topic
from runtime.mqtt.link import Message
from runtime.storage.disk import DISK
from tests.support.agent.data import write_toy

OFFER = Offer(task="toy", round=3, base="b" * 64, base_size=10, closes_in_s=60.0)
FRAME = b"an update"
NAME = digest(FRAME)


class KilledHere(BaseException):
    """SIGKILL, as far as a test in one process can play it."""


def agent_in(folder: Path) -> Agent:
    config = folder / "agent.toml"
    if not config.exists():
        write_toy(folder, 20)
        config.write_text(
            f'fleet = "f"\ndevice = "d1"\nstate_dir = "{folder}/state"\ncache_dir = "{folder}/cache"\n'
            '[[source]]\nkind = "replay"\nfile = "toy.npz"\n'
        )
    return load(config)[1]


def receipt(**changes: object) -> Message:
    told = Receipt(task="toy", round=3, digest=NAME, status="accepted").model_copy(update=changes)
    topic = device_topic("f", "d1", Kind.RECEIPT)
    return Message(topic, encode(told))


async def test_killed_between_ledger_and_spool_it_sends_again_and_does_not_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = agent_in(tmp_path)
    agent.storage.ledger.record_spooled(OFFER, NAME)
    agent.storage.spool.put(task="toy", round_=3, digest=NAME, payload=FRAME, carry=None)

    def killed(_digest: str) -> bool:
        raise KilledHere

    monkeypatch.setattr(agent.storage.spool, "clear", killed)
    with pytest.raises(KilledHere):
        await agent.dispatcher.handle(receipt())
    agent.close()

    again = agent_in(tmp_path)
    assert [entry.digest for entry in again.storage.spool.pending()] == [NAME], "it is sent again"
    assert "was accepted" in again.storage.ledger.reason_to_skip(OFFER), "and not trained again"
    await again.dispatcher.handle(receipt())
    assert again.storage.spool.pending() == []
    assert again.outbox.accepted == 1
    again.close()


async def test_an_accepted_update_that_is_refused_afterwards_is_counted_once_and_confirmed_in_every_life(
    tmp_path: Path,
) -> None:
    agent = agent_in(tmp_path)
    agent.storage.ledger.record_spooled(OFFER, NAME)
    agent.storage.spool.put(task="toy", round_=3, digest=NAME, payload=FRAME, carry=None)
    await agent.dispatcher.handle(receipt())
    assert agent.reporter.state().withdrawn is None
    for _ in range(2):  # the coordinator says it again
        await agent.dispatcher.handle(receipt(status="refused", reason=Reason.OUTLIER, detail="far out"))
    assert (agent.outbox.accepted, agent.outbox.withdrawn) == (1, 1)
    assert agent.outbox.last_refusal == "outlier: far out"
    assert agent.status()["outbox"]["withdrawn"] == 1
    assert "was refused: outlier: far out" in agent.learner.why
    agent.close()

    again = agent_in(tmp_path)
    assert "outlier: far out" in again.learner.why
    await again.dispatcher.handle(receipt(status="refused", reason=Reason.OUTLIER, detail="far out"))
    assert again.outbox.withdrawn == 0, "it knew"
    assert again.reporter.state().withdrawn == (NAME,), "and says so, that it is not told for ever"
    again.close()


async def test_a_receipt_for_what_is_not_here_writes_nothing(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    await agent.dispatcher.handle(receipt())
    assert not (tmp_path / "state" / "rounds.json").exists()
    assert agent.outbox.accepted == 0
    agent.close()


async def test_a_receipt_on_a_disk_that_fails_ends_nothing_and_the_update_stays(tmp_path: Path) -> None:
    agent = agent_in(tmp_path)
    agent.storage.ledger.record_spooled(OFFER, NAME)
    agent.storage.spool.put(task="toy", round_=3, digest=NAME, payload=FRAME, carry=None)
    disk = SimDisk(tmp_path)
    token = DISK.set(disk)
    try:
        disk.trouble = errno.EIO
        with pytest.raises(Transient, match="the disk fails"):
            await agent.dispatcher.handle(receipt())
        assert [entry.digest for entry in agent.storage.spool.pending()] == [NAME]
        disk.trouble = 0
        await agent.dispatcher.handle(receipt())
        assert agent.storage.spool.pending() == []
    finally:
        DISK.reset(token)
        agent.close()
