"""Sets that share their names behave like copied ones, whichever of them is extended, in any order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from coordinator.round_machine.device_sets import DeviceSet, DeviceWords

NAMES = st.sampled_from([f"d{n}" for n in range(9)])
STEPS = st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.lists(NAMES, max_size=4)), max_size=14)


@given(STEPS)
def test_every_set_ever_made_stays_what_it_was(steps) -> None:
    made = [(DeviceSet(), frozenset())]
    for of, adds, names in steps:
        ours, plain = made[of % len(made)]
        after = (
            (ours.adding(names), plain | set(names))
            if adds
            else (ours.without(set(names)), plain - set(names))
        )
        made.append(after)
    for ours, plain in made:
        assert ours == plain
        assert list(ours) == sorted(plain)
        assert ours.first(2) == tuple(sorted(plain)[:2])
        assert [f"d{n}" in ours for n in range(9)] == [f"d{n}" in plain for n in range(9)]
        for others, known in made[-3:]:
            assert set(ours.not_in(others)) == plain - known
            assert set(others.not_in(ours)) == known - plain
    adapter = TypeAdapter(DeviceSet)
    ours, plain = made[-1]
    assert adapter.validate_json(adapter.dump_json(ours)) == plain


@given(STEPS)
def test_so_do_the_texts_of_devices(steps) -> None:
    made = [(DeviceWords(), {})]
    for n, (of, adds, names) in enumerate(steps):
        ours, plain = made[of % len(made)]
        new = dict.fromkeys(names, f"t{n}")
        left = {name: word for name, word in plain.items() if name not in new}
        made.append((ours.adding(new), plain | new) if adds else (ours.without(names), left))
    for ours, plain in made:
        assert dict(ours) == plain
        assert list(ours.items()) == sorted(plain.items())
    adapter = TypeAdapter(DeviceWords)
    ours, plain = made[-1]
    assert adapter.validate_json(adapter.dump_json(ours)) == plain


def test_what_is_no_list_of_names_is_refused() -> None:
    for wrong in ("abc", [1], [["a"]]):
        with pytest.raises(ValidationError):
            TypeAdapter(DeviceSet).validate_python(wrong)
    for wrong in ([["a"]], [["a", 1]], [["a", "b", "c"]]):
        with pytest.raises(ValidationError):
            TypeAdapter(DeviceWords).validate_python(wrong)
    with pytest.raises(KeyError):
        DeviceWords([("a", "x")])["b"]
