"""A scripted coordinator for tests of the agent: serves blobs, records messages, sends scripted ones."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from models.contract import Blobs
from protocol.cohort import pack
from protocol.frames.chunks import Assembly, chunk_at
from protocol.frames.frame import digest, encode_frame, is_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec
from protocol.frames.tensors import encode as encode_tensor
from protocol.messages import (
    BlobPointer,
    BlobRef,
    Command,
    Fetch,
    Metric,
    Offer,
    Receipt,
    State,
    Want,
    decode,
    encode,
)
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic, coordinator_filters, device_topic, parse
from runtime.mqtt.link import Link, Message
from runtime.settings.load import MqttSettings

FLEET = "test"


@dataclass
class FakeCoordinator:
    """Run :meth:`run` as a task; drive it from the test."""

    host: str
    port: int
    blobs: dict[str, bytes] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    updates: list[bytes] = field(default_factory=list)
    pointers: list[BlobPointer] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    pulled: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    """By device: bytes of every chunk that was sent to it, by digest and index."""
    drop_chunks: set[int] = field(default_factory=set)
    """Chunks that are lost once."""
    fleet: str = FLEET
    """Or a further task's namespace."""

    def __post_init__(self) -> None:
        settings = MqttSettings(host=self.host, port=self.port, backoff_min_s=0.05, backoff_max_s=0.2)
        filters = [(f, 1) for f in coordinator_filters(self.fleet)]
        self.link = Link(settings, f"fake-coordinator-{self.fleet}", filters=filters)
        self.news = asyncio.Event()
        self._assemblies: dict[str, tuple[Assembly, bytearray]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.link.run())
            group.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self.link.messages():
            await self._handle(message)
            message.ack()
            self.news.set()

    async def until(self, true: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait until ``true()`` holds; checked after every message, and often."""
        async with asyncio.timeout(seconds):
            while not true():
                self.news.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self.news.wait()
                except TimeoutError:
                    continue

    async def announce(self, task: Task) -> None:
        await self.link.publish(
            broadcast_topic(self.fleet, Kind.TASK), encode(TaskAnnouncement.of(task)), retain=True
        )

    async def withdraw(self) -> None:
        """Clear the announcement."""
        await self.link.publish(broadcast_topic(self.fleet, Kind.TASK), b"", retain=True)

    def version(self, task: Task, blobs: Blobs, version: int = 0) -> BlobRef:
        """Make a global version fetchable; returns its manifest."""
        refs = {}
        for name, tensors in blobs.items():
            data = encode_frame(
                BlobHeader(name=name), {n: encode_tensor(t, Codec.FLOAT32) for n, t in tensors.items()}
            )
            refs[name] = self.put(data)
        manifest = Manifest(task=task.name, method=task.method, version=version, blobs=refs)
        return self.put(encode(manifest))

    def put(self, data: bytes) -> BlobRef:
        self.blobs[digest(data)] = data
        return BlobRef(digest=digest(data), size=len(data))

    async def offer(
        self, devices: str | list[str], task: Task, round_: int, base: BlobRef, attempt: int = 1
    ) -> None:
        """Offer a round to one device or several; it replaces the former offer for all devices."""
        asked = [devices] if isinstance(devices, str) else devices
        offer = Offer(
            task=task.name,
            round=round_,
            attempt=attempt,
            base=base.digest,
            base_size=base.size,
            closes_in_s=60,
            members=pack("0" * 32, asked),
        )
        await self.link.publish(broadcast_topic(self.fleet, Kind.OFFER), encode(offer), retain=True)

    async def receipt(self, device: str, task: Task, round_: int, frame: bytes, **kwargs: object) -> None:
        receipt = Receipt(
            task=task.name,
            round=round_,
            digest=digest(frame),
            **{"status": "accepted", **kwargs},  # type: ignore[arg-type]
        )
        await self.down(device, Kind.RECEIPT, encode(receipt))

    async def down(self, device: str, kind: Kind, payload: bytes) -> None:
        await self.link.publish(device_topic(self.fleet, device, kind), payload)

    async def _handle(self, message: Message) -> None:
        route = parse(message.topic)
        device = route.device or ""
        match route.kind:
            case Kind.STATE:
                self.states.append(decode(message.payload, State))
            case Kind.METRIC:
                self.metrics.append(decode(message.payload, Metric))
            case Kind.UPDATE if is_frame(message.payload):
                self.updates.append(message.payload)
            case Kind.UPDATE:
                await self._on_pointer(device, decode(message.payload, BlobPointer))
            case Kind.UP_BLOB:
                self._on_chunk(route.digest or "", route.index or 0, message.payload)
            case Kind.FETCH:
                await self._on_fetch(device, decode(message.payload, Fetch))
            case _:
                raise AssertionError(f"a device must not publish {message.topic}")

    async def _on_pointer(self, device: str, pointer: BlobPointer) -> None:
        self.pointers.append(pointer)
        digest_, size = pointer.blob.digest, pointer.blob.size
        if digest_ not in self._assemblies:
            self._assemblies[digest_] = Assembly(size, pointer.chunk_bytes), bytearray(size)
        missing = self._assemblies[digest_][0].missing()
        if missing:
            await self.down(device, Kind.RECEIPT, encode(Want(digest=digest_, missing=missing)))

    def _on_chunk(self, digest_: str, index: int, data: bytes) -> None:
        if index in self.drop_chunks:
            self.drop_chunks.discard(index)
            return
        assembly, buffer = self._assemblies[digest_]
        assembly.add(index, len(data))
        start = index * assembly.chunk_bytes
        buffer[start : start + len(data)] = data
        if assembly.complete and digest(bytes(buffer)) == digest_:
            self.updates.append(bytes(buffer))

    async def _on_fetch(self, device: str, fetch: Fetch) -> None:
        self.fetched.append(fetch.digest)
        data = self.blobs.get(fetch.digest)
        if data is None:
            await self.down(device, Kind.CMD, encode(Command(command="no_such_blob", digest=fetch.digest)))
            return
        for index in range(fetch.first, fetch.first + fetch.count):
            if index * fetch.chunk_bytes < len(data):
                topic = device_topic(self.fleet, device, Kind.DOWN_BLOB, fetch.digest, index)
                chunk = chunk_at(data, index, fetch.chunk_bytes)
                self.pulled.setdefault(device, {})[fetch.digest, index] = len(chunk)
                await self.link.publish(topic, chunk)
