"""The link and the transfer of blobs over a proxy that swallows, cuts, slows and flips bits."""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from coordinator.ingest.chunked_uploads import Uploads
from coordinator.messaging.blob_server import BlobServer
from coordinator.messaging.sender import Sender
from edge_agent.config.agent import AgentSettings
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from protocol.errors import Refused, Transient
from protocol.messages import BlobPointer, BlobRef, Fetch, Receipt, Want, decode, encode
from protocol.topics import Kind, coordinator_filters, device_filters, device_topic, parse, ping_topic
from runtime.clock import SystemClock
from runtime.mqtt.link import Link
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from runtime.storage.spool import Spool
from tests.support.agent.parts import outbox_of
from tests.support.coordinator.uploads import chunks
from tests.support.network.brokers import BrokerProcess, mosquitto_process
from tests.support.network.links import quick, running
from tests.support.services import beside, until

pytestmark = pytest.mark.mosquitto
PROTOCOLS = ["5", "3.1.1"]
CHUNK = 65536


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> AsyncIterator[BrokerProcess]:
    process = mosquitto_process(tmp_path_factory.mktemp("m")).start()
    yield process
    process.stop()


@pytest.fixture
def proxy(broker):
    with Proxy(broker.port, seed=5) as made:
        yield made


def link_over(proxy: Proxy, name: str, *filters: str, protocol: str = "5", **options) -> Link:
    settings = quick(proxy.port, protocol=protocol, **options)
    return Link(settings, name, filters=[(f, 1) for f in filters], ping_topic=f"ping/{name}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("direction", ["both", "up", "down"])
async def test_a_black_hole_is_noticed_said_and_left_though_tcp_sees_nothing(proxy, direction, protocol):
    link = link_over(
        proxy, f"hole-{direction}-{protocol}", "a/#", protocol=protocol, ping_s=0.3, ping_timeout_s=0.3,
        connect_timeout_s=0.3,
    )  # fmt: skip
    async with running(link):
        await asyncio.sleep(1.0)
        assert link.counters.reconnects == 0, "a quiet link that answers pings stays"
        began = time.monotonic()
        proxy.black_hole(direction)
        await until(lambda: not link.connected, 5)
        assert time.monotonic() - began < 3
        await until(lambda: "loses every packet" in link.why or "no answer" in link.why)
        assert f"127.0.0.1:{proxy.port}" in link.why
        assert link.since > time.time() - 5
        with pytest.raises(Transient, match="a/1 was not published"):
            await link.publish("a/1", b"x")
        proxy.heal()
        await until(lambda: link.connected)
        await link.publish("a/1", b"x")


async def test_a_publish_into_a_black_hole_ends_with_the_connection_and_not_at_its_own_timeout(proxy):
    link = link_over(proxy, "sender", ping_s=0.3, ping_timeout_s=0.3)
    async with running(link):
        proxy.black_hole("both")
        began = time.monotonic()
        with pytest.raises(Transient, match=r"loses every packet|acknowledged nothing"):
            await link.publish("a/1", b"x", timeout_s=60)
        assert time.monotonic() - began < 3


async def test_a_slow_link_is_not_taken_for_a_dead_one(proxy):
    """A chunk takes longer than a ping may: what comes back for others shows that the link lives."""
    link = link_over(proxy, "slow", ping_s=0.5, ping_timeout_s=0.5, chunk_bytes=16384, window=2)
    async with running(link):
        proxy.throttle(40_000, "up")
        await asyncio.gather(*(link.publish(f"a/blob/{i}", bytes(16384)) for i in range(6)))
        assert link.counters.reconnects == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_flipped_bits_cost_connections_and_no_wrong_byte_gets_through_unseen(proxy, tmp_path, protocol):
    """MQTT has no checksum of its own; the digest of the blob does what TCP's did here."""
    async with stage(proxy, tmp_path, protocol, ping_s=0.5, ping_timeout_s=0.5) as here:
        data = os.urandom(40 * 4096)
        here.serve(data)
        proxy.flip_bits(1e-5)
        ref = BlobRef(digest=hashlib.sha256(data).hexdigest(), size=len(data))
        healing = asyncio.get_running_loop().call_later(1.5, proxy.heal)
        path = None
        async with asyncio.timeout(30):
            while path is None:
                with suppress(Refused):  # wrong twice: the learner tries again, too
                    path = await here.fetch(ref)
        healing.cancel()
        assert path.read_bytes() == data
        assert proxy.flipped > 0


class Stage:
    """An agent's transfer parts behind the proxy; the coordinator's beside the broker."""

    def __init__(self, agent: Link, cloud: Link, root: Path, fleet: str) -> None:
        self.fleet, self.device = fleet, "d"
        self.agent, self.cloud = agent, cloud
        self.blobs = BlobStore(root / "served")
        settings = AgentSettings(fleet=fleet, device=self.device, outbox={"resend_s": 2.0})
        self.spool = Spool(root / "spool.sqlite3", 1 << 30)
        self.outbox = outbox_of(agent, self.spool, settings)
        self.fetcher = Fetcher(
            agent.publish, fleet, self.device, BlobStore(root / "pulled"), lambda: agent.chunk_bytes
        )
        post = Sender(cloud, fleet)
        self.server = BlobServer(
            self.blobs, post, lambda *_: None, 4, SystemClock(), may_fetch=lambda *_: True
        )
        self.uploads = Uploads(chunks(root), 1 << 30, 1 << 30)
        self.uploads.enter_round(1)
        self.uploaded: list[bytes] = []

    def serve(self, data: bytes) -> None:
        self.blobs.put(data)

    async def fetch(self, ref: BlobRef) -> Path:
        return await self.fetcher.fetch(ref, 60)

    async def upload(self, data: bytes) -> None:
        name = hashlib.sha256(data).hexdigest()
        await asyncio.to_thread(self.spool.put, task="t", round_=1, digest=name, payload=data, carry=None)
        self.outbox.send_all()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(self.spool.pending):  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0.05)

    async def connected(self) -> None:
        self.outbox.send_all()
        self.fetcher.on_connected(resumed=self.agent.resumed)

    async def agent_reads(self) -> None:
        async for message in self.agent.messages():
            route = parse(message.topic)
            if route.kind is Kind.DOWN_BLOB:
                self.fetcher.on_chunk(route.digest or "", route.index or 0, message.payload)
            elif route.kind is Kind.RECEIPT:
                await self.outbox.on_answer(route, message.payload)
            message.ack()

    async def cloud_reads(self) -> None:
        async for message in self.cloud.messages():
            route = parse(message.topic)
            if route.kind is Kind.FETCH:
                await self.server.request(self.device, decode(message.payload, Fetch))
            elif route.kind is Kind.UPDATE:
                pointer = decode(message.payload, BlobPointer)
                await self._answer(
                    await asyncio.to_thread(self.uploads.announce, self.device, pointer, 1 << 30)
                )
            elif route.kind is Kind.UP_BLOB:
                whole = await asyncio.to_thread(
                    self.uploads.add, self.device, route.digest or "", route.index or 0, message.payload
                )
                if whole is not None:
                    await self._answer(whole)
            message.ack()

    async def _answer(self, answer: Want | bytes) -> None:
        if isinstance(answer, bytes):
            self.uploaded.append(answer)
            name = hashlib.sha256(answer).hexdigest()
            answer = Receipt(task="t", round=1, digest=name, status="accepted")
        topic = device_topic(self.fleet, self.device, Kind.RECEIPT)
        await self.cloud.publish(topic, encode(answer))


