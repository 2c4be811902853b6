"""A leader and processes that accept updates, on one folder and without a broker, in one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from coordinator.app import open_coordinator
from coordinator.cluster import ingest_worker
from coordinator.cluster.ingest_worker import IngestWorker
from coordinator.lease.keeper import LeaseKeeper
from coordinator.lease.table import LeaseTable
from coordinator.recovery.state_folder import open_shared_storage
from coordinator.wires import Wires
from protocol.topics import Kind, device_topic
from runtime.clock import SystemClock
from runtime.mqtt.link import Message
from tests.support.coordinator.bench import Bench, FakeLink
from tests.support.coordinator.fake import FLEET, TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.services import beside

LIFE_S = 30.0


class Worker:
    """One process that accepts updates."""

    def __init__(self, made: IngestWorker, link: FakeLink, dispatch) -> None:
        self.made, self.link, self._dispatch = made, link, dispatch

    async def give(
        self, device: str, kind: Kind, payload: bytes, digest: str | None = None, index: int = 0
    ) -> None:
        """Handle one message completely, with its acknowledgement."""
        acknowledged = asyncio.Event()
        topic = device_topic(FLEET, device, kind, digest, None if digest is None else index)
        await self._dispatch(Message(topic, payload, False, acknowledged.set))
        async with asyncio.timeout(20):
            await acknowledged.wait()
            await self.made.receipts.drained()


@asynccontextmanager
async def leading(
    folder: Path, task=None, jobs=None, *, holder: str = "leader", **settings: object
) -> AsyncIterator[Bench]:
    """A running leader, once it has the lease."""
    made = settings_for(folder, 1, **settings)
    made.state_dir.mkdir(parents=True, exist_ok=True)
    link, clock = FakeLink(), SystemClock()
    with made.location.database(alone=False) as store:
        lease = LeaseKeeper(LeaseTable(store, "lead", LIFE_S), "lead", clock, holder)
        await lease.take()
        async with open_coordinator(
            made, task or tiny_task(), TinyServer(), jobs=jobs or TinyJobs(), link=link, lease=lease
        ) as app:
            await app.driver.open()
            async with beside(*app.services().values()):
                one = Bench(app, link)
                await one.until(lambda: app.driver.state.phase != "initialising")
                yield one
        await lease.release()
        lease.close()


@asynccontextmanager
async def accepting(folder: Path, count: int, task=None, **settings: object) -> AsyncIterator[list[Worker]]:
    """Running processes that accept updates."""
    made, clock = settings_for(folder, 1, **settings), SystemClock()
    async with AsyncExitStack() as stack:
        workers = []
        for _ in range(count):
            storage = stack.enter_context(
                open_shared_storage(made, task or tiny_task(), clock, keeps_messages=False)
            )
            link = FakeLink()
            worker = ingest_worker.build(
                made,
                task or tiny_task(),
                TinyServer(),
                storage=storage,
                link=link,
                clock=clock,
                wires=Wires(),
            )
            stack.callback(worker.close)
            await worker.open()
            await stack.enter_async_context(beside(*worker.services.values()))
            workers.append(Worker(worker, link, worker.dispatcher.dispatch))
        yield workers
