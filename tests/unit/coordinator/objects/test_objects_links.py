"""URLs instead of chunks: which blobs, which devices, and what they open."""

import asyncio
import urllib.request

import pytest

from coordinator.messaging.blob_server import BlobServer, FetchBudget
from coordinator.messaging.receipts import AnswerQueue, ReceiptSender
from coordinator.messaging.sender import Sender
from coordinator.objects.blobs import DownloadLinks, SharedBlobs
from coordinator.objects.cache import BlobCache
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.messages import Fetch
from protocol.topics import Kind
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import FakeLink
from tests.support.coordinator.fake import FLEET
from tests.support.network.object_store import KEY, SECRET, objects_at
from tests.support.services import until

DATA = bytes(range(256)) * 100


class Service:
    def __init__(self, url: str, folder, *, above: int = 10_000, budget: int = 0, open_to=("d",)) -> None:
        self.link = FakeLink()
        self.blobs = SharedBlobs(objects_at(url), BlobCache(folder, 1 << 20), 3600.0)
        post = Sender(self.link, FLEET)
        self.receipts = ReceiptSender(
            post, WriteBehindBuffer(None, ManualClock()), None, "tiny", AnswerQueue()
        )
        self.server = BlobServer(
            self.blobs,
            post,
            self.receipts.enqueue,
            2,
            ManualClock(),
            FetchBudget(budget, ("d",)),
            may_fetch=lambda device, _: device in open_to,
            links=DownloadLinks(self.blobs, above, 60.0),
        )

    def commands(self, device: str) -> list:
        return self.link.to(device, Kind.CMD)

    def chunks(self) -> int:
        return sum("/blob/" in topic for topic, *_ in self.link.sent)


def ask(digest: str, *, download: bool | None = True) -> Fetch:
    return Fetch(digest=digest, first=0, count=2, chunk_bytes=4096, download=download)


@pytest.fixture
async def make(bucket, tmp_path):
    async with asyncio.TaskGroup() as group:
        running = []

        def made(**changes) -> Service:
            service = Service(bucket, tmp_path / f"cache{len(running)}", **changes)
            running.append(group.create_task(service.server.run()))
            running.append(group.create_task(service.receipts.run()))
            return service

        yield made
        for task in running:
            task.cancel()


async def test_a_device_that_asks_for_one_gets_a_url_that_opens_and_holds_no_secret(make) -> None:
    service = make()
    ref = service.blobs.put(DATA)
    await service.server.request("d", ask(ref.digest))
    await until(lambda: service.commands("d"))
    [command] = service.commands("d")
    assert (command.command, command.digest) == ("download", ref.digest)
    assert SECRET not in command.url
    assert "X-Amz-Expires=60" in command.url
    with await asyncio.to_thread(urllib.request.urlopen, command.url) as answer:
        assert answer.read() == DATA
    assert service.chunks() == 0
    assert service.server.linked == 1


async def test_small_blobs_and_devices_that_do_not_ask_get_chunks(make) -> None:
    service = make()
    small, large = service.blobs.put(DATA[:9000]), service.blobs.put(DATA)
    await service.server.request("d", ask(small.digest))
    await service.server.request("d", ask(large.digest, download=None))
    await until(lambda: service.chunks() == 4)
    assert service.commands("d") == []


async def test_a_url_costs_the_budget_and_is_not_given_to_who_may_not_fetch(make) -> None:
    service = make(budget=len(DATA))
    ref = service.blobs.put(DATA)
    await service.server.request("other", ask(ref.digest))
    await until(lambda: service.commands("other"))
    [refused] = service.commands("other")
    assert refused.command == "no_such_blob"
    await service.server.request("d", ask(ref.digest))
    await service.server.request("d", ask(ref.digest))
    await until(lambda: service.commands("d"))
    assert service.server.linked == 1
    assert service.server.over_budget == 1


def test_the_url_is_of_the_host_that_devices_reach(bucket) -> None:
    public = bucket + "&downloads=https://blobs.example.org:9000"
    url = objects_at(public).url("blobs/aa/x", 60.0)
    assert url.startswith("https://blobs.example.org:9000/lichen-")
    assert KEY in url, "the name of the key is part of a signature; its secret is not"
    assert SECRET not in url
