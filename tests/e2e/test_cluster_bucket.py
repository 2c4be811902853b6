"""Roles as on several machines: nothing is shared but PostgreSQL, a bucket and the broker."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

from protocol.frames.headers import Manifest
from protocol.messages import BlobRef
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.fake import FLEET, FakeDevice, tiny_task
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture
from tests.support.processes.coordinator_roles import by_pid, cluster, finished
from tests.support.services import beside
from tests.support.storage.postgres import shared_server

pytestmark = [pytest.mark.mosquitto, pytest.mark.long, pytest.mark.timeout(300)]
ROUNDS = 3


async def downloaded(device: FakeDevice, folder: Path, manifest: BlobRef) -> list[bytes]:
    """A version as an agent downloads it: the manifest and all its blobs, each checked by its digest."""
    fetcher = Fetcher(device.link.publish, FLEET, device.name, BlobStore(folder), 4096, stall_s=1.0)

    async def feed() -> None:
        while True:
            for (digest, index), data in list(device.chunks.items()):
                fetcher.on_chunk(digest, index, data)
                del device.chunks[digest, index]
            await asyncio.sleep(0.01)

    async with beside(feed):
        text = (await fetcher.fetch(manifest, 30)).read_bytes()
        blobs = Manifest.model_validate_json(text).blobs.values()
        return [text, *[(await fetcher.fetch(one, 30)).read_bytes() for one in blobs]]


async def test_processes_with_folders_of_their_own_learn_over_a_failover(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
    bucket: str,
) -> None:
    storage = {
        "url": shared_server().url(),
        "schema_name": f"apart_{random.randrange(10**9)}",
        "blobs": bucket,
    }
    task = tiny_task(count=ROUNDS, min_devices=3, deadline_s=120.0)
    made = cluster(tmp_path, mosquitto.port, task, storage=storage, apart=True, cluster={"lease_s": 5})
    async with made as (running, fleet, books):
        await fleet[0].wait_for(lambda: any(one.round == 2 for one in fleet[0].offers), 90)
        holder, epoch = books.leader()
        running[by_pid(running, holder)].send(signal.SIGKILL)
        running["ingest-0"].send(signal.SIGKILL)
        await fleet[0].wait_for(lambda: any(one.round == ROUNDS for one in fleet[0].offers), 90)
        last = fleet[0].offers[-1]
        whole = await downloaded(
            fleet[0], tmp_path / "device", BlobRef(digest=last.base, size=last.base_size)
        )
        assert len(whole) > 1
        await finished(running)
        assert books.leader()[1] == epoch + 1
        books.check(ROUNDS, fleet)
        folders = [tmp_path / name / "coordinator" for name in running]
        assert all(
            not (folder / "blobs").exists() and not (folder / "updates").exists() for folder in folders
        )
