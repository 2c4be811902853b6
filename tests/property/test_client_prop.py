"""What comes from a broker may be anything: it is a prediction or a ``ValueError``, and nothing else."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lichen.client import Prediction, parse
from tests.support.sensors.publishing import line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = st.sampled_from([(key,) for key in line()] + [("targets", "mood", "label"), ("present", "acc")])


def kept(payload: str | bytes) -> Prediction | None:
    try:
        return parse(payload)
    except ValueError:
        return None


@given(st.binary(max_size=64))
def test_bytes_are_a_prediction_or_a_value_error(payload: bytes) -> None:
    kept(payload)


@given(PLACES, VALUES)
def test_a_line_with_something_else_in_a_place_is_one_or_a_value_error(
    place: tuple[str, ...], value: Any
) -> None:
    told = inner = line()
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    found = kept(json.dumps(told))
    if found is not None:
        assert found.confidence is None or isinstance(found.confidence, float)
        assert all(name in found.present for name in found.missing)


@given(st.integers(0, 1000))
def test_a_line_is_told_as_it_was_written(i: int) -> None:
    found = parse(json.dumps(line(i)))
    assert found.line == line(i)
    assert found.label == line(i)["label"]
    assert found.targets["skin-temperature"].value == line(i)["targets"]["skin-temperature"]["value"]
