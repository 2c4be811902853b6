"""Rows of all devices aggregated by entity: integer sums that do not depend on order. NumPy only.

Shapes: U entities of the fleet, n of a device, D entity dim.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, Self

import numpy as np

from models.aggregation.exact_sums import FRACTION_BITS, IntArray
from models.contract import Blobs, FloatArray, Tensors
from models.knowledge_graph.data import keys as hashes
from models.knowledge_graph.data.initial_embeddings import initial_rows
from models.knowledge_graph.data.keys import KEY_BYTES, Keys
from models.methods.mmfed3_hide.messages import ROWS, Sent, base_keys, keys_name, rows_blob, value_name
from models.partials import Arrays, Slice, Summed

MOST_DEVICES: Final = 4000
"""With rows, in one state: as many blobs as a version's manifest has room for."""
_OF: Final = "of/"
"""In a partial result, the start of the names of devices' keys."""
_LARGEST: Final = 32752.0
"""Float16's largest below 2**15: a tensor with larger values is scaled, which costs its smallest a bit."""


def devices_of(state: Blobs) -> list[str]:
    """Devices with rows in a state, sorted."""
    start = f"{ROWS}/"
    return sorted(name.removeprefix(start) for name in state if name.startswith(start))


class _Sums:
    """Changes by entity, in steps of 2**-24, and over how many devices; entities may come in late."""

    def __init__(self, keys_U16: Keys, dim: int) -> None:
        self.keys_U16 = keys_U16
        self.total_UD: IntArray = np.zeros((len(keys_U16), dim), np.int64)
        self.count_U: IntArray = np.zeros(len(keys_U16), np.int64)

    def grow(self, keys_n16: Keys) -> None:
        """Make room for entities."""
        if (hashes.rows(self.keys_U16, keys_n16) >= 0).all():
            return
        old_U16, total_UD, count_U = self.keys_U16, self.total_UD, self.count_U
        self.keys_U16 = hashes.union((old_U16, keys_n16))
        place_U = hashes.rows(self.keys_U16, old_U16)
        self.total_UD = np.zeros((len(self.keys_U16), total_UD.shape[1]), np.int64)
        self.count_U = np.zeros(len(self.keys_U16), np.int64)
        self.total_UD[place_U], self.count_U[place_U] = total_UD, count_U

    def add(self, keys_n16: Keys, total_nD: IntArray, count_n: IntArray | int) -> None:
        """Add to entities that there is room for, each at most once."""
        row_n = hashes.rows(self.keys_U16, keys_n16)
        self.total_UD[row_n] += total_nD
        self.count_U[row_n] += count_n


