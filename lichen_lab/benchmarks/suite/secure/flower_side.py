"""Flower's side: the client's functions of its SecAgg+ on one vector; runs in Flower's environment.

    python flower_side.py VECTOR.npy NEIGHBOURS THRESHOLD RING_BITS REPEATS

Prints JSON: CPU milliseconds of each stage of one client, and bytes of its messages' contents, by repetition.
"""

import json
import sys
import time
from importlib import import_module
from typing import Any

import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import Key

mod: Any = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
"""Its package has a function of that name."""
SETUP, SHARE = mod.__dict__["_setup"], mod.__dict__["_share_keys"]
MASK, UNMASK = mod.__dict__["_collect_masked_vectors"], mod.__dict__["_unmask"]
CLIPPING = 4.0
WEIGHT = 1.0


def size_of(value: Any) -> int:
    """Bytes of what a message holds; names and lengths are not counted."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(size_of, value))
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return 8


def once(vector: Any, neighbours: int, threshold: int, bits: int) -> dict[str, float]:
    """One client's attempt among neighbours that all stay."""
    configs = {
        Key.SAMPLE_NUMBER: neighbours + 1,
        Key.SHARE_NUMBER: neighbours + 1,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: CLIPPING,
        Key.TARGET_RANGE: 1 << (bits - 8),
        Key.MOD_RANGE: 1 << bits,
        Key.MAX_WEIGHT: WEIGHT,
    }
    states = []
    for node in range(1, neighbours + 2):
        state = mod.SecAggPlusState()
        state.nid = node
        states.append(state)
    figures: dict[str, float] = {}
    sent = []

    def timed(stage: str, work: Any) -> Any:
        begun = time.process_time()
        made = work()
        figures[f"{stage} ms"] = 1e3 * (time.process_time() - begun)
        sent.append(size_of(made))
        return made

    me, others = states[0], states[1:]
    keys = [timed("keys", lambda: SETUP(me, configs))]
    keys += [SETUP(one, configs) for one in others]
    roster = {
        str(one.nid): (made[Key.PUBLIC_KEY_1], made[Key.PUBLIC_KEY_2])
        for one, made in zip(states, keys, strict=True)
    }
    timed("shares", lambda: SHARE(me, dict(roster)))
    delivered: dict[str, list[Any]] = {Key.SOURCE_LIST: [], Key.CIPHERTEXT_LIST: []}
    for one in others:
        made = SHARE(one, dict(roster))
        place = made[Key.DESTINATION_LIST].index(me.nid)
        delivered[Key.SOURCE_LIST].append(one.nid)
        delivered[Key.CIPHERTEXT_LIST].append(made[Key.CIPHERTEXT_LIST][place])
    parameters = ndarrays_to_parameters([vector])
    timed("masked", lambda: MASK(me, delivered, 1, parameters))
    asked = {Key.ACTIVE_NODE_ID_LIST: [one.nid for one in states], Key.DEAD_NODE_ID_LIST: []}
    timed("unmask", lambda: UNMASK(me, asked))
    return figures | {"bytes up": float(sum(sent))}


def main() -> None:
    """See the module."""
    path, neighbours, threshold, bits, repeats = sys.argv[1:]
    vector = np.load(path)
    found = [once(vector, int(neighbours), int(threshold), int(bits)) for _ in range(int(repeats))]
    sys.stdout.write(json.dumps({key: [one[key] for one in found] for key in found[0]}) + "\n")


if __name__ == "__main__":
    main()
