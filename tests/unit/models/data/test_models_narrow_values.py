from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.data.narrow_values import decode, encode

CASES = {
    "pixels": (np.arange(256, dtype=np.float32), 1),
    "16 bits": (np.array([-32768, 0, 32767], np.float32), 2),
    "16 bits as shares": (np.array([-32768, 1, 32767], np.float32) / np.float32(32768), 2),
    "too large": (np.array([0, 32768], np.float32), 4),
    "negative zero": (np.array([-0.0, 1.0], np.float32), 4),
    "a fraction behind many whole numbers": (np.append(np.zeros(500), 0.3).astype(np.float32), 4),
    "infinite": (np.array([np.inf, 1.0], np.float32), 4),
    "nothing": (np.empty(0, np.float32), 1),
}


@pytest.mark.parametrize(("x", "width"), CASES.values(), ids=CASES.keys())
def test_values_take_the_narrowest_type_that_loses_nothing(x: Any, width: Any) -> None:
    data = encode(x)
    assert len(data) == 1 + width * len(x)
    found, end = decode(b"before" + data + b"behind", 6, len(x))
    assert found.tobytes() == x.tobytes()
    assert end == 6 + len(data)


@given(
    st.one_of(
        arrays(np.float32, st.integers(0, 200), elements=st.floats(width=32)),
        arrays(np.int16, st.integers(0, 200)),
        arrays(np.uint8, st.integers(0, 200)),
    )
)
def test_any_values_come_back_bit_for_bit(values: Any) -> None:
    x = values.astype(np.float32)
    assert decode(encode(x), 0, len(x))[0].tobytes() == x.tobytes()


def test_damaged_values_are_refused() -> None:
    data = encode(np.arange(10, dtype=np.float32))
    for bad, error in ((b"\x09" + data[1:], ValueError), (data[:-1], ValueError), (b"", IndexError)):
        with pytest.raises(error):
            decode(bad, 0, 10)
