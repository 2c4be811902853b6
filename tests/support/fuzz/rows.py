"""Updates of rows for the fuzz tests, through the coordinator up to the next version."""

from collections.abc import Iterator

import cbor2
import numpy as np

from models.contract import Blobs, Update
from models.registry import method
from protocol.frames.cbor import SELF_DESCRIBED
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, Encoded, encode
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Task

TASK = Task(
    name="t",
    method="mmfed3_hide",
    graph=KnowledgeGraphTask(features=(Features(name="text", dim=4),), max_entities=50),
    config={"dim": 4},
)
TABLES = {"entities": (3, 1, 4), "entity_keys": (3, 16), "relations": (4, 2), "relation_keys": (2, 16)}
"""Shapes of a device's own tables."""
KEYS_K16 = np.arange(160).reshape(10, 16)
BASE: Blobs = {
    "projection/text": {"projection/text/weight": np.zeros((4, 4), np.float32)},
    "rows/d": {
        "rows/d/keys": KEYS_K16[::2].astype(np.float32),
        "rows/d/value": np.ones((5, 4), np.float32),
    },
}


def taken(data: bytes) -> Blobs:
    """The version that an update makes, if it is valid."""
    update = Update(*decode_frame(data, UpdateHeader))
    server = method("mmfed3_hide").server()
    server.check(TASK, BASE, update)
    fold = server.open(TASK, 1, BASE)
    fold.fold(update)
    return fold.close()


def frames() -> Iterator[tuple[str, bytes]]:
    """Frames of format 1: a mutated one passes, because only later formats have a checksum."""
    every = encode(np.array([0xFF, 0x03]), Codec.UINT8)
    projection = {"projection/text/weight": encode(np.full((4, 4), 0.5), Codec.INT8)}
    rows = {"rows/delta": encode(np.linspace(-1, 1, 40).reshape(10, 4), Codec.INT8)}
    first = {"keys/new": encode(KEYS_K16, Codec.UINT8), "keys/sent": every}
    yield "first.frame", _frame("e", first | rows | projection)
    later = {"keys/new": encode(KEYS_K16[1::2], Codec.UINT8), "keys/sent": every}
    yield "later.frame", _frame("d", later | rows)
    few = {"keys/sent": encode([0b101], Codec.UINT8), "rows/delta": encode(np.ones((2, 4)), Codec.FLOAT32)}
    yield "few.frame", _frame("d", few)
    gone = {"keys/gone": encode([0b10001], Codec.UINT8)}
    yield "gone.frame", _frame("d", few | gone)
    yield "all_gone.frame", _frame("d", few | {"keys/gone": encode([0b11111], Codec.UINT8)})
    yield "beyond.frame", _frame("d", few | {"keys/sent": encode([0b100001], Codec.UINT8)})
    yield "turned.frame", _frame("e", first | rows | {"keys/new": encode(KEYS_K16[::-1], Codec.UINT8)})
    yield "parts.frame", _frame("e", first | rows | {"keys/new": encode(KEYS_K16 + 0.5, Codec.FLOAT32)})
    bomb = Encoded(Codec.TOPK, (1 << 20, 16), b"")
    yield "bomb_keys.frame", _frame("e", first | rows | {"keys/new": bomb})


def _frame(device: str, tensors: dict[str, Encoded]) -> bytes:
    header = UpdateHeader(
        task="t",
        method="mmfed3_hide",
        device=device,
        round=1,
        base="ab" * 32,
        weight=9,
        samples=9,
        counts={"text": (4,)},
        missing={"text": 0.5},
        quality={"text": 1.0},
    )
    packed = {name: [e.codec.value, list(e.shape), e.data, e.low, e.step] for name, e in tensors.items()}
    return SELF_DESCRIBED + cbor2.dumps([1, header.model_dump(mode="json"), packed])
