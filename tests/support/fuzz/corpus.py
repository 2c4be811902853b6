"""The saved corpus of the fuzz tests: real bytes of every kind, made by our own code, and failures found.

``python -m tests.support.fuzz.corpus make`` writes the missing real inputs (keys and signatures differ each
time); ``keep DECODER HEX`` saves an input that caused a failure.
"""

import datetime as dt
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import cbor2
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge_agent.trust.trusted_metadata import TrustedMetadata
from lichen_lab.benchmarks.support.hostile_updates import ATTACKS
from protocol import messages
from protocol.bundle import BundleManifest, Completion, pack
from protocol.enrolment import EnrolAnswer, EnrolRefusal, EnrolRequest, Invite, RenewRequest
from protocol.errors import Reason
from protocol.frames.cbor import SELF_DESCRIBED
from protocol.frames.frame import encode_frame
from protocol.frames.headers import BlobHeader, Manifest, UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.log_lines import LogLine, LogLines
from protocol.messages import BlobPointer, BlobRef, Fetch, Metric, ModalityState, Offer, Receipt, State, Want
from protocol.tasks.announcement import TaskAnnouncement
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.task import Modality, Task, Window
from protocol.topics import Kind, device_topic
from tests.support.fuzz import models as fuzz_models
from tests.support.fuzz import rows as fuzz_rows
from tests.support.fuzz import secure as fuzz_secure
from tests.support.identity import trust as signing
from tests.support.methods.qqr_cases import task, with_prototypes

CORPUS = Path(__file__).resolve().parents[2] / "fuzz_corpus"
DIGEST = "ab" * 32
TASK = task()
HEADER = UpdateHeader(
    task="t",
    method="qqr",
    device="d",
    round=1,
    base=DIGEST,
    samples=9,
    counts={"acc": (3, 3, 3)},
    missing={"acc": 0.0, "gyro": 1.0},
    quality={"acc": 1.0},
    metrics={"loss": 0.5},
    extra={"prototypes": {"acc": {"classes": [0, 2], "counts": [3, 3]}}},
)
X = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)


def frames() -> Iterator[tuple[str, bytes]]:
    for codec in Codec:
        x = X if codec is not Codec.UINT8 else np.arange(192).reshape(3, 64)
        yield f"{codec.value}.frame", encode_frame(HEADER, {"head/w": encode(x, codec, per_channel=True)})
    state = with_prototypes(TASK)
    model = dict(state["head"]) | {"prototypes/acc/values": X[:2, :4]}
    real = encode_frame(HEADER, {name: encode(tensor, Codec.INT8) for name, tensor in model.items()})
    yield "model.frame", real
    for name, attack in ATTACKS.items():
        yield f"{name.replace(' ', '_')}.frame", attack(real, 1)
    for name, tensors in bombs().items():
        yield f"{name}.frame", SELF_DESCRIBED + cbor2.dumps([1, HEADER.model_dump(mode="json"), tensors])
    yield "deep.frame", SELF_DESCRIBED + b"\x83\x01\xa0" + b"\x81" * 5000
    yield "lying_length.frame", SELF_DESCRIBED + b"\x83\x01\xa0\x5b\x00\x00\x01\x00\x00\x00\x00\x00"
    yield "many_items.frame", SELF_DESCRIBED + b"\x83\x01\xa0\x99\x13\x88" + b"\x00" * 5000


def bombs() -> dict[str, dict[str, list[object]]]:
    """Small frames that claim to be large."""
    huge = [1 << 20, 1 << 20, 1 << 20]
    return {
        "bomb_shape": {"head/w": ["topk", huge, b"\x00" * 8, b"", b""]},
        "bomb_overflow": {"head/w": ["int8", [2**63, 2, 2**62], b"", b"", b""]},
        "bomb_empty": {"head/w": ["float32", [0, 2**40], b"", b"", b""]},
        "bomb_many": {f"head/w{n}": ["topk", [1 << 20], b"", b"", b""] for n in range(40)},
        "bomb_sparse": {"head/w": ["topk", [1 << 24], b"\x00" * 8, b"", b""]},
    }