class RowsFold:
    """One round's rows.

    An entity moves by the mean change over the devices of the round that have it; one that did not send its
    row counts with a change of zero. A device's new entity that others had before does not count: its change
    is not one of the fleet's row, which the device did not have. An entity that no device has any more is
    forgotten: it would begin anew.

    Args:
        state: of the base.
        seed: the task's, of first values.
        dim: D.
        span: of first values.
    """

    sliced: ClassVar[bool] = False

    def __init__(self, state: Blobs, seed: int, dim: int, span: float) -> None:
        self._seed, self._dim, self._span = seed, dim, span
        self._before: dict[str, Keys] = {device: base_keys(state, device) for device in devices_of(state)}
        self._now: dict[str, Keys] = {}
        """Of the devices that sent."""
        self._base_U16 = hashes.union(self._before.values())
        self._value_UD = np.zeros((len(self._base_U16), dim), np.float32)
        for device, keys_n16 in self._before.items():
            # all copies of an entity are equal
            self._value_UD[hashes.rows(self._base_U16, keys_n16)] = state[rows_blob(device)][
                value_name(device)
            ]
        self._known, self._fresh = _Sums(self._base_U16, dim), _Sums(self._base_U16[:0], dim)
        self._ignores = False

    def fold(self, device: str, tensors: Tensors, most: int) -> None:
        """Add the rows of an update that was checked.

        Args:
            device: the sender.
            tensors: the update's.
            most: entities that a device may have.
        """
        base_16 = self._before.get(device, np.zeros((0, KEY_BYTES), np.uint8))
        sent = Sent.read(tensors, base_16, self._dim, most)
        if self._ignores:
            return
        total_nD: IntArray = np.zeros((len(sent.keys_n16), self._dim), np.int64)
        # exact: a power of two moves only the exponent
        total_nD[sent.row_m] = np.rint(sent.delta_mD * np.float32(2**FRACTION_BITS))
        base_n = hashes.rows(base_16, sent.keys_n16) >= 0
        fresh_n = hashes.rows(self._base_U16, sent.keys_n16) < 0
        self._known.add(sent.keys_n16[base_n], total_nD[base_n], 1)
        self._fresh.grow(sent.keys_n16[fresh_n])
        self._fresh.add(sent.keys_n16[fresh_n], total_nD[fresh_n], 1)
        self._now[device] = sent.keys_n16

    def merge(self, other: Self) -> None:
        """Merge another fold of the same round."""
        self._known.add(other._known.keys_U16, other._known.total_UD, other._known.count_U)
        self._fresh.grow(other._fresh.keys_U16)
        self._fresh.add(other._fresh.keys_U16, other._fresh.total_UD, other._fresh.count_U)
        self._now |= other._now

    def restrict(self, cut: Slice | None) -> None:
        """See :class:`models.partials.FoldPart`: sums of rows are no part of a slice."""
        self._ignores = cut is not None

    def partial(self) -> Arrays:
        """Sums by entity, and the entities of the devices that sent."""
        if self._ignores:
            return {}
        known, fresh = self._known, self._fresh
        sums: Arrays = {"known_UD": known.total_UD, "known_U": known.count_U}
        new: Arrays = {"keys_n16": fresh.keys_U16, "fresh_nD": fresh.total_UD, "fresh_n": fresh.count_U}
        return {**sums, **new, **{f"{_OF}{device}": keys_n16 for device, keys_n16 in self._now.items()}}

    def sums(self) -> Mapping[str, Summed]:
        """None: which entities there are differs by device."""
        return {}

    def absorb(self, partial: Arrays) -> None:
        """Add the result of :meth:`partial` of other devices' updates."""
        self._known.add(self._base_U16, partial["known_UD"], partial["known_U"])
        self._fresh.grow(partial["keys_n16"])
        self._fresh.add(partial["keys_n16"], partial["fresh_nD"], partial["fresh_n"])
        devices = {key.removeprefix(_OF): keys for key, keys in partial.items() if key.startswith(_OF)}
        self._now |= devices

    def close(self) -> Blobs:
        """Every device's rows after the round, in float16; of devices beyond the most, by name, none."""
        known_UD = self._value_UD + _means(self._known)
        fresh_16 = self._fresh.keys_U16
        fresh_UD = initial_rows(self._seed, fresh_16, self._dim, self._span) + _means(self._fresh)
        every_U16 = hashes.union((self._base_U16, fresh_16))
        value_UD = np.empty((len(every_U16), self._dim), np.float32)
        value_UD[hashes.rows(every_U16, self._base_U16)] = known_UD
        value_UD[hashes.rows(every_U16, fresh_16)] = fresh_UD
        value_UD = rounded(value_UD)
        return {
            rows_blob(device): _blob(device, keys_n16, value_UD[hashes.rows(every_U16, keys_n16)])
            for device, keys_n16 in sorted(self._taken().items())
        }

    def _taken(self) -> Mapping[str, Keys]:
        """Devices that have rows already, then new ones in the order of their names."""
        every = self._before | self._now
        order = sorted(every, key=lambda device: (device not in self._before, device))
        return {device: every[device] for device in order[:MOST_DEVICES]}


def _blob(device: str, keys_n16: Keys, value_nD: FloatArray) -> Tensors:
    return {keys_name(device): keys_n16.astype(np.float32), value_name(device): value_nD}


def _means(sums: _Sums) -> FloatArray:
    divisor_U1 = np.maximum(sums.count_U, 1)[:, None] * float(2**FRACTION_BITS)
    return (sums.total_UD / divisor_U1).astype(np.float32)


def rounded(value_UD: FloatArray) -> FloatArray:
    """What the codec float16 gives back of any of these rows: versions keep and send them so."""
    return np.clip(value_UD, -_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
