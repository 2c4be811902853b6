"""Every decoder of foreign bytes: a value or a refusal, in bounded memory; the corpus and mutations of it.

``LICHEN_FUZZ_EXAMPLES`` (60) mutations for each decoder; CONTRIBUTING.md says how to fuzz longer.
"""

import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.fuzz.corpus import DIGEST, everything, files
from tests.support.fuzz.decoders import DECODERS, survives

EXAMPLES = int(os.environ.get("LICHEN_FUZZ_EXAMPLES", "60"))
MANY = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None if EXAMPLES > 1000 else settings.default.database,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SAVED = [(kind, path.name, path.read_bytes()) for kind, path in files()]
SEEDS = {kind: [data for of, _, data in SAVED if of == kind] for kind in DECODERS}
MIB = 1 << 20
GRAPH_FILES = {
    *("graph_triples", "graph_features", "graph_masks"),
    *("graph_keyed", "graph_tables", "text_encoder"),
}
IN_FILES = {"params", "windows", "recording", "recording_csv", "ledger"} | GRAPH_FILES
# One step of a mutation: where (share of the length), how many bytes go, what comes.
STEP = st.tuples(st.floats(0, 1), st.integers(0, 64), st.binary(max_size=16))
INTERESTING = st.sampled_from(
    [
        *(b"\x00", b"\xff", b"\x7f", b"\xff" * 4, b"\xff" * 8, b"\x5b" + b"\xff" * 8),
        *(b"9" * 30, b"-1", b"1e999", b"NaN", b"null", b"[" * 40, b'"', b"\\ud800"),
        *(b"\r\n", "\u2028".encode(), b"../", DIGEST.encode()),
    ]
)


def mutated(data: bytes, steps: list[tuple[float, int, bytes]]) -> bytes:
    for where, gone, content in steps:
        at = int(where * len(data))
        data = data[:at] + content + data[at + gone :]
    return data


def test_there_is_a_seed_for_every_decoder_and_a_decoder_for_every_seed():
    unseeded = {"frame_tight"} & {kind for kind, seeds in SEEDS.items() if not seeds}
    assert not unseeded
    assert {kind for kind, seeds in SEEDS.items() if not seeds} == set()
    assert {kind for kind, _, _ in SAVED} <= set(DECODERS)
    assert {(kind, name) for kind, name, _ in everything()} <= {(kind, name) for kind, name, _ in SAVED}


GOOD = {
    ("frame", "int8.frame"),
    ("frame", "model.frame"),
    ("message", "Offer.json"),
    ("message", "TaskAnnouncement.json"),
    ("bundle", "small.bundle"),
    ("closed_graph", "windows.onnx"),
    ("closed_graph", "int8.onnx"),
    ("closed_graph", "feature.onnx"),
    ("closed_graph", "completion.onnx"),
    ("topic", "chunk.txt"),
    ("invite", "named.txt"),
    ("enrolment", "request.json"),
    ("renewal", "request.json"),
    ("answer", "issued.json"),
    ("csr", "p256.pem"),
    ("certificate", "p256.pem"),
    ("qqr", "rows.json"),
    ("params", "small.npz"),
    ("windows", "small.npz"),
    ("windows", "contexts.npz"),
    ("recording", "small.npz"),
    ("recording_csv", "small.csv"),
    ("manifest", "one.json"),
    ("ledger", "one.json"),
    ("graph_triples", "small.tsv"),
    ("graph_features", "small.npz"),
    ("graph_masks", "small.npz"),
    ("text_encoder", "small.npz"),
    ("frame", "uint8.frame"),
    ("bundle", "graph.bundle"),
    ("message", "TaskGraph.json"),
    ("message", "StateGraph.json"),
    ("graph_keyed", "small.npz"),
    ("graph_tables", "small.npz"),
    ("mmfed3_hide", "first.frame"),
    ("mmfed3_hide", "later.frame"),
    ("mmfed3_hide", "gone.frame"),
    ("root", "first.json"),
    ("timestamp", "first.json"),
    ("snapshot", "first.json"),
    ("targets", "first.json"),
    ("trusted", "all.json"),
}


@pytest.mark.parametrize(("kind", "name", "data"), SAVED, ids=[f"{k}-{n}" for k, n, _ in SAVED])
def test_the_saved_corpus_is_read_or_refused_by_its_decoder(kind, name, data):
    said = survives(kind, data)
    if (kind, name) in GOOD:
        assert not said, f"{kind}/{name} should be readable: {said}"
    if "bomb" in name or "deep" in name or "lying" in name:
        assert kind == "cbor" or said, f"{kind}/{name} was taken"
    if kind == "closed_graph" and (kind, name) not in GOOD:
        assert said, f"{kind}/{name} was taken"


@pytest.mark.parametrize("kind", DECODERS)
def test_every_saved_input_is_read_or_refused_by_every_decoder(kind):
    for _, _, data in SAVED if kind not in IN_FILES else SAVED[::5]:
        survives(kind, data)


@pytest.mark.parametrize("kind", DECODERS)
def test_mutations_of_the_corpus(kind):
    steps = st.lists(STEP | st.tuples(st.floats(0, 1), st.integers(0, 8), INTERESTING), max_size=4)

    @MANY
    @given(st.sampled_from(SEEDS[kind]), steps, st.floats(0, 1), st.booleans())
    def check(seed, changes, end, cut):
        data = mutated(seed, changes)
        survives(kind, data[: int(end * len(data))] if cut else data)

    check()


@pytest.mark.parametrize("kind", DECODERS)
def test_joined_halves_of_two_seeds(kind):
    every = [data for _, _, data in SAVED if len(data) < 20_000]

    @settings(MANY, max_examples=max(10, EXAMPLES // 3))
    @given(st.sampled_from(SEEDS[kind]), st.sampled_from(every), st.floats(0, 1), st.floats(0, 1))
    def check(one, other, first, second):
        survives(kind, one[: int(first * len(one))] + other[int(second * len(other)) :])

    check()


@pytest.mark.parametrize(
    ("kind", "name", "data"),
    [
        one
        for one in SAVED
        if any(word in one[1] for word in ("bomb", "deep", "lying", "nested", "many", "big"))
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.timeout(20)
def test_a_bomb_takes_no_memory(kind, name, data):
    survives(kind, data)  # imports and caches are not the bomb's
    tracemalloc.start()
    try:
        survives(kind, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1100 * len(data) + 2 * MIB, f"{name} made {kind} take {peak} bytes"
    assert peak < 64 * MIB


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("frame", b"\xd9\xd9\xf7\x83\x01\xa0\xba\x00\x00\x80\x00" + b"\x61a\x00" * 32_768),
        ("frame", b"\xd9\xd9\xf7\x83\x01\xa0" + b"\x9a\x00\x01\x00\x00" + b"\x80" * 65_536),
        ("message", b'{"kind":"metric","device":"d","metrics":{' + b'"a":1,' * 20_000),
        ("message", b'{"kind":"want","digest":"' + b"a" * 100_000),
        ("topic", b"/" * 60_000),
        ("invite", b"lichen1." + b"A" * 100_000),
        ("recording_csv", b"t,acc.x\n" + b"1,1\n" * 20_000),
        ("recording_csv", b"t," * 5_000),
        ("graph_triples", b"\t" * 100_000),
        ("graph_triples", b"\n" * 100_000),
    ],
    ids=[
        "same key",
        "many items",
        "many metrics",
        "long text",
        "slashes",
        "long invite",
        "many rows",
        "columns",
        "tabs",
        "blank lines",
    ],
)
def test_large_inputs_end_in_time(kind, data):
    survives(kind, data)