def control() -> Iterator[tuple[str, bytes]]:
    blob = BlobRef(digest=DIGEST, size=70_000)
    known = {"acc": ModalityState(windows=(3, 3, 3), reasons=("flat",))}
    for message in (
        State(status="online", device="d", roles=("train",), modalities=known, windows=9),
        Offer(task="t", round=1, base=DIGEST, base_size=5, closes_in_s=3.5),
        BlobPointer(task="t", round=1, blob=blob, chunk_bytes=65536),
        Receipt(task="t", round=1, digest=DIGEST, status="refused", reason=Reason.OUTLIER, detail="far"),
        Want(digest=DIGEST, missing=((0, 1),)),
        Fetch(digest=DIGEST, first=0, count=4, chunk_bytes=1024),
        Metric(device="d", metrics={"loss": 1.5}),
        LogLines(device="d", lines=(LogLine(at=5.5, level="info", text="started"),)),
        TaskAnnouncement.of(TASK),
        messages.RoundAnnouncement(task="t", round=1, rounds=3, phase="collecting"),
        messages.ModelPointer(task="t", version=1, bundle=blob),
        messages.Command(command="no_such_blob", digest=DIGEST),
    ):
        yield f"{type(message).__name__}.json", messages.encode(message)
    plant = Task(
        name="t", method="mmfed3_hide", graph=KnowledgeGraphTask(features=(Features(name="text", dim=4),))
    )
    yield "TaskGraph.json", messages.encode(TaskAnnouncement.of(plant))
    told = {"text": ModalityState(windows=(7,), missing=0.5)}
    gateway = State(status="online", device="d", roles=("train",), modalities=told, windows=9, targets=())
    yield "StateGraph.json", messages.encode(gateway)
    several = State(status="online", device="d", modalities=known, targets=("label", "side"))
    yield "StateTargets.json", messages.encode(several)
    offer = Offer(task="t", round=1, base=DIGEST, base_size=5, closes_in_s=3.5, graphs={"acc": blob})
    yield "OfferGraphs.json", messages.encode(offer)
    yield "deep.json", b'{"kind":' + b"[" * 5000
    yield "deep_closed.json", b"[" * 3000 + b"]" * 3000
    yield "big_number.json", b'{"kind":"fetch","first":' + b"9" * 5000 + b"}"
    yield "surrogate.json", b'{"kind":"metric","device":"\\ud800","metrics":{}}'
    yield "infinity.json", b'{"kind":"metric","device":"d","metrics":{"a":1e999}}'


def bundles() -> Iterator[tuple[str, bytes]]:
    manifest = BundleManifest(
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
    yield "small.bundle", pack(manifest, {"model.onnx": bytes(300), "b.txt": b"bb"})
    of_graphs = BundleManifest(
        task="t",
        method="mmfed3_hide",
        version=1,
        inputs=("head", "relation", "entities", "relations"),
        outputs=("tails", "scores"),
        round=1,
        base=DIGEST,
        graph=Completion(top_k=3, views=1, entity_dim=4, relation_dim=2),
    )
    yield "graph.bundle", pack(of_graphs, {"model.onnx": bytes(300)})
    yield (
        "deflated.bundle",
        _zip({"manifest.json": b"{}", "model.onnx": bytes(1 << 20)}, zipfile.ZIP_DEFLATED),
    )
    yield "folder.bundle", _zip({"../manifest.json": b"{}"})


def _zip(files: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, how)
    return out.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    return _zip({f"{name}.npy": npy(array) for name, array in arrays.items()})


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=True)
    return out.getvalue()


