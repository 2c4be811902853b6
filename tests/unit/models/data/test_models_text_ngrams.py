import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from models.data.text_ngrams import MAX_CHARACTERS, counts_of


def fnv(gram: str) -> int:
    """FNV-1a of 64 bits over code points, in plain Python."""
    h = 14695981039346656037
    for character in gram:
        h = ((h ^ ord(character)) * 1099511628211) % 2**64
    return h ^ (h >> 32)


@pytest.mark.parametrize(
    ("text", "plain"), [("Ab", " ab "), ("  a\tB \n c ", " a b c "), ("ÄÖ ﬁ😀", " äö fi😀 ")]
)
def test_it_counts_all_stretches_of_three_to_five_characters(text: Any, plain: Any) -> None:
    expected = np.zeros(50)
    for size in (3, 4, 5):
        for at in range(len(plain) - size + 1):
            expected[fnv(plain[at : at + size]) % 50] += 1
    np.testing.assert_array_equal(counts_of([text], 50)[0], expected)


def test_the_same_text_gives_the_same_counts_in_every_release() -> None:
    """Models depend on it: this digest never changes."""
    texts = ["The kettle boils.", "Der Kessel pfeift!", "湯が沸いた", "42", "\ud800 alone"]
    counts = counts_of(texts, 256)
    assert counts.sum(axis=1).tolist() == [48.0, 51.0, 12.0, 3.0, 18.0]
    assert hashlib.sha256(counts.astype("<f4").tobytes()).hexdigest()[:16] == "b3950a276ed92a11"


def test_another_hash_seed_of_python_changes_nothing() -> None:
    code = "from models.data.text_ngrams import counts_of; print(counts_of(['kettle'], 8).tolist())"
    runs = {
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_nothing_and_long_texts() -> None:
    assert not counts_of(["", " \n\t "], 16).any()
    assert counts_of([], 16).shape == (0, 16)
    long = "abcdefgh " * MAX_CHARACTERS
    np.testing.assert_array_equal(counts_of([long], 16), counts_of([long[:MAX_CHARACTERS]], 16))
