"""Bytes of an update on the wire by codec, and the time to encode and decode it."""

import time
from collections.abc import Callable
from statistics import median
from typing import Final

from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.support.packet_bytes import publish_bytes
from lichen_lab.benchmarks.support.tasks import demo_task, noise_windows
from lichen_lab.simulation.data import spar_fleet
from lichen_lab.simulation.data.streams import Fixed
from lichen_lab.simulation.training.runner import VirtualDevice
from models import registry
from models.contract import ClientContext, LocalResult
from models.multimodal.network import two_branch_task
from protocol.frames.frame import decode_frame, digest, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec
from protocol.messages import BlobPointer, BlobRef
from protocol.messages import encode as encode_control
from protocol.tasks.task import Task
from protocol.topics import Kind, device_topic

_FLEET: Final = "demo"
_DEVICE: Final = "watch-01"
_CODECS: Final = (Codec.FLOAT32, Codec.FLOAT16, Codec.INT8, Codec.INT4, Codec.INT2)
_PROTOTYPES_OF: Final = "spar, 128-d"
_SHARE: Final = "% of the model's float32 bytes"


def message_bytes(frame: bytes, chunk_bytes: int = 65536) -> int:
    """All PUBLISH bytes of one update: the frame, or a pointer and chunks if it exceeds a chunk."""
    if len(frame) <= chunk_bytes:
        return publish_bytes(device_topic(_FLEET, _DEVICE, Kind.UPDATE), len(frame))
    name = digest(frame)
    pointer = BlobPointer(
        task="demo", round=1, blob=BlobRef(digest=name, size=len(frame)), chunk_bytes=chunk_bytes
    )
    total = publish_bytes(device_topic(_FLEET, _DEVICE, Kind.UPDATE), len(encode_control(pointer)))
    for index, start in enumerate(range(0, len(frame), chunk_bytes)):
        topic = device_topic(_FLEET, _DEVICE, Kind.UP_BLOB, name, index)
        total += publish_bytes(topic, min(chunk_bytes, len(frame) - start))
    return total


def learned(task: Task, count: int = 128) -> tuple[VirtualDevice, ClientContext, LocalResult]:
    """A device of this task after one round of training."""
    client = registry.method(task.method).client()
    device = VirtualDevice(_DEVICE, Fixed(noise_windows(task, count)))
    context = ClientContext(task, _DEVICE, 1, 0)
    return device, context, client.train(context, device.stream.at(1), client.initial(task, 0), {})


def _timed(work: Callable[[], object], repeats: int) -> float:
    """Median wall milliseconds of a call."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - start))
    return median(taken)


def _codec_rows(dataset: str, task: Task, codec: Codec, repeats: int) -> list[ResultRow]:
    """One full update at that codec: bytes, share of float32, milliseconds to write and to read."""
    started = time.perf_counter()
    task = task.model_copy(update={"uplink": task.uplink.model_copy(update={"codec": codec.value})})
    device, context, result = learned(task)
    model = sum(4 * values.size for name, values in result.tensors.items() if name not in result.codecs)

    def write() -> bytes:
        return device.pack(context, device.labelled(1), result, digest(b"base"))

    frame = write()
    size = message_bytes(frame)
    figures = {
        "bytes on the wire": float(size),
        _SHARE: 100 * size / model,
        "write ms": _timed(write, repeats),
        "read ms": _timed(lambda: decode_frame(frame, UpdateHeader), repeats),
    }
    seconds = time.perf_counter() - started
    setting = f"{codec.value}, model + prototypes"
    return figure_rows(dataset, task.method, setting, figures, seconds=seconds)


def _prototype_rows(task: Task, bits: int) -> list[ResultRow]:
    """An update with only the prototypes of all classes and modalities."""
    started = time.perf_counter()
    task = task.model_copy(update={"config": {**task.config, "upload": "prototypes", "prototype_bits": bits}})
    device, context, result = learned(task)
    frame = device.pack(context, device.labelled(1), result, digest(b"base"))
    payload = sum(len(tensor.data) for tensor in open_frame(frame, UpdateHeader)[1].values())
    seconds, setting = time.perf_counter() - started, f"{bits} bit, prototypes only"
    figures = {"bytes on the wire": message_bytes(frame), "bytes of the codes alone": payload}
    return figure_rows(_PROTOTYPES_OF, task.method, setting, figures, seconds=seconds)


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """All codecs on both tasks, and prototype uploads."""
    repeats = 3 if quick else 15
    rows: list[ResultRow] = []
    for bits in (2, 4, 8, 32):
        say(f"prototypes at {bits} bits")
        rows += _prototype_rows(demo_task(), bits)
    tasks = {
        "spar, 128-d": demo_task(),
        "two-branch": two_branch_task(),
        "the demo's network": spar_fleet.task(1),
    }
    for dataset, task in tasks.items():
        for codec in _CODECS:
            say(f"{dataset}: whole model at {codec.value}")
            rows += _codec_rows(dataset, task, codec, repeats)
    return rows


BENCH: Final = Bench(
    name="wire",
    run=run,
    goals=(
        Goal("bytes on the wire", 2048, setting="4 bit, prototypes only"),
        Goal(_SHARE, 27, setting="int8, model + prototypes"),
    ),
)
