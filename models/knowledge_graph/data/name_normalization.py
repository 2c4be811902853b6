"""Names of entities and relations in one spelling, so that equal names compare as equal.

Unicode has several spellings of one text (an accent within a letter, or after it); this module uses NFC
(Unicode Standard Annex 15). Case and inner spaces are unchanged: they may distinguish names.
"""

import sys
import unicodedata
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_BYTES: Final = 1024
"""Of a name in UTF-8."""
_CONTROL: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, halves of surrogate pairs, separators of lines and paragraphs."""
_MARK: Final = "\ufeff"
"""At the beginning of a file it is no part of the text; within a text it has no meaning."""
_SHOWN: Final = 60


def clean(name: str) -> str:
    """The name in NFC, without spaces around it.

    Raises:
        ValueError: nothing is left, it is longer than :data:`MAX_BYTES`, or holds a control character; the
            message continues a subject such as "the head".
    """
    if len(name) > MAX_BYTES:  # before any further work on it
        raise ValueError(f"{shown(name)} has {len(name)} characters, at most {MAX_BYTES} bytes are read")
    normal = name.strip() if name.isascii() else unicodedata.normalize("NFC", name).strip()
    if not normal:
        raise ValueError("is empty")
    if not normal.isprintable():
        for character in normal:
            if unicodedata.category(character) in _CONTROL or character == _MARK:
                raise ValueError(f"{shown(name)} holds the control character U+{ord(character):04X}")
    size = len(normal) if normal.isascii() else len(normal.encode())
    if size > MAX_BYTES:
        raise ValueError(f"{shown(name)} has {size} bytes, at most {MAX_BYTES} are read")
    return normal


def words_of(array: NDArray[Any]) -> list[str]:
    """The texts of an untrusted array (n,).

    Raises:
        ValueError: it is no text array, or holds four bytes that are no character (for which numpy raises an
            unrelated error).
    """
    if array.ndim != 1 or array.dtype.kind != "U":
        raise ValueError(f"is {array.dtype} {array.shape}, not names (text, one axis)")
    points = np.ascontiguousarray(array).view(f"{array.dtype.str[0]}u4")
    if points.size and int(points.max()) > sys.maxunicode:
        raise ValueError(f"holds {int(points.max()):#x}, which is no character")
    words: list[str] = array.tolist()
    return words


def shown(name: str) -> str:
    """For messages: quoted, and cut to fit a line."""
    return ascii(name) if len(name) <= _SHOWN else f"{name[:_SHOWN]!a}..."
