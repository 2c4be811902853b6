"""Frames and a bundle as each format wrote them: read for ever; the newest is written the same to the byte.

A new case is free: add it to ``cases`` and run this file with ``PYTHONPATH=.``, which writes what is
missing. A changed file means another format number and a line in the changelog.
"""

import zlib
from pathlib import Path

import numpy as np
import pytest

from protocol.bundle import BundleManifest, Completion, pack, unpack
from protocol.frames.differences import packed_difference, packed_whole, unpacked
from protocol.frames.frame import decode_frame, digest, encode_frame
from protocol.frames.headers import BlobHeader, UpdateHeader
from protocol.frames.tensors import Codec, decode, encode, encode_steps
from protocol.messages import BlobRef
from protocol.tasks.task import Modality, Window

FILES = Path(__file__).parent / "frames"
HEADER = UpdateHeader(
    task="gestures",
    method="qqr",
    device="wrist-1",
    round=3,
    base="0f" * 32,
    samples=120,
    counts={"accelerometer": (60, 60), "gyroscope": (0, 58)},
    missing={"accelerometer": 0.0, "gyroscope": 0.5},
    quality={"accelerometer": 1.0, "gyroscope": 0.75},
    metrics={"loss": 0.3},
    extra={"note": ["b", 4]},
)
# Sixteenths with no two of one magnitude: every operation on them is exact, on any machine.
X = (np.arange(1, 257, dtype=np.float32) * np.float32(0.25)) ** 2
X[::3] *= -1
X = X.reshape(2, 128)
KEYS = np.arange(256).reshape(16, 16)
SINCE_V2 = {"v2_uint8.frame", "v2_steps.frame"}
"""What no frame of format 1 has."""
MANIFEST = BundleManifest(
    task="gestures",
    method="qqr",
    version=3,
    labels=("rest", "wave"),
    modalities=(Modality(name="accelerometer", channels=3, rate_hz=50, unit="m/s2", low=-160, high=160),),
    window=Window(),
    samples={"accelerometer": 128},
    inputs=("accelerometer", "present"),
    outputs=("probabilities", "logits"),
    round=3,
    base="0f" * 32,
    metrics={"accuracy": 0.875},
)
ON_GRAPHS = BundleManifest(
    task="plant",
    method="mmfed3_hide",
    version=3,
    inputs=("head", "relation", "entities", "relations"),
    outputs=("tails", "scores"),
    round=3,
    base="0f" * 32,
    graph=Completion(top_k=10, views=3, entity_dim=128, relation_dim=64),
)


def cases():
    """Content of each golden frame: header and encoded tensors."""
    made = {
        f"v2_{codec}.frame": (HEADER, {"head/fc.weight": encode(X, codec, keep=0.1, per_channel=True)})
        for codec in Codec
        if codec is not Codec.UINT8
    }
    made["v2_uint8.frame"] = (HEADER, {"keys/new": encode(KEYS, Codec.UINT8)})
    made["v2_mixed.frame"] = (
        HEADER,
        {
            "encoder/accelerometer/conv.0.weight": encode(X, Codec.INT8),
            "prototypes/accelerometer/values": encode(X, Codec.INT4, per_channel=True),
            "prototypes/accelerometer/rounds": encode(np.array([3.0, 0.0]), Codec.FLOAT32),
            "scalar": encode(2.5, Codec.INT2),
            "empty": encode(np.zeros((0, 4)), Codec.INT8),
        },
    )
    made["v2_blob.frame"] = (BlobHeader(name="encoder/accelerometer"), {"w": encode(X, Codec.FLOAT32)})
    return made


CASES = cases()
BUNDLED = {"model.onnx": bytes(range(64)), "labels.txt": b"rest\nwave\n"}
BUNDLES = {"v1.bundle": (MANIFEST, BUNDLED), "v1_graph.bundle": (ON_GRAPHS, {"model.onnx": bytes(range(64))})}


GRID = np.arange(-640, 640, dtype=np.float32).reshape(40, 32) / 8
BLOB = encode_frame(BlobHeader(name="head"), {"head/w": encode(GRID, Codec.FLOAT32)})
CHANGE = {"head/w": encode_steps(np.where(GRID % 7 == 0, GRID / 64, 0).astype(np.float32), 2.0**-9)}
CHANGED = packed_difference("head", BLOB, CHANGE)[1]
PACKED = {"v3_packed.frame", "v3_difference.frame"}


def reference(blob):
    return BlobRef(digest=digest(blob), size=len(blob))


NAMES = [*CASES, *(case.replace("v2", "v1") for case in CASES if case not in SINCE_V2)]


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_frame_is_still_read(name):
    header, tensors = CASES[name.replace("v1", "v2")]
    read, decoded = decode_frame((FILES / name).read_bytes(), type(header))
    assert read == header
    assert decoded.keys() == tensors.keys()
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(decoded[key], decode(tensor))


@pytest.mark.parametrize("name", CASES)
def test_a_golden_frame_is_still_written_to_the_byte(name):
    assert encode_frame(*CASES[name]) == (FILES / name).read_bytes()


def test_no_golden_file_is_without_its_case():
    assert {path.name for path in FILES.iterdir()} == {*NAMES, *BUNDLES, *PACKED}


def test_golden_packed_blobs_are_still_read():
    """They are not written again: another release of the compressor may give other bytes."""
    blob, before = BLOB, (FILES / "v3_packed.frame").read_bytes()
    assert unpacked(before, None, "head", reference(blob)) == blob
    after = unpacked((FILES / "v3_difference.frame").read_bytes(), blob, "head", reference(CHANGED))
    assert after == CHANGED


@pytest.mark.parametrize("name", BUNDLES)
def test_a_golden_bundle_is_still_read(name):
    manifest, files = unpack((FILES / name).read_bytes())
    assert files == BUNDLES[name][1]
    assert manifest.model_copy(update={"files": {}}) == BUNDLES[name][0]


def test_a_golden_frame_of_bytes_holds_them_as_they_are():
    assert bytes(range(256)) in (FILES / "v2_uint8.frame").read_bytes()


def test_golden_values_read_by_hand():
    # int4, per channel, as docs/protocol/README.md says: data (128 bytes), low and step (2 float32 each), one
    # byte of head before each of the last two, and the checksum with its head
    data = (FILES / "v2_int4.frame").read_bytes()
    body, checksum = data[:-5], data[-4:]
    assert zlib.crc32(data[:-4]) == int.from_bytes(checksum, "big")
    step = np.frombuffer(body[-8:], "<f4")
    low = np.frombuffer(body[-17:-9], "<f4")
    packed = body[-18 - 128 : -18]
    codes = np.array([[byte & 15, byte >> 4] for byte in packed]).reshape(2, 128)
    values = low[:, None] + codes * step[:, None]
    np.testing.assert_allclose(decode_frame(data, UpdateHeader)[1]["head/fc.weight"], values, rtol=1e-6)
    assert (np.abs(values - X) <= step[:, None] / 2 * 1.000001).all()


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    frames = {name: encode_frame(*case) for name, case in CASES.items()}
    frames["v3_packed.frame"] = packed_whole(BLOB)
    frames["v3_difference.frame"] = packed_difference("head", BLOB, CHANGE)[0]
    for file, content in (frames | {name: pack(*case) for name, case in BUNDLES.items()}).items():
        if not (FILES / file).exists():
            (FILES / file).write_bytes(content)
