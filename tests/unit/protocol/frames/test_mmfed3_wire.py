"""What leaves a device: no name, relation, feature or network but the projections, in any form."""

import numpy as np
import pytest

from protocol.frames.tensors import Codec, encode
from tests.support.methods.graph_cases import random_graph
from tests.support.methods.mmfed3_cases import Fleet, frame_of, keyed, task_of

FORMS = (Codec.FLOAT32, Codec.FLOAT16, Codec.INT8, Codec.INT4)
_CHUNK = 16
_VARIED = 8


def pieces(x: np.ndarray) -> set[bytes]:
    """What of an array could be met in a frame: runs of bytes that nothing else would have by chance."""
    found = set()
    for codec in FORMS:
        for rows in (x, *(x if x.ndim > 1 else ())):  # with one scale for all, or one a row
            data = encode(rows, codec).data
            found |= {data[at : at + _CHUNK] for at in range(0, len(data) - _CHUNK + 1, _CHUNK)}
    return {piece for piece in found if len(set(piece)) >= _VARIED}


def met(frame: bytes, x: np.ndarray) -> bool:
    return any(piece in frame for piece in pieces(x))


@pytest.fixture(scope="module", params=["int8", "float32"])
def sent(request):
    """A device's second round, after which everything that it has was trained."""
    task = task_of(dim=32, codec=request.param, rows_share=0.5)
    graph = random_graph()
    fleet = Fleet(task, {"d0": keyed(graph, task)})
    fleet.step()
    fleet.step()
    result = fleet.results["d0"]
    return graph, fleet.graphs["d0"], result, frame_of(task, "d0", fleet.graphs["d0"], result)


def test_what_does_travel_is_found(sent):
    """Else the tests below would show nothing."""
    _, _, result, frame = sent
    rows = encode(result.tensors["rows/delta"], result.codecs["rows/delta"]).data
    assert rows[64:80] in frame
    if result.codecs["rows/delta"] is Codec.FLOAT32:
        assert met(frame, result.tensors["rows/delta"])
        assert met(frame, result.tensors["projection/text/weight"])


def test_no_name_is_in_a_frame(sent):
    graph, _, _, frame = sent
    names = {name for name in (*graph.entities, *graph.relations) if len(name) > 2}
    assert len(names) > 50
    assert not [name for name in names if name.encode() in frame]


def test_no_key_of_a_relation_is_in_a_frame(sent):
    _, keyed_graph, _, frame = sent
    assert not [key for key in keyed_graph.relation_keys_R16 if key.tobytes() in frame]
    assert not [key for key in keyed_graph.relation_keys_R16 if met(frame, key.astype(np.float32))]


def test_no_feature_is_in_a_frame(sent):
    _, keyed_graph, _, frame = sent
    for x_EF in keyed_graph.features.values():
        assert pieces(x_EF)
        assert not met(frame, x_EF)


def test_nothing_that_the_device_keeps_is_in_a_frame(sent):
    """Relations, its own rows, fusion, imputer, moments and carry."""
    _, _, result, frame = sent
    searched = {name: x for name, x in result.private.items() if pieces(x)}
    kinds = ("own/relations", "own/entities", "own/structure", "dense/imputer", "dense/own", "carry", "table")
    for kind in kinds:
        assert any(name.startswith(kind) for name in searched)
    assert not [name for name, x in searched.items() if name != "own/entity_keys" and met(frame, x)]


def test_an_update_holds_rows_keys_and_projections_alone(sent):
    _, _, result, _ = sent
    wanted = {"keys/sent", "rows/delta", "projection/text/weight", "projection/numeric/weight"}
    assert set(result.tensors) == wanted
    assert result.extra == {}
