"""A small fleet whose coordinator has its blobs in a bucket: it learns, rolls out, and outlives an outage."""

import asyncio
import ssl
from contextlib import AsyncExitStack

import pytest

from coordinator.app import run
from coordinator.objects.blobs import key_of
from coordinator.status.history import read
from edge_agent.messaging.blob_download import BlobDownload
from protocol.messages import BlobRef, Command
from protocol.topics import Kind, parse
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from tests.e2e.test_rollout_fleet import Trier, until
from tests.support.coordinator.fake import FLEET, TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.identity.pki import Pki
from tests.support.network.brokers import broker  # noqa: F401 - a fixture
from tests.support.network.object_store import hostile, objects_at

SIZE = 6000
"""Elements of the model: an update takes 24 kB, and so does a bundle."""


class Device(Trier):
    """Fetches its bundle as an agent does; with ``hosts``, over HTTPS."""

    def __init__(self, port: int, name: str, folder, pki: Pki, hosts: tuple[str, ...]) -> None:
        super().__init__(port, name, {1: "committed"})
        self.size, self.chunk_bytes = SIZE, 4096
        trusted = ssl.create_default_context(cafile=str(pki.ca))
        download = BlobDownload(hosts, trusted, 10.0) if hosts else None
        store = BlobStore(folder / name)
        self.fetcher = Fetcher(self.link.publish, FLEET, name, store, 4096, stall_s=1.0, download=download)
        self.fetched: dict[int, bytes] = {}
        self.fetching: set[asyncio.Task[None]] = set()

    async def _take(self, message) -> None:
        if isinstance(message, Command) and message.command == "download":
            self.fetcher.on_url(message.digest, message.url)
        elif isinstance(message, Command) and message.digest is not None:
            self.fetcher.on_no_such_blob(message.digest)
        await super()._take(message)

    async def _listen(self) -> None:
        forward = self.link.messages

        async def tapped():
            async for message in forward():
                route = parse(message.topic)
                if route.kind is Kind.DOWN_BLOB:
                    self.fetcher.on_chunk(route.digest, route.index, message.payload)
                yield message

        self.link.messages = tapped
        await super()._listen()

    def say(self, pointer, phase: str) -> None:
        super().say(pointer, phase)
        if pointer.version not in self.fetched:
            self.fetched[pointer.version] = b""
            task = asyncio.create_task(self._fetch(pointer.version, pointer.bundle))
            self.fetching.add(task)

    async def _fetch(self, version: int, ref: BlobRef) -> None:
        path = await self.fetcher.fetch(ref, 30)
        self.fetched[version] = await asyncio.to_thread(path.read_bytes)


@pytest.mark.long
async def test_it_learns_and_rolls_out_over_an_outage_of_the_bucket(tmp_path, broker, bucket) -> None:  # noqa: F811
    pki = Pki(tmp_path / "pki")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki.server(["127.0.0.1"]))
    with hostile(bucket) as (proxy, url), hostile(bucket, tls) as (public, _):
        urls = f"{url}&downloads={public.url}"
        settings = settings_for(
            tmp_path, broker.port,
            storage={"blobs": urls, "timeout_s": 1.0, "download_above_bytes": 1000},
            rollout={"mode": "staged", "canary": "device:d1", "waves": [1.0], "soak_s": 0.0},
            export={"every_rounds": 1},
        )  # fmt: skip
        failed: list[str] = []

        def slow_down(handler, _body) -> bool:
            failed.append(handler.command)
            return handler.error(503, "SlowDown")

        async with AsyncExitStack() as stack, asyncio.timeout(60):
            task = tiny_task(count=1, min_devices=3)
            running = asyncio.create_task(run(settings, task, TinyServer(), jobs=TinyJobs(size=SIZE)))
            stack.callback(running.cancel)
            hosts = (public.url.removeprefix("https://"),)
            fleet = [
                Device(broker.port, name, tmp_path, pki, given)
                for name, given in (("d1", hosts), ("d2", hosts), ("d3", ()))
            ]
            for one in fleet[:2]:
                await stack.enter_async_context(one)
            await until(lambda: any(said.version == 0 for said in fleet[0].rounds))
            proxy.fault = slow_down
            await stack.enter_async_context(fleet[2])
            await until(lambda: all(one.sent for one in fleet) and len(failed) > 2)
            assert [one.receipts for one in fleet] == [[], [], []], "nothing is acknowledged meanwhile"
            proxy.fault = lambda *_: False
            await until(lambda: all(one.fetched.get(1) for one in fleet), 50)
        bundles = {one.fetched[1] for one in fleet}
        assert len(bundles) == 1
        assert len(bundles.pop()) > 4 * SIZE
        assert {method for method, _ in public.asked} == {"GET"}
        assert len(public.asked) == 2, "one request a device"
        assert all(not one.commands for one in fleet[2:]), "who permits no host gets chunks"
        found = read(tmp_path / "coordinator")
        assert [one["devices"] for one in found["versions"]] == [[], ["d1", "d2", "d3"]]
        assert found["refusals"] == []
        assert not (tmp_path / "coordinator/blobs").exists()
        assert {key_of(one["manifest"]) for one in found["versions"][-2:]} <= {
            one.key for one in objects_at(bucket).below("blobs")
        }
