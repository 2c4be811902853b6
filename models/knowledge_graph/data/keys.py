"""Keyed hashes of entity names: the coordinator identifies entities by these.

Clients of a fleet share a secret (agreed at enrolment) that the coordinator does not have. A key is
HMAC-SHA256 (RFC 2104) of the name under it, cut to 16 bytes: the same for each client that has the entity,
whatever its order of rows, and of one size whatever the name. The coordinator can count and average, but can
neither read a name nor test a guess. Holders of the secret can test guesses: it protects names from the
coordinator and listeners, not from the fleet's members.

A client's keys are sent in ascending order, so that the order of its rows reveals nothing either.

Shapes: E entities of a client, U of all clients (the union), K asked for; a key is a row of 16 uint8.
"""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.knowledge_graph.data.graph import IntArray
from models.knowledge_graph.data.name_normalization import clean, shown
from protocol.errors import Misconfigured, Reason, Refused

KEY_BYTES: Final = 16
"""Among a million names, two share a key with a chance of 1.5e-27."""
MIN_SECRET_BYTES: Final = 16
ENTITIES: Final = b"lichen/graph/entity/1\x00"
"""Prefix of each name: the same secret may serve other purposes without giving the same key."""
RELATIONS: Final = b"lichen/graph/relation/1\x00"
"""Prefix for relations, whose keys are never sent."""

Keys = NDArray[np.uint8]
"""(E, 16)."""


def key(secret: bytes, name: str, purpose: bytes = ENTITIES) -> bytes:
    """The key of a name, 16 bytes; the same for all spellings that NFC unifies.

    Raises:
        Misconfigured: the secret is too short.
        ValueError: it is no name (:func:`models.knowledge_graph.data.name_normalization.clean`).
    """
    if len(secret) < MIN_SECRET_BYTES:
        raise Misconfigured(
            f"the secret for entity keys has {len(secret)} bytes; at least {MIN_SECRET_BYTES} are needed"
        )
    return hmac.digest(secret, purpose + clean(name).encode(), hashlib.sha256)[:KEY_BYTES]


def keys_for(secret: bytes, names: Iterable[str], purpose: bytes = ENTITIES) -> Keys:
    """Keys of names, in their order, (E, 16).

    Raises:
        Misconfigured: two names have one key: they are spellings of one, or (very improbable) collide; or the
            secret is too short.
        ValueError: one is no name.
    """
    found: dict[bytes, str] = {}
    for name in names:
        made = key(secret, name, purpose)
        if made in found:
            what = "relations" if purpose == RELATIONS else "entities"
            raise Misconfigured(
                f"{what} {shown(found[made])} and {shown(name)} have the same key: to the fleet they "
                "would be one; rename one of them, or merge their facts"
            )
        found[made] = name
    return np.frombuffer(b"".join(found), np.uint8).reshape(-1, KEY_BYTES)


def checked(keys: NDArray[Any], most: int, where: str) -> Keys:
    """Check a client's keys on the coordinator.

    Args:
        keys: as received.
        most: how many a client may have.
        where: the client, for messages.

    Raises:
        Refused: MALFORMED or TOO_LARGE: they are not (E, 16) uint8, ascending, each once, at most ``most``.
    """
    if keys.ndim != 2 or keys.shape[1] != KEY_BYTES or keys.dtype != np.uint8:  # noqa: PLR2004 - E, 16
        raise Refused(
            Reason.MALFORMED,
            f"{where}: entity keys are {keys.dtype} {keys.shape}, not uint8 (E, {KEY_BYTES})",
        )
    if len(keys) > most:
        raise Refused(Reason.TOO_LARGE, f"{where}: {len(keys)} entity keys, at most {most} are taken")
    flat_E = _flat(keys)
    if not (flat_E[:-1] < flat_E[1:]).all():
        first = int(np.flatnonzero(flat_E[:-1] >= flat_E[1:])[0])
        raise Refused(
            Reason.MALFORMED, f"{where}: entity key {first + 1} does not come after the one before it"
        )
    return np.ascontiguousarray(keys)


def union(tables: Iterable[Keys]) -> Keys:
    """All clients' keys, ascending, each once: the coordinator's rows, (U, 16), in any order of clients."""
    nothing = np.zeros((0, KEY_BYTES), np.uint8)
    return _unflat(np.unique(_flat(np.concatenate([nothing, *tables]))))


def rows(union_U16: Keys, keys_K16: Keys) -> IntArray:
    """The row of each key in an ascending table, (K,); -1 if it is missing."""
    table_U, asked_K = _flat(union_U16), _flat(keys_K16)
    if not len(table_U):
        return np.full(len(asked_K), -1)
    at_K = np.minimum(np.searchsorted(table_U, asked_K), len(table_U) - 1)
    return np.where(table_U[at_K] == asked_K, at_K, -1)


def _flat(keys_E16: Keys) -> NDArray[np.bytes_]:
    """Each key as one element. NumPy drops their last zeros, and compares as if they were there."""
    return np.ascontiguousarray(keys_E16).view(f"S{KEY_BYTES}").reshape(-1)


def _unflat(flat_E: NDArray[np.bytes_]) -> Keys:
    return np.ascontiguousarray(flat_E).view(np.uint8).reshape(-1, KEY_BYTES)
