"""What travels besides projections: rows of entities, and the keys that say whose they are. Torch-free.

An update holds ``keys/new`` (k, 16), ascending, entities that the base's ``rows/<device>`` lacks (left out
where there are none); ``keys/gone``, a bitmap over the base's keys, bit 0 of byte 0 first, entities that are
in no fact of the device any more (likewise left out); ``keys/sent``, a bitmap over the ascending keys of the
base that are not gone and the new ones; and ``rows/delta`` (m, D), the changes of those whose bit is set, in
that order.

Shapes: b entities of the base, n of the device now, k new ones, m that are sent, D entity dim.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from models.contract import Blobs, FloatArray, Tensors
from models.knowledge_graph.data import keys as hashes
from models.knowledge_graph.data.embedding_tables import keys_of
from models.knowledge_graph.data.graph import BoolArray, IntArray
from models.knowledge_graph.data.keys import KEY_BYTES, Keys
from protocol.errors import Reason, Refused

NEW: Final = "keys/new"
GONE: Final = "keys/gone"
SENT: Final = "keys/sent"
DELTA: Final = "rows/delta"
ROWS: Final = "rows"
"""The part of the state that devices own."""
PROJECTION: Final = "projection"
MOST_WEIGHT: Final = 1 << 20
"""Of an update: triples beyond do not count."""


def rows_blob(device: str) -> str:
    """The blob of a device's rows."""
    return f"{ROWS}/{device}"


def keys_name(device: str) -> str:
    """The tensor with the keys of a device's rows."""
    return f"{ROWS}/{device}/keys"


def value_name(device: str) -> str:
    """The tensor with a device's rows."""
    return f"{ROWS}/{device}/value"


def projection_blob(modality: str) -> str:
    """The blob of a modality's projection."""
    return f"{PROJECTION}/{modality}"


def projection_name(modality: str) -> str:
    """The tensor of a modality's projection, ``(D, F)``."""
    return f"{PROJECTION}/{modality}/weight"


def base_keys(state: Blobs, device: str) -> Keys:
    """Keys of the rows that a state holds for a device, ascending; none where it holds none."""
    blob = state.get(rows_blob(device))
    return np.zeros((0, KEY_BYTES), np.uint8) if blob is None else blob[keys_name(device)].astype(np.uint8)


@dataclass(frozen=True, eq=False)
class Sent:
    """The rows of an update.

    Attributes:
        new_k16: uint8, ascending; keys that the base lacks.
        gone_b: bool; which of the base's the device has no more.
        keys_n16: uint8, ascending; those that it has.
        sent_n: bool; whose change travels.
        delta_mD: the changes, in that order.
    """

    new_k16: Keys
    gone_b: BoolArray
    keys_n16: Keys
    sent_n: BoolArray
    delta_mD: FloatArray

    @property
    def row_m(self) -> IntArray:
        """Places of what travels among all."""
        return np.flatnonzero(self.sent_n)

    def tensors(self) -> Tensors:
        """As they travel; keys and bitmap as exact bytes."""
        new = {NEW: self.new_k16.astype(np.float32)} if len(self.new_k16) else {}
        gone = {GONE: _packed(self.gone_b)} if self.gone_b.any() else {}
        return new | gone | {SENT: _packed(self.sent_n), DELTA: self.delta_mD}

    @classmethod
    def read(cls, tensors: Tensors, base_16: Keys, dim: int, most: int) -> "Sent":
        """What an update holds, against the device's keys in its base.

        Args:
            tensors: the update's.
            base_16: ascending.
            dim: D.
            most: entities that a device may have.

        Raises:
            Refused: the detail names the tensor.
        """
        new_k16 = _new(tensors, most)
        if (hashes.rows(base_16, new_k16) >= 0).any():
            raise Refused(Reason.MALFORMED, f"tensor {NEW!r} names an entity that the base has")
        gone_b = _bits(tensors, GONE, len(base_16)) if GONE in tensors else np.zeros(len(base_16), np.bool_)
        keys_n16 = hashes.union((base_16[~gone_b], new_k16))
        if len(keys_n16) > most:
            raise Refused(
                Reason.TOO_LARGE,
                f"tensor {NEW!r}: with the base's, {len(keys_n16)} entities, at most {most} are taken "
                "(graph.max_entities)",
            )
        sent_n = _bits(tensors, SENT, len(keys_n16))
        delta_mD = _tensor(tensors, DELTA)
        wanted = (int(sent_n.sum()), dim)
        if delta_mD.shape != wanted:
            raise Refused(
                Reason.WRONG_TENSORS,
                f"tensor {DELTA!r} has shape {delta_mD.shape}, {SENT!r} and the model say {wanted}",
            )
        return cls(new_k16, gone_b, keys_n16, sent_n, delta_mD)


def _tensor(tensors: Tensors, name: str) -> FloatArray:
    if name not in tensors:
        raise Refused(Reason.WRONG_TENSORS, f"tensor {name!r} is missing")
    return tensors[name]


def _new(tensors: Tensors, most: int) -> Keys:
    if NEW not in tensors:
        return np.zeros((0, KEY_BYTES), np.uint8)
    keys_k16 = keys_of(tensors[NEW])
    if keys_k16 is None:
        raise Refused(Reason.MALFORMED, f"tensor {NEW!r} is not (k, {KEY_BYTES}) whole numbers 0 to 255")
    return hashes.checked(keys_k16, most, f"tensor {NEW!r}")


def _packed(flags: BoolArray) -> FloatArray:
    """As a bitmap."""
    return np.packbits(flags, bitorder="little").astype(np.float32)


def _bits(tensors: Tensors, name: str, count: int) -> BoolArray:
    """The bitmap of so many entities."""
    values = _tensor(tensors, name)
    wanted = -(-count // 8)
    if values.shape != (wanted,) or not np.isin(values, np.arange(256)).all():
        raise Refused(
            Reason.WRONG_TENSORS,
            f"tensor {name!r} has shape {values.shape}; {count} entities take {wanted} whole numbers "
            "0 to 255",
        )
    bits = np.unpackbits(values.astype(np.uint8), bitorder="little")
    if bits[count:].any() or not bits.any():
        raise Refused(Reason.MALFORMED, f"tensor {name!r} has no bit set, or one beyond its {count} entities")
    return bits[:count].astype(np.bool_)
