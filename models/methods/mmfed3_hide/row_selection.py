"""Selection of the rows to send, and of the rest for later rounds. NumPy only.

Shapes: E entities of the device's knowledge graph (n in the order of their keys), m that are sent, D columns.
"""

import math
from dataclasses import dataclass

import numpy as np

from models.contract import FloatArray
from models.knowledge_graph.data import keys as hashes
from models.knowledge_graph.data.graph import BoolArray
from models.knowledge_graph.data.keys import Keys
from models.methods.mmfed3_hide.messages import Sent
from protocol.frames.tensors import Codec, decode, encode
from protocol.tasks.links import Uplink


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows to send, and of every entity the change that waits for later rounds."""

    sent: Sent
    carry_ED: FloatArray


def packed(
    base_16: Keys, keys_E16: Keys, change_ED: FloatArray, share: float, uplink: Uplink, *, first: bool
) -> Packed:
    """Choose rows, and see what quantization will make of them.

    What does not travel waits, and without error carry what is rounded off does not. Of an entity that the
    base has no row of, nothing waits: the next base may have another's row, of which this is no change.

    Args:
        base_16: keys of the device's rows in the base, ascending.
        keys_E16: of its knowledge graph's entities, in any order.
        change_ED: against the base, with what earlier rounds left.
        share: of the E rows, so many travel (rounded up), those with the largest change.
        uplink: says in which codec they will travel; encoding is the same wherever it is done.
        first: it is the task's first round: nobody has a row, so that all begin alike, and wait.
    """
    codec = Codec(uplink.codec)
    keys_n16 = hashes.union((keys_E16,))
    new_E = hashes.rows(base_16, keys_E16) < 0
    new_k16 = hashes.union((keys_E16[new_E],))
    gone_b = hashes.rows(keys_n16, base_16) < 0
    place_E = hashes.rows(keys_n16, keys_E16)
    chosen_E = largest(change_ED, share)
    sent_n = np.zeros(len(keys_n16), np.bool_)
    sent_n[place_E[chosen_E]] = True
    row_n = np.zeros(len(keys_n16), np.int64)
    row_n[place_E] = np.arange(len(keys_E16))
    row_m = row_n[sent_n]  # rows of the knowledge graph, in the order of their keys
    delta_mD = change_ED[row_m]
    carry_ED = change_ED.copy()
    carry_ED[row_m] -= (
        decode(encode(delta_mD, codec, coarseness=uplink.coarseness)) if uplink.error_carry else delta_mD
    )
    if not first:
        carry_ED[new_E] = 0
    return Packed(Sent(new_k16, gone_b, keys_n16, sent_n, delta_mD), carry_ED)


def largest(change_ED: FloatArray, share: float) -> BoolArray:
    """The share of rows with the largest change, at least one; of equal ones the first."""
    count = max(1, math.ceil(share * len(change_ED)))
    length_E = np.square(change_ED, dtype=np.float64).sum(axis=1)
    chosen_E = np.zeros(len(change_ED), np.bool_)
    chosen_E[np.argsort(-length_E, kind="stable")[:count]] = True
    return chosen_E
