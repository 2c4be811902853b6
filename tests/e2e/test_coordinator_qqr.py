"""The real method, workers and broker: devices pull the base, learn, and a bundle comes out."""

import asyncio
from contextlib import AsyncExitStack

import numpy as np
import pytest

from coordinator.app import run
from coordinator.status.history import read
from models.contract import ClientContext, WindowSet
from models.data import window_set
from models.registry import method
from models.seeds import derive_round_seed
from protocol import messages
from protocol.bundle import unpack
from protocol.frames.frame import decode_frame, digest, encode_frame
from protocol.frames.headers import BlobHeader, Manifest
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobRef, Command, Offer
from protocol.tasks.network import Encoder, Network
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Modality, Task
from protocol.topics import Kind, parse
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.fake import FLEET, FakeDevice, settings_for
from tests.support.network.brokers import BrokerProcess, broker  # noqa: F401 - a fixture
from tests.support.tasks import update_header

pytestmark = pytest.mark.long

TASK = Task(
    name="real",
    method="qqr",
    labels=("slow", "fast"),
    modalities=(Modality(name="acc", channels=2, rate_hz=10), Modality(name="gyro", channels=1, rate_hz=10)),
    network=Network(
        encoders={"acc": Encoder(width=4, depth=2), "gyro": Encoder(kind="lstm", width=4, depth=1)},
        feature_dim=8,
        hidden_dim=8,
    ),
    rounds=Rounds(count=1, deadline_s=60, min_devices=2, min_windows=1),
)


def windows_of(seed: int, count: int = 40) -> WindowSet:
    rng = np.random.default_rng(seed)
    y_B = rng.integers(0, 2, count)
    x = {
        m.name: (
            rng.normal(size=(count, m.channels, TASK.samples(m.name))) + 2.0 * y_B[:, None, None]
        ).astype(np.float32)
        for m in TASK.modalities
    }
    present_BM = np.ones((count, 2), np.bool_)
    present_BM[::5, 1] = False
    x["gyro"][::5] = 0
    return WindowSet(x, present_BM, np.ones((count, 2), np.float32), y_B.astype(np.int64))


class Learner(FakeDevice):
    """Pulls the base over the blob server and trains with the method's own client."""

    def __init__(self, port: int, name: str, folder, seed: int) -> None:
        super().__init__(port, name, chunk_bytes=1024)
        self.windows = windows_of(seed)
        self.store = BlobStore(folder / name)
        self.fetcher = Fetcher(self.link.publish, FLEET, name, self.store, 1024, stall_s=1.0)
        self.learning: asyncio.Task[None] | None = None

    async def _listen(self) -> None:
        async for message in self.link.messages():
            route = parse(message.topic)
            if route.kind is Kind.DOWN_BLOB:
                self.fetcher.on_chunk(route.digest, route.index, message.payload)
            elif message.payload:
                await self._take(messages.decode(message.payload, messages.Wire))
            message.ack()
            async with self.heard:
                self.heard.notify_all()

    async def _take(self, message: messages.Wire) -> None:
        if isinstance(message, Command):
            self.fetcher.on_no_such_blob(message.digest)
        if isinstance(message, Offer) and message.asks(self.name):
            self.offers.append(message)
            if self.learning is None:
                self.learning = asyncio.create_task(self.learn(message))
        else:
            await super()._take(message)

    async def learn(self, offer: Offer) -> None:
        path = await self.fetcher.fetch(BlobRef(digest=offer.base, size=offer.base_size), 20)
        manifest = Manifest.model_validate_json(path.read_bytes())
        state = {}
        for name, ref in manifest.blobs.items():
            await self.fetcher.fetch(ref, 20)
            _, state[name] = decode_frame(self.store.get(ref.digest), BlobHeader)
        context = ClientContext(
            TASK, self.name, offer.round, derive_round_seed(TASK.seed, offer.round, self.name)
        )
        result = await asyncio.to_thread(method("qqr").client().train, context, self.windows, state, {})
        head = update_header(
            TASK,
            self.name,
            round=offer.round,
            base=offer.base,
            samples=len(self.windows),
            counts=window_set.counts(self.windows, TASK),
            missing={"acc": 0.0, "gyro": 0.2},
            quality={"acc": 1.0, "gyro": 1.0},
            metrics=result.metrics,
            extra=result.extra,
        )
        codecs = result.codecs
        update = encode_frame(
            head, {n: encode(t, codecs.get(n, Codec.INT8)) for n, t in result.tensors.items()}
        )
        self.sent[digest(update)] = update
        await self.send_pointer(update, offer.round)

    async def send_pointer(self, update: bytes, round_: int) -> None:
        ref = BlobRef(digest=digest(update), size=len(update))
        pointer = messages.BlobPointer(task="real", round=round_, blob=ref, chunk_bytes=1024)
        await self.publish(Kind.UPDATE, messages.encode(pointer))

    async def send(self, update: bytes, round_: int = 1) -> None:
        await self.send_pointer(update, round_)


async def test_qqr_from_the_first_model_to_the_bundle(tmp_path, broker) -> None:  # noqa: F811
    window_set.save(tmp_path / "test.npz", windows_of(9))
    evaluation = {"data": tmp_path / "test.npz"}
    settings = settings_for(
        tmp_path, broker.port, exit_when_done=True, exit_linger_s=2.0, evaluation=evaluation
    )
    learners = [Learner(broker.port, f"d{i}", tmp_path, i) for i in range(2)]
    async with AsyncExitStack() as stack, asyncio.timeout(240):
        running = asyncio.create_task(run(settings, TASK, method("qqr").server()))
        for learner in learners:
            await stack.enter_async_context(learner)
        first = learners[0]
        await first.wait_for(lambda: bool(first.pointers) or running.done(), 200)
        assert first.pointers, read(tmp_path / "coordinator")["versions"]
        bundle = await first.fetcher.fetch(first.pointers[0].bundle, 20)
        manifest, files = unpack(bundle.read_bytes())
        assert await running == 0
    assert (manifest.version, manifest.task) == (1, "real")
    assert "model.onnx" in files
    found = read(tmp_path / "coordinator")
    assert found["versions"][1]["devices"] == ["d0", "d1"]
    assert all(0 <= v["metrics"]["accuracy"] <= 1 for v in found["versions"])
    assert sum(map(sum, found["confusion"]["matrix"])) == 40
    assert found["refusals"] == []
