"""Full disks and failing workers in words; refusals that can be traced to their topic."""

import errno

import pytest

from coordinator.config.versions import WorkerSettings
from coordinator.errors import in_words
from coordinator.workers.jobs import WorkerJobs
from protocol.errors import Transient
from protocol.messages import MAX_MESSAGE_BYTES
from protocol.topics import Kind, device_topic
from runtime.process.worker import WorkerFailed
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, TinyJobs, tiny_task

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: it broke\n'


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        WorkerFailed("models.worker: Fault", "Traceback ...\nOSError: [Errno 28] No space left on device\n"),
    ],
)
def test_a_full_disk_under_jobs_is_named_by_its_folder(tmp_path, error: Exception) -> None:
    jobs = tmp_path / "jobs"
    made = WorkerJobs(tiny_task(), jobs, None, WorkerSettings())
    with pytest.raises(Transient) as found, made._folder("init"):
        raise error
    assert in_words(found.value) == f"Transient: {jobs}: the disk of {jobs} is full"
    assert not (tmp_path / "jobs/init").exists()


def test_other_trouble_is_one_line_with_the_last_words() -> None:
    assert (
        in_words(WorkerFailed("models.worker: Fault", TRACEBACK))
        == "models.worker: Fault: RuntimeError: it broke"
    )
    assert in_words(WorkerFailed("export was killed by SIGKILL", "")) == "export was killed by SIGKILL"
    assert in_words(OSError(errno.ENOSPC, "full", "/d/blobs/x")) == "the disk of /d/blobs is full"
    assert in_words(OSError(errno.EIO, "bad\ndisk")) == "OSError: [Errno 5] bad disk"


async def test_what_is_waited_for_is_one_line_though_the_worker_said_many(tmp_path) -> None:
    class Broken(TinyJobs):
        async def initial(self):
            raise WorkerFailed("models.worker: Fault", TRACEBACK)

    async with bench(tmp_path, jobs=Broken(fail=("initial",))) as made:
        await made.until(lambda: "last trouble" in made.app.driver.why())
        words = made.app.driver.why()
        assert "\n" not in words
        assert words.endswith("last trouble: models.worker: Fault: RuntimeError: it broke")


async def test_a_refusal_in_the_log_names_its_topic(tmp_path, capsys) -> None:
    async with bench(tmp_path) as made:
        await made.online("a")
        capsys.readouterr()
        for topic in (
            device_topic(FLEET, "a", Kind.UPDATE),
            device_topic(FLEET, "a", Kind.STATE),
            "nonsense",
        ):
            await made.raw(topic, b"?")
            assert f"topic={topic}" in capsys.readouterr().out.replace("'", "")


async def test_oversized_garbage_is_called_what_it_is(tmp_path) -> None:
    async with bench(tmp_path) as made:
        await made.online("a")
        await made.give("a", Kind.UPDATE, b"x" * (MAX_MESSAGE_BYTES + 1))
        receipt = made.link.receipts("a")[0]
        assert receipt.reason == "too_large"
        assert "neither an update frame nor a pointer" in receipt.detail
        assert "control message" not in receipt.detail
