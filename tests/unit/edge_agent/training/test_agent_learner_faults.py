"""What the learner does where the disk lets it down; no training, no broker."""

from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from edge_agent.messaging.outbox import PackedUpdate
from edge_agent.storage.agent_storage import open_storage
from edge_agent.storage.round_ledger import RETRY_S
from edge_agent.windows.workspace import WindowWorkspace
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import Offer, Receipt
from runtime.clock import SystemClock
from runtime.storage.blob_store import BlobStore
from tests.support.agent.parts import learner_of
from tests.support.clock import ManualClock
from tests.support.services import beside, until
from tests.unit.edge_agent.messaging.test_agent_session import config, read
from tests.unit.edge_agent.windows.test_agent_store import TASK, WindowStore, windows


class Shelf:
    """A fetcher that finds everything here already."""

    def __init__(self, blobs):
        self.blobs = blobs

    async def fetch(self, ref, _timeout_s):
        return self.blobs.path(ref.digest)


@asynccontextmanager
async def learning(folder, clock=None):
    settings, clock = read(config(folder)), clock or SystemClock()
    store = WindowStore(settings.state_dir / "store", TASK, 10_000_000)
    store.add(windows([0, 1, 2] * 10))
    work = WindowWorkspace(TASK, TASK.modality_names, None, None, store)
    storage = open_storage(settings, clock)
    learner = learner_of(settings, work, storage, Shelf(storage.blobs), clock)
    async with beside(learner.run(), forever=True):
        yield learner
    storage.close()
    store.close()


def keep(learner, frame: bytes, private: dict) -> None:
    """As a round does at its end, but in this thread."""
    update = PackedUpdate(offer("b" * 64), digest(frame), frame, None)
    learner.outbox._keep(update, partial(learner.storage.saving, "toy", private, None))


def offer(base: str, round_: int = 1) -> Offer:
    return Offer(task="toy", round=round_, base=base, base_size=10, closes_in_s=60)


async def test_a_spool_that_cannot_be_read_now_costs_one_offer(tmp_path):
    async with learning(tmp_path) as learner:
        learner.storage.ledger.record_spooled(offer("a" * 64), "b" * 64)

        def full():
            raise Transient("spool.sqlite3: no space left on the disk")

        learner.storage.spool.pending = full
        learner.offer(offer("a" * 64))
        await until(lambda: learner.failures == 1)
        assert "no space left" in learner.why


@pytest.mark.parametrize("reason", [Reason.WRONG_TENSORS, Reason.FULL])
async def test_a_refused_update_is_said_and_tried_again_unless_it_would_be_refused_again(tmp_path, reason):
    clock = ManualClock(100)
    async with learning(tmp_path, clock) as learner:
        asked, final = offer("a" * 64), reason is Reason.WRONG_TENSORS
        learner.storage.ledger.record_spooled(asked, "b" * 64)
        learner.storage.spool.put(task="toy", round_=1, digest="b" * 64, payload=b"x", carry=None)
        assert await learner.outbox.on_receipt(
            Receipt(task="toy", round=1, digest="b" * 64, status="refused", reason=reason, detail="acc/w")
        )
        refused = f"this offer's update was refused: {reason}: acc/w; waiting for the next round"
        assert (learner.why == refused) == final
        assert f"refused: {reason}: acc/w" in learner.why
        assert not await learner._is_wanted(asked)
        await clock.advance(RETRY_S + 1)
        assert await learner._is_wanted(asked) == (not final)
        assert f"refused: {reason}: acc/w" in learner.why


async def test_a_damaged_manifest_in_the_cache_is_removed_so_that_it_is_pulled_again(tmp_path):
    async with learning(tmp_path) as learner:
        ref = learner.storage.blobs.put(b"a manifest")
        learner.storage.blobs.path(ref.digest).write_bytes(b"a manifesT")
        learner.offer(offer(ref.digest))
        await until(lambda: learner.failures == 1)
        assert "wrong_digest" in learner.why
        assert not learner.storage.blobs.has(ref.digest)


async def test_a_job_that_a_power_cut_left_is_removed_at_the_start(tmp_path):
    left = tmp_path / "cache" / "jobs" / "toy-7"
    left.mkdir(parents=True)
    (left / "windows.npz").write_bytes(bytes(1000))
    async with learning(tmp_path):
        await until(lambda: not left.exists())


def test_a_blob_is_what_its_digest_says(tmp_path):
    blobs = BlobStore(tmp_path)
    ref = blobs.put(b"x" * 10)
    assert ref.digest == digest(b"x" * 10)
    blobs.path(ref.digest).write_bytes(b"y" * 10)
    with pytest.raises(Refused, match="damaged"):
        blobs.get(ref.digest)
    blobs.remove(ref.digest)


async def test_what_a_full_disk_kept_from_the_spool_is_not_counted_as_sent(tmp_path, monkeypatch):
    """A privacy account, or weights that go on from round to round: tried a hundred times, counted once."""

    def full(**_):
        raise Transient("no space left on the disk")

    before, after = ({"spent": np.full(1, n, np.float32)} for n in (1, 2))
    async with learning(tmp_path) as learner:
        private, frame = learner.storage.private, b"frame"
        for kept in ({}, before):
            if kept:
                private.write("toy", kept)
            with monkeypatch.context() as patch:
                patch.setattr(learner.storage.spool, "put", full)
                with pytest.raises(Transient):
                    keep(learner, frame, after)
            assert private.read("toy") == kept
            assert learner.storage.spool.pending() == []
        keep(learner, frame, after)
        assert private.read("toy") == after
        assert [entry.digest for entry in learner.storage.spool.pending()] == [digest(frame)]


async def test_a_kill_between_private_tensors_and_spool_leaves_them_counted(tmp_path, monkeypatch):
    """Of what may have left the device nothing is ever missing from the account."""

    class Killed(BaseException):
        """Nothing runs after it."""

    def killed(*_):
        raise Killed

    async with learning(tmp_path) as learner:
        monkeypatch.setattr(learner.storage.ledger, "record_spooled", killed)
        with pytest.raises(Killed):
            keep(learner, b"", {"spent": np.ones(1, np.float32)})
        assert learner.storage.private.read("toy") == {"spent": np.ones(1, np.float32)}
        assert learner.storage.spool.pending() == []
