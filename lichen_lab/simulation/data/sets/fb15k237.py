"""FB15K-237: 310,116 facts of Freebase about 14,541 entities, with their names, short texts and numbers.

K. Toutanova, D. Chen, Observed versus latent features for knowledge base and text inference, CVSC 2015; the
numbers: Y. Liu et al., MMKG: Multi-Modal Knowledge Graphs, ESWC 2019. Names are those of KG-BERT, short texts
those of Wikidata (about five words; 94 % of the entities have one). There are no pictures: where a paper has
them, the second modality here is ``numeric``, so no number that comes of it is the paper's.

Packed form, ``fb15k237/``: ``fb15k237_triples.npz`` (``train``, ``valid``, ``test`` (N, 3), ``entities``,
``relations``), ``entities.tsv.gz`` (a header, then id, mid, name, Wikidata's label, description, ...),
``mmkg_numeric_attributes.npz`` (``entity``, ``attribute``, ``value`` (n,), ``attributes``).
"""

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.cache import cached
from lichen_lab.simulation.data.access.graph_set import KnowledgeGraphSet
from models.contract import FloatArray
from models.knowledge_graph.data.graph import BoolArray, IntArray, KnowledgeGraph
from models.knowledge_graph.data.name_normalization import words_of
from models.knowledge_graph.data.text_features import TextEncoder
from models.tensors import read_arrays
from protocol.errors import Misconfigured

FOLDER: Final = "fb15k237"
FACTS: Final = "fb15k237_triples.npz"
TEXTS: Final = "entities.tsv.gz"
NUMBERS: Final = "mmkg_numeric_attributes.npz"
TEXT: Final = "text"
NUMERIC: Final = "numeric"
PARTS: Final = ("train", "valid", "test")
_WHAT: Final = "FB15K-237"
_MAX_TEXT_BYTES: Final = 64 * 1024**2
_COLUMNS: Final = ("id", "mid", "name", "wikidata_label", "wikidata_description")


def load(text_width: int = 128) -> KnowledgeGraphSet:
    """The graph, with features ``text`` (all entities) and ``numeric`` (12,402 of them).

    Args:
        text_width: values of ``text``: the leading directions of the n-grams of names and descriptions
            (:mod:`models.knowledge_graph.data.text_features`), fitted on all of them and kept in the cache.

    Raises:
        Misconfigured: the data set is not here, or a file is not in the packed form; names file and key.
    """
    path = locations.file(FOLDER, FACTS)
    arrays = read_arrays(path, _WHAT)
    graph, counts = _facts(arrays, path)
    titles, texts = read_texts(locations.file(FOLDER, TEXTS), graph.entities)
    text_EF = _encoded(texts, text_width)
    numeric_EF, has_E = _numeric(locations.file(FOLDER, NUMBERS), len(graph.entities))
    features = {TEXT: text_EF, NUMERIC: numeric_EF}
    present_EM = np.stack([text_EF.any(axis=1), has_E], axis=1)
    whole = KnowledgeGraph(graph.entities, graph.relations, graph.triples_N3, features, present_EM)
    return KnowledgeGraphSet(whole, *counts, titles)


def _facts(arrays: Mapping[str, NDArray[Any]], path: Path) -> tuple[KnowledgeGraph, tuple[int, int]]:
    """The graph without features, and the number of facts in the first two parts."""
    names = {key: _names(arrays, key, path) for key in ("entities", "relations")}
    parts = []
    for key in PARTS:
        part_N3 = arrays.get(key)
        if part_N3 is None or part_N3.dtype.kind not in "iu" or part_N3.shape[1:] != (3,):
            raise Misconfigured(f"{path}: key {key!r} must be integers (N, 3): head, relation, tail")
        parts.append(part_N3.astype(np.int64))
    try:
        graph = KnowledgeGraph.bare(names["entities"], names["relations"], np.concatenate(parts))
    except ValueError as error:
        raise Misconfigured(f"{path}: {error}") from None
    return graph, (len(parts[0]), len(parts[1]))


def _names(arrays: Mapping[str, NDArray[Any]], key: str, path: Path) -> tuple[str, ...]:
    if key not in arrays:
        raise Misconfigured(f"{path}: key {key!r} is missing")
    try:
        return tuple(words_of(arrays[key]))
    except ValueError as error:
        raise Misconfigured(f"{path}: key {key!r} {error}") from None


