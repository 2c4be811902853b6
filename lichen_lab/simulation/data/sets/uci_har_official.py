"""UCI-HAR's official layout: text files of numbers.

``UCI HAR Dataset/{train,test}/``: ``y_<part>.txt`` and ``subject_<part>.txt`` with an integer a line, and
``Inertial Signals/<signal>_<axis>_<part>.txt`` with the 128 samples of a window a line.
"""

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access.archive import ArchiveSource
from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import uci_har
from lichen_lab.simulation.data.sets.uci_har_digests import PARTS
from models.npz import BROKEN
from protocol.errors import Misconfigured, Reason, Refused

OWN_FOLDER: Final = "UCI HAR Dataset"
SAMPLE: Final = "train/y_train.txt"
FILES: Final = len(PARTS) * (len(uci_har.CHANNELS) + 2)
MAX_ROWS: Final = 20_000
Step = Callable[[int], None]


def read(source: ArchiveSource, step: Step = lambda _done: None) -> dict[Part, dict[str, NDArray[Any]]]:
    """Both parts: ``x`` (B, 9, 128) float32, ``y`` and ``subject`` (B,) int8, rows in the official order.

    Args:
        source: where the files are.
        step: told after each how many of the ``FILES`` were read.

    Raises:
        Refused: a file is missing, damaged, too large or not what it should be; the detail names it.
    """
    parts: dict[Part, dict[str, NDArray[Any]]] = {}
    done = 0
    for part in PARTS:
        y_B, subject_B = (_integers(source, f"{part}/{kind}_{part}.txt") for kind in ("y", "subject"))
        x = np.empty((len(y_B), len(uci_har.CHANNELS), uci_har.SAMPLES), np.float32)
        done += 2
        for column, channel in enumerate(uci_har.CHANNELS):
            x[:, column] = _table(source, name_of(part, channel), len(y_B), uci_har.SAMPLES)
            done += 1
            step(done)
        parts[part] = {"x": x, "y": y_B, "subject": subject_B}
        try:
            uci_har.check(parts[part], f"{source.where}: {part}")
        except Misconfigured as error:
            raise Refused(Reason.MALFORMED, str(error)) from None
    return parts


def name_of(part: Part, channel: str) -> str:
    """The file of one channel."""
    return f"{part}/Inertial Signals/{channel}_{part}.txt"


def _integers(source: ArchiveSource, name: str) -> NDArray[np.int8]:
    values_B = _table(source, name, None, 1)[:, 0]
    if not (np.abs(values_B) <= np.iinfo(np.int8).max).all() or (values_B != np.floor(values_B)).any():
        raise Refused(Reason.MALFORMED, f"{source.where}: {name}: not small integers, one a line")
    return values_B.astype(np.int8)


def _table(source: ArchiveSource, name: str, rows: int | None, columns: int) -> NDArray[np.float32]:
    """Numbers in lines; as many lines as given, or at most ``MAX_ROWS``."""
    with source.open(name) as file, warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of a file without numbers
        try:
            table = np.loadtxt(
                file, np.float32, comments=None, ndmin=2, max_rows=(rows or MAX_ROWS) + 1, encoding="ascii"
            )
        except (*BROKEN, Warning) as error:
            raise Refused(
                Reason.MALFORMED, f"{source.where}: {name}: not lines of numbers: {error}"
            ) from None
    if rows not in {None, len(table)} or not 1 <= len(table) <= MAX_ROWS or table.shape[1] != columns:
        raise Refused(
            Reason.MALFORMED,
            f"{source.where}: {name}: {len(table)} lines of {table.shape[1]} numbers, there should be "
            f"{rows or f'at most {MAX_ROWS}'} of {columns}",
        )
    return table
