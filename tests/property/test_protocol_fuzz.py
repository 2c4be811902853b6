"""Whatever bytes a peer sends: a value, or Refused; never another error, never much memory."""

import json
import tracemalloc

import cbor2
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol import messages
from protocol.bundle import BundleManifest, pack, unpack
from protocol.errors import Refused
from protocol.frames.cbor import SELF_DESCRIBED
from protocol.frames.frame import decode_frame, encode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.messages import BlobRef, Fetch, Metric, Offer, Receipt, State, Want
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.task import Modality, Task, Window
from protocol.topics import parse

DIGEST = "ab" * 32
HEADER = UpdateHeader(
    task="t",
    method="qqr",
    device="d",
    round=1,
    base=DIGEST,
    samples=9,
    counts={"a": (4, 5)},
    missing={"a": 0.5},
    quality={"a": 1.0},
    metrics={"loss": 0.5},
    extra={"deep": [1, {"x": [None, True, "y"]}]},
)
X = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
OF = dict.fromkeys(Codec, X) | {Codec.UINT8: np.arange(192).reshape(3, 64)}
FRAMES = [
    encode_frame(HEADER, {f"head/{codec}": encode(x, codec, per_channel=True, keep=0.2)})
    for codec, x in OF.items()
] + [encode_frame(HEADER, {"a/b": encode(X, Codec.INT4), "s": encode(1.5, Codec.INT8)})]
MANIFEST = BundleManifest(
    task="t",
    method="qqr",
    version=1,
    labels=("a", "b"),
    modalities=(Modality(name="a", channels=1, rate_hz=5),),
    window=Window(),
    samples={"a": 13},
    inputs=("a", "present"),
    outputs=("probabilities",),
    round=1,
    base=DIGEST,
)
BUNDLE = pack(MANIFEST, {"model.onnx": bytes(300), "b.txt": b"bb"})
CONTROL = [
    messages.encode(message)
    for message in (
        State(status="online", device="d"),
        Offer(task="t", round=1, base=DIGEST, base_size=5, closes_in_s=3.5),
        Receipt(task="t", round=1, digest=DIGEST, status="accepted"),
        Want(digest=DIGEST, missing=((0, 4),)),
        Fetch(digest=DIGEST, first=0, count=4, chunk_bytes=1024),
        Metric(device="d", metrics={"loss": 1.5}),
        TaskAnnouncement.of(Task(name="t", labels=("a", "b"), modalities=MANIFEST.modalities)),
    )
]
RELAXED = settings(deadline=None, max_examples=400)
CUT = st.tuples(st.floats(0, 1), st.floats(0, 1), st.binary(max_size=9))
CUTS = st.lists(CUT, min_size=1, max_size=4)
BYTES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4)


def spliced(data, cuts):
    """Runs of bytes replaced by others."""
    for start, length, content in cuts:
        at = int(start * len(data))
        data = data[:at] + content + data[at + int(length * 12) :]
    return data


def flipped(data, changes):
    """Single bytes replaced: lengths and types lie, the size stays."""
    changed = bytearray(data)
    for where, value in changes:
        changed[int(where * (len(data) - 1))] = value
    return bytes(changed)


def survives(read, data, spare_bytes):
    """``read`` gives a value or Refused, within Limits.max_expansion bytes for each of the input."""
    detail = "fine"
    tracemalloc.start()
    try:
        read(data)
    except Refused as refused:
        detail = refused.detail
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert 0 < len(detail) < 2000
    assert peak <= 1100 * len(data) + spare_bytes


def read_frame(data):
    header, tensors = decode_frame(data, UpdateHeader)
    assert isinstance(header, UpdateHeader)
    assert all(np.isfinite(x).all() for x in tensors.values())


@RELAXED
@given(st.binary(max_size=400))
@example(SELF_DESCRIBED + b"\x83\x01\xa0\x5b\x00\x00\x01\x00\x00\x00\x00\x00")
def test_random_bytes_as_frame(data):
    survives(read_frame, data, 1 << 20)
    survives(read_frame, SELF_DESCRIBED + data, 1 << 20)


@RELAXED
@given(st.sampled_from(FRAMES), CUTS)
def test_spliced_frames(data, cuts):
    survives(read_frame, spliced(data, cuts), 1 << 20)


@RELAXED
@given(st.sampled_from(FRAMES), BYTES)
def test_frames_with_flipped_bytes(data, changes):
    survives(read_frame, flipped(data, changes), 1 << 20)


ATOMS = st.none() | st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats() | st.text(max_size=9)
TREES = st.recursive(
    ATOMS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.tuples(
    st.sampled_from([*Codec, "int3"]) | TREES,
    st.lists(st.integers(-1, 70) | st.integers(0, 2**64 - 1), max_size=4) | TREES,
    st.binary(max_size=64) | TREES,
    st.binary(max_size=8) | TREES,
    st.binary(max_size=8) | TREES,
)


@RELAXED
@given(TREES, st.dictionaries(st.text(max_size=4) | st.just("head/w"), ENTRIES | TREES, max_size=3) | TREES)
def test_well_formed_nonsense_as_frame(header, tensors):
    plain = HEADER.model_dump(mode="json")
    for head in (header, plain):
        survives(read_frame, SELF_DESCRIBED + cbor2.dumps([1, head, tensors]), 1 << 20)


@RELAXED
@given(
    st.sampled_from(Codec),
    st.lists(st.integers(0, 5), max_size=3),
    st.binary(max_size=64),
    st.binary(max_size=16),
    st.binary(max_size=16),
)
def test_any_bytes_as_a_tensor(codec, shape, data, low, step):
    entry = {"head/w": [codec.value, shape, data, low, step]}
    survives(read_frame, SELF_DESCRIBED + cbor2.dumps([1, HEADER.model_dump(mode="json"), entry]), 1 << 20)


def read_control(data):
    assert messages.decode(data, State, Offer, Receipt, Want, Fetch, Metric, TaskAnnouncement)


@RELAXED
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_random_bytes_as_control_message(data):
    survives(read_control, data, 1 << 20)


@RELAXED
@given(st.sampled_from(CONTROL), CUTS)
def test_spliced_control_messages(data, cuts):
    survives(read_control, spliced(data, cuts), 1 << 20)


@RELAXED
@given(st.sampled_from(CONTROL), st.data())
def test_control_messages_with_a_foreign_value(payload, data):
    message = json.loads(payload)
    message[data.draw(st.sampled_from(sorted(message)))] = data.draw(
        st.recursive(
            ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
        )
    )
    survives(read_control, json.dumps(message).encode(), 1 << 20)


@RELAXED
@given(st.binary(max_size=200) | CUTS.map(lambda cuts: spliced(BUNDLE, cuts)))
def test_strange_bytes_as_bundle(data):
    survives(unpack, data, 1 << 20)


@RELAXED
@given(BYTES)
def test_bundles_with_flipped_bytes(changes):
    survives(unpack, flipped(BUNDLE, changes), 1 << 20)


@pytest.mark.parametrize("value", [0, 1, 255])
def test_every_byte_of_a_bundle_changed(value):
    for at in range(len(BUNDLE)):
        survives(unpack, BUNDLE[:at] + bytes([value]) + BUNDLE[at + 1 :], 1 << 20)


@RELAXED
@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["lichen", "v1", "f", "d", "b", "up", "blob", ""])).map("/".join)
)
def test_any_text_as_topic(topic):
    survives(lambda data: parse(data.decode()), topic.encode(), 1 << 20)


def test_a_blob_reference_needs_a_digest():
    with pytest.raises(ValueError, match="digest"):
        BlobRef(digest="AB" * 32, size=1)
