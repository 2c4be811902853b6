"""Accepted updates whose frames cannot be read: who is told, and who is not."""

import errno
from pathlib import Path

import pytest
import sqlalchemy as sa

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.round_machine.events import RoundPhase
from coordinator.storage import schema
from coordinator.storage.update_journal import AcceptedUpdate
from models.worker.update_views import FrameAt
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

LOST = UnusableUpdates({"a": Refused(Reason.WRONG_DIGEST, "damaged on disk")})


def entry(folder: Path, content: bytes = b"frame") -> AcceptedUpdate:
    file = folder / "frame"
    file.write_bytes(content)
    return AcceptedUpdate("a", digest(b"frame"), file)


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOENT, "is gone"), (errno.EIO, "is unreadable"), (errno.EMFILE, None)]
)
def test_a_bad_sector_is_a_lost_update_and_a_passing_trouble_is_none(
    tmp_path: Path, monkeypatch, number: int, words: str | None
) -> None:
    made = entry(tmp_path)
    assert made.verified() == b"frame"

    def fails(_: FrameAt) -> bytes:
        raise OSError(number, "the disk says no")

    monkeypatch.setattr("models.worker.update_views.content", fails)
    with pytest.raises(OSError, match="says no") if words is None else pytest.raises(Refused, match=words):
        made.verified()


def test_changed_bytes_are_a_lost_update(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="damaged on disk"):
        entry(tmp_path, b"Frame").verified()


async def test_a_late_finding_takes_back_nothing_that_counts(tmp_path: Path) -> None:
    """The look after the start may end when its round is over: what was folded was sound then."""
    async with bench(tmp_path, tiny_task(count=2)) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.until(lambda: made.app.driver.state.version == 1)
        await made.app.round_worker.lose(1, LOST)
        await made.app.receipts.drained()
        assert [one.status for one in made.link.receipts("a")] == ["accepted"]
        assert made.refusals() == {}
        assert made.app.storage.store.rows(sa.select(schema.updates.c.lost)) == [{"lost": ""}]
        assert not list((tmp_path / "coordinator" / "updates").rglob("*.lost"))


async def test_what_came_again_meanwhile_is_not_reported(tmp_path: Path, monkeypatch) -> None:
    """Between the look and the report the device may have sent its update anew."""
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        looks = []
        sound = AcceptedUpdate.verified

        def rotten_once(one: AcceptedUpdate) -> bytes:
            looks.append(one.device)
            if len(looks) == 1:
                raise LOST.lost["a"]
            return sound(one)

        monkeypatch.setattr(AcceptedUpdate, "verified", rotten_once)
        await made.app.audit.run()
        assert looks == ["a", "a"]
        assert tuple(made.app.driver.state.delivered) == ("a",)
        assert made.refusals() == {}


async def test_a_look_that_meets_a_passing_trouble_blames_nobody(tmp_path: Path, monkeypatch) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))

        def fails(_: FrameAt) -> bytes:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr("models.worker.update_views.content", fails)
        await made.app.audit.run()
        assert tuple(made.app.driver.state.delivered) == ("a",)
        assert made.app.driver.state.phase is RoundPhase.COLLECTING
