"""Places of packed data sets: ``LICHEN_DATA``, ``../shared/data`` beside a checkout, or the cache.

A packed data set is a folder of npz (or idx) files with the names that docs/data.md lists.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.errors import Misconfigured

DATA_VARIABLE: Final = "LICHEN_DATA"
_CACHE_VARIABLE: Final = "XDG_CACHE_HOME"
FETCHABLE: Final = {"uci_har": "uci-har"}
"""Folder -> the word for ``lichen data fetch``."""


def cache_folder() -> Path:
    """Folder of fetched data and computed values; it may not exist yet, or not be writable.

    Raises:
        Misconfigured: the user has no home, and ``XDG_CACHE_HOME`` is not set.
    """
    base = Path(os.environ.get(_CACHE_VARIABLE, ""))
    if not base.is_absolute():  # the XDG specification: a relative path there is to be ignored
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            raise Misconfigured(
                f"no home folder for the cache of data sets: name one in {_CACHE_VARIABLE}"
            ) from None
    return base / "lichen" / "data"


def beside_checkout() -> Path:
    """``../shared/data`` seen from the checkout; an installed package has none there."""
    return Path(__file__).resolve().parents[5] / "shared" / "data"


def roots() -> Iterator[Path]:
    """Existing folders of data sets, in the order of search.

    Raises:
        Misconfigured: ``LICHEN_DATA`` names no folder.
    """
    if named := os.environ.get(DATA_VARIABLE):
        if not Path(named).is_dir():
            raise Misconfigured(f"{DATA_VARIABLE}={named}: there is no such folder; correct it, or unset it")
        yield Path(named)
    if beside_checkout().is_dir():
        yield beside_checkout()
    if cache_folder().is_dir():
        yield cache_folder()


def folder(name: str) -> Path:
    """The folder of a packed data set, as ``uci_har``, ``hapt_raw``, ``mnist``, ``fsdd``.

    Raises:
        Misconfigured: it is in none of these places; the message says what to do.
    """
    for root in roots():
        if (root / name).is_dir():
            return root / name
    fetch = f"lichen data fetch {FETCHABLE[name]} brings it, or " if name in FETCHABLE else ""
    raise Misconfigured(
        f"data set {name} is not here: {fetch}name the folder that holds {name}/ in {DATA_VARIABLE} "
        "(docs/data.md has its source and layout)"
    )


def file(name: str, *names: str) -> Path:
    """The first of these files that is in a data set's folder.

    Raises:
        Misconfigured: the data set is not here, or has none of them.
    """
    place = folder(name)
    for candidate in names:
        if (place / candidate).is_file():
            return place / candidate
    raise Misconfigured(f"{place}: it has no {' or '.join(names)} (docs/data.md has the layout)")