def read_texts(path: Path, entities: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Each entity's name, and its name with description.

    Raises:
        Misconfigured: it cannot be read, or is not about these entities in this order; names the line.
    """
    try:
        with gzip.open(path) as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
        lines = data.decode().removesuffix("\n").split("\n")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise Misconfigured(f"{path}: cannot be read as texts of entities: {error}") from None
    if len(data) > _MAX_TEXT_BYTES:
        raise Misconfigured(f"{path}: over {_MAX_TEXT_BYTES} bytes of text")
    if tuple(lines[0].split("\t")[: len(_COLUMNS)]) != _COLUMNS or len(lines) != len(entities) + 1:
        raise Misconfigured(
            f"{path}: it must begin with columns {', '.join(_COLUMNS)}, and have {len(entities)} lines more"
        )
    titles, texts = [], []
    for number, (line, entity) in enumerate(zip(lines[1:], entities, strict=True), 2):
        cells = line.split("\t")
        if len(cells) < len(_COLUMNS) or cells[1] != entity:
            raise Misconfigured(f"{path}: line {number} is not about {entity}")
        titles.append(cells[2])
        texts.append(f"{cells[2]}. {cells[4]}")
    return tuple(titles), texts


def _encoded(texts: list[str], width: int) -> FloatArray:
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:32]
    return cached(
        f"graph-text-1-{width}-{digest}",
        (len(texts), width),
        lambda: TextEncoder.fit(texts, width).encode(texts),
    )


def _numeric(path: Path, entities: int) -> tuple[FloatArray, BoolArray]:
    """Features of the numeric facts, and their entities; see :func:`ranked`."""
    arrays = read_arrays(path, f"{_WHAT}'s numbers")
    kinds = {"entity": "iu", "attribute": "iu", "value": "f", "attributes": "U"}
    for key, kind in kinds.items():
        if key not in arrays or arrays[key].dtype.kind not in kind or arrays[key].ndim != 1:
            raise Misconfigured(
                f"{path}: key {key!r} must be one axis of {'text' if kind == 'U' else 'numbers'}"
            )
    entity_n, attribute_n = (arrays[key].astype(np.int64) for key in ("entity", "attribute"))
    value_n, attributes = arrays["value"].astype(np.float64), len(arrays["attributes"])
    if not len(entity_n) == len(attribute_n) == len(value_n) or not np.isfinite(value_n).all():
        raise Misconfigured(f"{path}: 'entity', 'attribute', 'value' must be as long, 'value' finite")
    for key, index_n, most in (("entity", entity_n, entities), ("attribute", attribute_n, attributes)):
        if len(index_n) and not (index_n.min() >= 0 and index_n.max() < most):
            raise Misconfigured(f"{path}: key {key!r} must hold indices below {most}")
    return ranked(entity_n, attribute_n, value_n, (entities, attributes))


def ranked(
    entity_n: IntArray, attribute_n: IntArray, value_n: NDArray[np.float64], shape: tuple[int, int]
) -> tuple[FloatArray, BoolArray]:
    """Numbers of many units and scales as features: each one's rank among those of its attribute.

    Args:
        entity_n: of each fact; with more than one value of an attribute, an entity has their mean.
        attribute_n: likewise.
        value_n: in the attribute's own unit.
        shape: E entities, A attributes.

    Returns:
        (E, 2A) float32: the rank from -1 to 1 (equal values share theirs), 0 where there is none; then 1
        where there is one; and (E,) who has any.
    """
    entities, attributes = shape
    cell_c, which_n = np.unique(entity_n * attributes + attribute_n, return_inverse=True)
    mean_c = np.bincount(which_n, value_n) / np.bincount(which_n)
    e_c, a_c = np.divmod(cell_c, attributes)
    x_EF = np.zeros((entities, 2 * attributes), np.float32)
    for a in np.unique(a_c).tolist():
        mine = a_c == a
        sorted_m = np.sort(mean_c[mine])
        below = np.searchsorted(sorted_m, mean_c[mine], "left")
        upto = np.searchsorted(sorted_m, mean_c[mine], "right")
        x_EF[e_c[mine], a] = (below + upto) / len(sorted_m) - 1
        x_EF[e_c[mine], attributes + a] = 1
    has_E = np.zeros(entities, np.bool_)
    has_E[e_c] = True
    return x_EF, has_E