def claiming(shape: str, dtype: str = "<f4") -> bytes:
    """An array's header that claims a shape, without data."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def arrays() -> Iterator[tuple[str, str, bytes]]:
    y = np.arange(4) % 3
    x = {f"x/{name}": np.zeros((4, 2, 16), np.float32) for name in ("acc", "gyro")}
    ones = {"present": np.ones((4, 2), bool), "quality": np.ones((4, 2), np.float32)}
    yield "windows", "small.npz", npz(**x, **ones, y=y)
    yield "params", "small.npz", npz(**{"head/w": X, "head/b": X[0]})
    times = np.arange(5.0)
    recorded = {"acc/t": times, "acc/values": np.zeros((5, 2), np.float32)}
    yield "recording", "small.npz", npz(**recorded, **{"label/t": times[:1], "label/values": y[:1]})
    targets = {"target/side/t": times[:2], "target/side/values": y[:2], "target/speed/t": times}
    tracks = recorded | targets | {"target/speed/values": np.array([1.0, np.nan, 1e300, -np.inf, 0.5])}
    yield "recording", "targets.npz", npz(**tracks)
    pixels = np.arange(5 * 2 * 3 * 4, dtype=np.uint8).reshape(5, 2, 3, 4)
    rows = {"camera/t": times, "camera/values": pixels.reshape(5, -1), "camera/shape": np.array([2, 3, 4])}
    words = {"words/t": times[:2], "words/text": np.array(["it boils", "äö\U0001f600"])}
    yield "recording", "kinds.npz", npz(**rows, **words, **{"eye/t": times, "eye/values": pixels})
    yield "recording_csv", "texts.csv", b't,acc.x,words.text\n0.0,1,it boils\n0.5,2,\n1.0,,"a, b"\n'
    table = b"t,acc.x,label,target.speed,target.side\n0.0,1,0,1e308,\n0.5,2,0,nan,1\n1.0,3,1,-inf,0\n"
    yield "recording_csv", "targets.csv", table
    yield "windows", "targets.npz", npz(**x, **ones, y=y, **{"target/side": np.array([0, 1, np.nan, 9e9])})
    past = {f"context/{name}": zeros for name, zeros in x.items()} | {"context/points": np.full((4, 2), 16)}
    yield "windows", "contexts.npz", npz(**x, **ones, y=y, **past)
    yield "recording_csv", "small.csv", b"t,acc.x,acc.y,label\n0.0,1,2,0\n0.5,,2,\n1.0,3,4,1\n"
    for kind in ("params", "windows", "recording"):
        yield kind, "bomb_shape.npz", _zip({"acc/t.npy": claiming("(10000000000000,)")})
        yield kind, "negative.npz", _zip({"acc/t.npy": claiming("(-1, 4)")})
        yield kind, "nested.npz", _zip({"acc/t.npy": claiming("(" * 3000)})
        yield kind, "object.npz", npz(**{"acc/t": np.array([{"a": 1}], object)})
        yield kind, "deflated.npz", _zip({"acc/t.npy": npy(np.zeros(1 << 18))}, zipfile.ZIP_DEFLATED)
        yield kind, "lying_size.npz", _lying_size()


def _lying_size() -> bytes:
    """The directory of the archive claims a gigabyte; the archive has a hundred bytes."""
    data = bytearray(_zip({"acc/t.npy": claiming("(268435456,)")}))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (1 << 30).to_bytes(4, "little")
    return bytes(data)


def identity() -> Iterator[tuple[str, str, bytes]]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "d")])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=90))
        .sign(key, hashes.SHA256())
    )
    csr_pem = csr.public_bytes(serialization.Encoding.PEM)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    yield "csr", "p256.pem", csr_pem
    yield "certificate", "p256.pem", pem
    yield "chain", "two.pem", pem * 2
    yield "chain", "many.pem", pem * 12
    token = "t" * 43
    invite = Invite(url="https://c:8443", ca_sha256=DIGEST, token=token, device="d")
    yield "invite", "named.txt", invite.encode().encode()
    request = EnrolRequest(token=token, device="d", csr=csr_pem.decode())
    yield "enrolment", "request.json", messages.encode(request)
    renewal = RenewRequest(certificate=pem.decode(), csr=csr_pem.decode(), signature="AAAA")
    yield "renewal", "request.json", messages.encode(renewal)
    answer = EnrolAnswer(status="issued", fleet="f", device="d", certificate=pem.decode(), ca=pem.decode())
    yield "answer", "issued.json", messages.encode(answer)
    yield "refusal", "bad_invite.json", messages.encode(EnrolRefusal(reason=Reason.BAD_INVITE, detail="no"))


def trust() -> Iterator[tuple[str, str, bytes]]:
    """Signed metadata, and the part that a device stores."""
    first, one = signing.root(), signing.release(1)
    yield "root", "first.json", first
    yield "timestamp", "first.json", one.timestamp
    yield "snapshot", "first.json", one.snapshot
    yield "targets", "first.json", one.targets
    yield "trusted", "all.json", signing.fed(TrustedMetadata.begin(first), one).encode()
    graphs = {"acc": BlobRef(digest=DIGEST, size=9)}
    offer = Offer(task="t", round=2, base=DIGEST, base_size=99, closes_in_s=1.0, graphs=graphs)
    yield "signed_offer", "graphs.json", signing.signed_offer(offer).signed.encode()
    announcement = signing.signed_task(TaskAnnouncement.of(TASK), roots=[BlobRef(digest=DIGEST, size=9)])
    yield "signed_task", "roots.json", announcement.signed.encode()
    yield "root", "deep.json", b'{"signatures":[],"signed":' + b'{"a":' * 5000 + b"1" + b"}" * 5001
    yield "root", "bomb_of_digits.json", b'{"signatures":[],"signed":{"version":' + b"9" * 60_000 + b"}}"


def everything() -> Iterator[tuple[str, str, bytes]]:
    """Decoder, file name, content."""
    for name, data in frames():
        yield "frame", name, data
        yield "cbor", name.replace(".frame", ".cbor"), data[len(SELF_DESCRIBED) :]
    yield "frame_tight", "model.frame", dict(frames())["model.frame"]
    yield "blob", "head.frame", encode_frame(BlobHeader(name="head"), {"head/w": encode(X, Codec.FLOAT32)})
    blobs = {"head": BlobRef(digest=DIGEST, size=9)}
    manifest = Manifest(task="t", method="qqr", version=1, blobs=blobs)
    yield "manifest", "one.json", messages.encode(manifest)
    for name, data in control():
        yield "message", name, data
    for name, data in bundles():
        yield "bundle", name, data
    yield from trust()
    yield "bitmap", "full.bin", (9000).to_bytes(4, "little") + b"\x00\xff\x01"
    yield "bitmap", "many_chunks.bin", (2**31).to_bytes(4, "little") + b"\x00\xff"
    yield "topic", "chunk.txt", device_topic("f", "dev", Kind.UP_BLOB, DIGEST, 3).encode()
    yield "topic", "update.txt", device_topic("f", "dev", Kind.UPDATE).encode()
    yield "topic", "long.txt", b"lichen/v1/f/" + b"a/" * 2000
    yield "qqr", "rows.json", json.dumps(HEADER.extra).encode()
    route = {"modalities": ["acc"], "targets": ["label", "side"], "domain": 1, "best": 2, "accuracy": 0.5}
    yield "disentafl", "rows.json", json.dumps(route | {"rows": {"features/acc._shared": [0, 2]}}).encode()
    yield "tactfl", "windows.json", json.dumps({"windows": {"acc": 12, "gyro": 3}}).encode()
    entry = {
        "task": "t",
        "round": 1,
        "base": DIGEST,
        "digest": DIGEST,
        "status": "refused",
        "reason": "outlier",
    }
    yield "ledger", "one.json", json.dumps({"entries": [entry]}).encode()
    yield from arrays()
    yield from identity()
    yield from graphs()
    yield from fuzz_secure.files()


def graphs() -> Iterator[tuple[str, str, bytes]]:
    """Files of graphs."""
    names = np.array(["boiler", "Zo\u00eb"])
    yield "graph_triples", "small.tsv", "# house\n\npump\tfeeds\tboiler\r\nZo\u00eb\tsees\tpump\n".encode()
    yield "graph_triples", "mark.tsv", b"\xef\xbb\xbfa\tr\tb\n"
    yield "graph_features", "small.npz", npz(entity=names, values=X[:2])
    yield "graph_masks", "small.npz", npz(entity=names, modality=names[:1], present=np.ones((2, 1), bool))
    yield "text_encoder", "small.npz", npz(idf=X[0], basis=np.ones((len(X[0]), 2), np.float32))
    house = {
        "triples": np.array([[0, 1, 2], [2, 0, 0]]),
        "entity_keys": np.arange(48, dtype=np.uint8).reshape(3, 16),
        "relation_keys": np.arange(32, dtype=np.uint8).reshape(2, 16),
        "present": np.ones((3, 1), np.bool_),
        "x/text": np.ones((3, 4), np.float32),
    }
    yield "graph_keyed", "small.npz", npz(**house)
    yield "graph_keyed", "beyond.npz", npz(**house | {"triples": np.array([[0, 2, 0]])})
    yield "graph_keyed", "number.npz", npz(**house | {"entity_keys": np.array(7, np.uint8)})
    yield "graph_keyed", "bomb_triples.npz", _zip({"triples.npy": claiming("(1000000000000, 3)", "<i8")})
    own = {f"own/{name}": np.ones(shape, np.float32) for name, shape in fuzz_rows.TABLES.items()}
    yield "graph_tables", "small.npz", npz(**own)
    yield "graph_tables", "halves.npz", npz(**own | {"own/entity_keys": np.full((3, 16), 0.5, np.float32)})
    for name, data in fuzz_rows.frames():
        yield "mmfed3_hide", name, data
    no_character = np.array([0x110000, 65], "<u4").view("<U1")
    yield "graph_features", "no_character.npz", npz(entity=no_character, values=X[:2])
    for kind in ("graph_features", "graph_masks"):
        claimed = _zip({"entity.npy": claiming("(10000000000000,)", "<U100")})
        yield kind, "bomb_names.npz", claimed
        zeros = npy(np.zeros(1 << 16, "<U16"))
        yield kind, "deflated.npz", _zip({"entity.npy": zeros}, zipfile.ZIP_DEFLATED)


def files() -> list[tuple[str, Path]]:
    """Decoder and file of every saved input."""
    return sorted((path.parent.name, path) for path in CORPUS.glob("*/*") if path.is_file())


def make() -> None:
    for decoder, name, data in (*everything(), *fuzz_models.models()):
        path = CORPUS / decoder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def keep(decoder: str, data: bytes) -> Path:
    """Save an input that caused a failure."""
    path = CORPUS / decoder / f"found-{hashlib.sha256(data).hexdigest()[:16]}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def main(words: list[str]) -> int:
    match words:
        case ["make"]:
            make()
        case ["keep", decoder, text]:
            keep(decoder, bytes.fromhex(text))
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
