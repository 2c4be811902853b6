"""Link and worker on uvloop, as the daemons run them; the other tests use asyncio's own loop."""

import asyncio
from pathlib import Path

import pytest

from runtime.mqtt.link import Link
from runtime.process.worker import Worker, WorkerFailed
from tests.support.network.links import quick, running
from tests.support.services import until

uvloop = pytest.importorskip("uvloop", reason="no wheel for this machine")
ROOT = Path(__file__).parents[2]


def _job(folder: Path, what: str) -> Path:
    folder.mkdir()
    (folder / "do").write_text(what)
    return folder


def test_the_link_and_a_broker_that_goes_and_comes(broker):
    async def main() -> None:
        async with running(Link(quick(broker.port), "one", filters=[("a/#", 1)])) as link:
            await asyncio.gather(*(link.publish(f"a/{i}", bytes(60_000)) for i in range(20)))
            await until(lambda: link.counters.messages_in == 20)
            await asyncio.to_thread(broker.restart)
            await until(lambda: link.counters.reconnects == 1)
            await link.publish("a/b", b"x")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_the_worker(tmp_path):
    async def main() -> None:
        worker = Worker("tests.support.processes.worker", env={"PYTHONPATH": str(ROOT)})
        await worker.run(_job(tmp_path / "1", "ok"), 20)
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            await worker.run(_job(tmp_path / "2", "killed"), 20)
        with pytest.raises(WorkerFailed, match="did not finish"):
            await worker.run(_job(tmp_path / "3", "hang"), 1.0)
        await worker.run(_job(tmp_path / "4", "noisy"), 20)
        await worker.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
