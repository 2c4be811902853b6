"""Whatever ``closed_graph`` takes, onnx's own parsers take, and it says the same to them.

``LICHEN_FUZZ_EXAMPLES`` (60) as in ``test_fuzz_decoders``, which sends mutated bytes through the same check.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import Refused
from tests.support.fuzz.corpus import CORPUS
from tests.support.fuzz.models import DEVICE_KEY, hiding
from tests.support.fuzz.protobuf_forms import BENDS, FIFTH, each, parse, write
from tests.support.methods.closed_models import agreed, by_cpp

EXAMPLES = int(os.environ.get("LICHEN_FUZZ_EXAMPLES", "60"))
REAL = {
    name: (CORPUS / "closed_graph" / f"{name}.onnx").read_bytes()
    for name in ("windows", "int8", "feature", "completion")
}


@pytest.mark.parametrize("name", REAL)
def test_what_export_writes_is_taken_and_says_the_same(name: str) -> None:
    assert agreed(REAL[name]).graph.node
    assert write(parse(REAL[name])) == REAL[name]


@pytest.mark.parametrize("bend", BENDS)
def test_a_field_in_another_form_is_refused_wherever_it_stands(bend: str) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
    )
    @given(st.sampled_from(sorted(REAL)), st.floats(0, 1, exclude_max=True))
    def check(name: str, where: float) -> None:
        items = parse(REAL[name])
        every = [*each(items)]
        data = write(items, every[int(where * len(every))], BENDS[bend])
        if data == REAL[name]:
            return  # it has no length that could be longer
        try:
            agreed(data)
        except Refused:
            return
        assert bend == "twice", "a form that export never writes was taken"  # a node may stand there twice

    check()


@pytest.mark.parametrize("fifth", FIFTH)
def test_cpp_sees_what_such_a_tag_hides(fifth: int) -> None:
    """Else these forms would show nothing."""
    hidden = by_cpp(hiding(REAL["feature"], fifth=fifth))
    named = [entry.value for t in hidden.graph.initializer for entry in t.external_data]
    assert named == [DEVICE_KEY]
    with pytest.raises(Refused):
        agreed(hiding(REAL["feature"], fifth=fifth))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
@given(st.sampled_from(sorted(REAL)), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3))
def test_changed_bytes_are_refused_or_say_the_same(name: str, changes: list[tuple[float, int]]) -> None:
    data = bytearray(REAL[name])
    for where, byte in changes:
        data[int(where * (len(data) - 1))] = byte
    try:
        agreed(bytes(data))
    except Refused:
        return
