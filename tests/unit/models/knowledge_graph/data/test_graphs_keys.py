"""Keyed hashes of entities: what they are, that they tell nothing, and which row is whose."""

import hashlib

import numpy as np
import pytest

from models.knowledge_graph.data import keys
from protocol.errors import Misconfigured, Reason, Refused
from tests.support.methods.graph_cases import SECRET, house

OTHER = b"the secret of quite another fleet"


def wire(names, secret=SECRET) -> keys.Keys:
    """Keys as they travel."""
    return keys.union((keys.keys_for(secret, names),))


def test_a_key_is_the_hmac_of_the_name_by_its_definition():
    """RFC 2104: H(K ^ opad, H(K ^ ipad, text)), K filled up with zeros to the hash's block."""
    block = SECRET.ljust(64, b"\0")
    text = b"lichen/graph/entity/1\0" + "Zoë".encode()
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in block) + text).digest()
    outer = hashlib.sha256(bytes(b ^ 0x5C for b in block) + inner).digest()
    assert keys.key(SECRET, "Zo\u00eb") == keys.key(SECRET, " Zoe\u0308") == outer[:16]
    assert keys.key(OTHER, "Zoë") != outer[:16]


def test_keys_never_change():
    """They lie in journals and checkpoints: another key is another entity."""
    assert keys.key(SECRET, "boiler").hex() == "a245114c47e71d1c77007f0a213ec812"


@pytest.mark.parametrize("secret", [b"", b"fifteen bytes.."])
def test_a_short_secret_is_none(secret):
    with pytest.raises(Misconfigured, match=f"has {len(secret)} bytes; at least 16"):
        keys.key(secret, "boiler")


def test_keys_are_in_the_order_of_the_names_and_ascend_on_the_wire():
    names = house().entities
    made = [bytes(row) for row in keys.keys_for(SECRET, names)]
    assert made == [keys.key(SECRET, name) for name in names]
    assert [bytes(row) for row in wire(names)] == sorted(made)
    assert np.array_equal(wire(names[::-1]), wire(names))


def test_two_spellings_of_one_name_are_told_and_not_mixed_up():
    with pytest.raises(Misconfigured, match="have the same key") as refused:
        keys.keys_for(SECRET, ("pump", "Zo\u00eb", "Zoe\u0308"))
    assert r"'Zo\xeb' and 'Zoe\u0308'" in str(refused.value)


def test_a_collision_of_two_names_is_told_and_not_mixed_up(monkeypatch):
    monkeypatch.setattr(keys, "key", lambda _secret, name, _purpose: name[:1].encode().ljust(16, b"\0"))
    assert len(keys.keys_for(SECRET, ("boiler", "pump"))) == 2
    with pytest.raises(Misconfigured, match="'boiler' and 'bulb' have the same key"):
        keys.keys_for(SECRET, ("boiler", "pump", "bulb"))


def test_the_size_of_keys_tells_nothing_of_the_names():
    short, long = (wire(names) for names in (("a", "b"), ("a" * 900, "b" * 900)))
    assert short.shape == long.shape == (2, 16)
    assert short.dtype == np.uint8


def test_the_union_has_each_key_once_and_every_clients_rows_are_found():
    sets = (("a", "b", "c"), ("c", "d"), (), ("b", "e", "f", "a"))
    tables = [wire(names) for names in sets]
    union = keys.union(tables)
    assert [bytes(row) for row in union] == sorted(keys.key(SECRET, name) for name in "abcdef")
    assert np.array_equal(union, keys.union(tables[::-1]))
    clients_U = np.zeros(len(union), np.int64)
    for table in tables:
        row_E = keys.rows(union, table)
        assert np.array_equal(union[row_E], table)
        clients_U[row_E] += 1
    counted = {name: clients_U[keys.rows(union, wire((name,)))[0]] for name in "abcdef"}
    assert counted == {"a": 2, "b": 2, "c": 2, "d": 1, "e": 1, "f": 1}


def test_a_key_that_is_not_there_has_no_row():
    union = wire(("a", "b"))
    foreign = wire(("a", "b"), OTHER)
    assert keys.rows(union, foreign).tolist() == [-1, -1]
    assert keys.rows(keys.union([]), union).tolist() == [-1, -1]
    assert keys.rows(union, union[:0]).tolist() == []


def test_keys_that_end_in_zeros_are_told_apart():
    """numpy takes zeros at the end of such an element for nothing."""
    table = np.zeros((4, 16), np.uint8)
    table[1, 15], table[2, 0], table[3, :] = 1, 1, 255
    assert np.array_equal(keys.checked(table, 4, "d1"), table)
    assert np.array_equal(keys.union([table[2:], table[:3]]), table)
    assert keys.rows(table, table[::-1]).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        (lambda k: k[::-1], Reason.MALFORMED, "key 1 does not come after the one before it"),
        (lambda k: k[[0, 1, 1]], Reason.MALFORMED, "key 2 does not come after"),
        (lambda k: k[:, :8], Reason.MALFORMED, r"uint8 \(3, 8\), not uint8 \(E, 16\)"),
        (lambda k: k.reshape(-1), Reason.MALFORMED, r"\(48,\)"),
        (lambda k: k.astype(np.int64), Reason.MALFORMED, "int64"),
        (lambda k: np.concatenate([k, k]), Reason.TOO_LARGE, "6 entity keys, at most 3"),
    ],
)
def test_a_peers_keys_in_another_form_are_refused(change, reason, words):
    good = wire(("a", "b", "c"))
    assert np.array_equal(keys.checked(good, 3, "d1"), good)
    assert keys.checked(good[:0], 3, "d1").shape == (0, 16)
    with pytest.raises(Refused, match=f"d1: .*{words}") as refused:
        keys.checked(change(good), 3, "d1")
    assert refused.value.reason is reason