@asynccontextmanager
async def stage(proxy: Proxy, root: Path, protocol: str, **options) -> AsyncIterator[Stage]:
    fleet = f"{root.name}"[-40:].strip("_-.")
    agent = Link(
        quick(proxy.port, protocol=protocol, **options), f"agent-{fleet}",
        filters=list(device_filters(fleet, "d")),
        ping_topic=ping_topic(fleet, "d"),
    )  # fmt: skip
    cloud = Link(
        quick(proxy.upstream_port, protocol=protocol), f"cloud-{fleet}",
        filters=[(f, 1) for f in coordinator_filters(fleet)], ping_topic=ping_topic(fleet),
    )  # fmt: skip
    here = Stage(agent, cloud, root, fleet)
    services = (here.agent_reads, here.cloud_reads, here.server.run, here.outbox.run)
    async with running(cloud), running(agent, on_connect=here.connected), beside(*services):
        yield here
    here.spool.close()


@pytest.mark.parametrize("protocol", ["3.1.1"])
async def test_an_upload_resumes_across_cuts_byte_for_byte_and_hardly_anything_goes_twice(
    proxy, tmp_path, protocol
):
    data = os.urandom(4_500_000)
    async with stage(proxy, tmp_path, protocol) as here:
        proxy.throttle(1_250_000, "up")  # 10 Mbit/s
        proxy.cut_every(1.5)
        before = proxy.bytes_passed("up")
        await here.upload(data)
        sent = proxy.bytes_passed("up") - before
    assert here.uploaded == [data]
    assert proxy.cuts >= 2
    assert sent / len(data) < 1.05, f"{proxy.cuts} cuts"


@pytest.mark.parametrize("protocol", ["5"])
async def test_a_download_resumes_across_cuts_byte_for_byte_and_hardly_anything_comes_twice(
    proxy, tmp_path, protocol
):
    data = os.urandom(4_500_000)
    async with stage(proxy, tmp_path, protocol) as here:
        here.serve(data)
        proxy.throttle(1_250_000, "down")
        proxy.cut_every(1.5)
        before = proxy.bytes_passed("down")
        path = await here.fetch(BlobRef(digest=hashlib.sha256(data).hexdigest(), size=len(data)))
        came = proxy.bytes_passed("down") - before
    assert path.read_bytes() == data
    assert proxy.cuts >= 2
    assert came / len(data) < 1.10, f"{proxy.cuts} cuts, {here.fetcher.ignored} chunks twice"
