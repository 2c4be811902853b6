"""The data sets that lichen can read, and their places on this machine."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lichen_lab.simulation.data.access import locations as places
from lichen_lab.simulation.data.sets import (
    av_mnist,
    dsads,
    fb15k237,
    fsdd,
    hapt,
    small_graphs,
    spar,
    spar_windows,
    uci_har,
    vehicle,
)
from protocol.errors import Misconfigured


@dataclass(frozen=True)
class KnownDataSet:
    """A data set that has a loader.

    Attributes:
        name: in commands.
        title: what it is.
        files: by folder, what must be in it (or the same with ``.gz``).
        otherwise: what to do if it is missing.
    """

    name: str
    title: str
    files: dict[str, tuple[str, ...]]
    otherwise: str


@dataclass(frozen=True)
class FoundDataSet:
    """The place of a data set.

    Attributes:
        known: which.
        paths: its files; empty if one is missing.
        size: bytes of them.
    """

    known: KnownDataSet
    paths: tuple[Path, ...]
    size: int

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of its files, each once."""
        return tuple(dict.fromkeys(path.parent for path in self.paths))

    def as_json(self) -> dict[str, Any]:
        """The place as JSON values."""
        return {
            "name": self.known.name,
            "title": self.known.title,
            "here": bool(self.paths),
            "folders": [str(folder) for folder in self.folders],
            "bytes": self.size,
            "otherwise": None if self.paths else self.known.otherwise,
        }


_BY_HAND: Final = f"see docs/data.md; name its folder in {places.DATA_VARIABLE}"
_MNIST: Final = tuple(f"{part}-{file}" for part in ("train", "t10k") for file in av_mnist.FILES)
KNOWN: Final = (
    KnownDataSet(
        "uci-har",
        "6 activities, 30 people, phone at the waist, windows of 2.56 s at 50 Hz",
        {uci_har.FOLDER: tuple(uci_har.file_name(part) for part in ("train", "test"))},
        "lichen data fetch uci-har",
    ),
    KnownDataSet(
        "hapt", "the streams behind uci-har, 61 recordings at 50 Hz", {hapt.FOLDER: (hapt.FILE,)}, _BY_HAND
    ),
    KnownDataSet(
        "spar",
        "7 shoulder exercises, 10 people, watch, 140 series at 50 Hz",
        {spar_windows.FOLDER: (spar_windows.FILE,)},
        "pip install lichen-lab",
    ),
    KnownDataSet(
        "av-mnist",
        "written digits (MNIST) beside spoken ones (FSDD)",
        {av_mnist.FOLDER: _MNIST, fsdd.FOLDER: (fsdd.FILE,)},
        _BY_HAND,
    ),
    KnownDataSet(
        "fashion-mnist", "10 kinds of clothing, in MNIST's form", {av_mnist.FASHION: _MNIST}, _BY_HAND
    ),
    KnownDataSet(
        "vehicle",
        "2 kinds of vehicle, 23 nodes that hear and feel them, 1,860 samples",
        {vehicle.FOLDER: (vehicle.FILE,)},
        _BY_HAND,
    ),
    KnownDataSet(
        "dsads",
        "19 activities, 8 people, sensors on five body units, windows of 5 s at 25 Hz",
        {dsads.FOLDER: tuple(dsads.file_name(person) for person in dsads.PEOPLE)},
        _BY_HAND,
    ),
    KnownDataSet(
        "fb15k-237",
        "a knowledge graph: 310,116 facts about 14,541 entities, with texts and numbers",
        {fb15k237.FOLDER: (fb15k237.FACTS, fb15k237.NUMBERS, fb15k237.TEXTS)},
        _BY_HAND,
    ),
    KnownDataSet(
        "small-graphs",
        "2 small knowledge graphs: umls (6,529 facts), kinships (10,686 facts)",
        {name: tuple(f"{part}.txt" for part in small_graphs.PARTS) for name in small_graphs.SHA256},
        "lichen data fetch small-graphs",
    ),
)


def find(known: KnownDataSet) -> FoundDataSet:
    """The data set's place, if it is complete.

    Raises:
        Misconfigured: ``LICHEN_DATA`` names no folder, or another variable no file.
    """
    if known.name == "spar" and (path := _of_package()) is not None:
        return FoundDataSet(known, (path,), path.stat().st_size)
    if known.name == "small-graphs" and (path := small_graphs.wheel()) is not None:
        return FoundDataSet(known, (path,), path.stat().st_size)
    tuple(places.roots())  # a wrong LICHEN_DATA is not a missing data set
    try:
        paths = tuple(
            places.file(folder, f"{name}.gz", name) for folder, names in known.files.items() for name in names
        )
    except Misconfigured:
        paths = ()
    return FoundDataSet(known, paths, sum(path.stat().st_size for path in paths))


def _of_package() -> Path | None:
    try:
        return spar.locate()
    except Misconfigured:
        return None
