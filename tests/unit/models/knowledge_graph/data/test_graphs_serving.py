"""The tables that a device predicts with, among its private tensors."""

import numpy as np
import pytest

from models.knowledge_graph.data.embedding_tables import (
    ENTITIES,
    ENTITY_KEYS,
    NAMES,
    RELATION_KEYS,
    RELATIONS,
    Tables,
    keys_of,
    tables,
)

RNG = np.random.default_rng(1)
KEYS = RNG.integers(0, 256, (9, 16)).astype(np.uint8)
OWN = Tables(
    RNG.normal(size=(6, 2, 4)).astype(np.float32),
    KEYS[:6],
    RNG.normal(size=(6, 4)).astype(np.float32),
    KEYS[6:],
)


def test_tables_come_back_from_private_tensors():
    found = tables(OWN.tensors() | {"carry/rows": np.zeros((6, 4), np.float32)})
    assert found is not None
    np.testing.assert_array_equal(found.entities_EVD, OWN.entities_EVD)
    np.testing.assert_array_equal(found.relations_XC, OWN.relations_XC)
    assert found.entity_keys_E16.dtype == found.relation_keys_R16.dtype == np.uint8
    np.testing.assert_array_equal(found.entity_keys_E16, OWN.entity_keys_E16)


def test_rows_are_found_by_key():
    assert OWN.entity(KEYS[4].tobytes()) == 4
    assert OWN.relation(KEYS[7].tobytes()) == 1
    assert OWN.relation(KEYS[7].tobytes(), inverse=True) == 4
    assert OWN.entity(KEYS[7].tobytes()) is None
    assert OWN.relation(KEYS[4].tobytes(), inverse=True) is None


@pytest.mark.parametrize("name", NAMES)
def test_without_one_of_them_there_are_no_tables(name):
    private = OWN.tensors()
    del private[name]
    assert tables(private) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ENTITIES, np.zeros((5, 2, 4), np.float32)),
        (ENTITIES, np.zeros((6, 4), np.float32)),
        (ENTITIES, np.full((6, 2, 4), np.nan, np.float32)),
        (RELATIONS, np.zeros((5, 4), np.float32)),
        (ENTITY_KEYS, np.zeros((6, 15), np.float32)),
        (RELATION_KEYS, np.full((3, 16), 0.5, np.float32)),
    ],
)
def test_damaged_ones_count_as_none(name, value):
    assert tables(OWN.tensors() | {name: value}) is None


@pytest.mark.parametrize("odd", [np.nan, np.inf, -1.0, 256.0, 0.25])
def test_numbers_that_are_no_bytes_are_no_keys(odd):
    values = KEYS.astype(np.float32)
    values[2, 3] = odd
    assert keys_of(values) is None
