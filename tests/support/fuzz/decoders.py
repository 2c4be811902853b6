"""Every decoder of bytes from a peer or a disk, as ``read(bytes)``; and makers of real inputs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from coordinator.aggregation.fold import limits_for
from coordinator.identity.certificates import read_certificate, requested_key
from edge_agent.identity.keys import certificates_pem
from edge_agent.storage.round_ledger import _read as read_ledger
from edge_agent.trust.trusted_metadata import TrustedMetadata
from models import tensors
from models.data import window_set
from models.data.streams.recording import read as read_recording
from models.knowledge_graph.data import embedding_tables, keyed
from models.knowledge_graph.data import files as graph_files
from models.knowledge_graph.data.text_features import TextEncoder
from models.methods.disentafl.messages import DisentMessage
from models.methods.qqr.messages import QqrMessage
from models.methods.tactfl.messages import TactflMessage
from protocol import messages, topics
from protocol.bundle import unpack
from protocol.enrolment import EnrolAnswer, EnrolRefusal, EnrolRequest, Invite, RenewRequest
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames import cbor, chunks
from protocol.frames.frame import decode_frame
from protocol.frames.headers import BlobHeader, Manifest, UpdateHeader
from protocol.secure_aggregation import messages as secure_messages
from protocol.tasks.announcement import TaskAnnouncement
from protocol.trust.metadata import Root, Snapshot, Targets, Timestamp
from protocol.trust.metadata import read as read_role
from protocol.trust.signed_work import SignedOffer, SignedTask, read_signed
from tests.support.fuzz import rows as fuzz_rows
from tests.support.fuzz import secure as fuzz_secure
from tests.support.methods.closed_models import agreed
from tests.support.methods.qqr_cases import task, with_prototypes

Decoder = Callable[[bytes], object]
TASK = task()
TIGHT = limits_for(with_prototypes(TASK), 1 << 20)
REFUSALS = (Refused, Misconfigured)
"""The only errors that may be raised."""


def _in_file(suffix: str, read: Callable[[Path], object]) -> Decoder:
    def decoder(data: bytes) -> object:
        with TemporaryDirectory(prefix="lichen-fuzz-") as folder:
            path = Path(folder) / f"file{suffix}"
            path.write_bytes(data)
            return read(path)

    return decoder


def _model(*kinds: type) -> Decoder:
    """The decoders of JSON bodies turn pydantic's error into a refusal; this does it for all of them."""

    def decoder(data: bytes) -> object:
        try:
            return [kind.model_validate_json(data) for kind in kinds]
        except ValidationError as error:
            raise Refused(Reason.MALFORMED, str(error)[:500]) from None

    return decoder


def _bitmap(data: bytes) -> object:
    """The first bytes say the blob's size and chunk size, the rest is its stored bitmap."""
    size, chunk = int.from_bytes(data[:4], "little"), 1024 << (data[4] % 11 if len(data) > 4 else 0)
    assembly = chunks.Assembly.from_bytes(size, chunk, data[5:])
    return assembly.missing(), assembly.complete


def _extra(parse: Callable[[dict[str, object]], object]) -> Decoder:
    """A method's own message, as the frame's reader hands it over."""

    def decoder(data: bytes) -> object:
        try:
            extra = json.loads(data)
        except (ValueError, RecursionError):
            raise Refused(Reason.MALFORMED, "not JSON") from None
        if not isinstance(extra, dict):
            raise Refused(Reason.MALFORMED, "not a map")
        return parse(extra)

    return decoder


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _message(data: bytes) -> object:
    """The announcement and the task in it."""
    message = messages.decode(data, messages.Wire)
    return message, isinstance(message, TaskAnnouncement) and message.read()


DECODERS: Mapping[str, Decoder] = {
    "frame": lambda data: decode_frame(data, UpdateHeader),
    "frame_tight": lambda data: decode_frame(data, UpdateHeader, TIGHT),
    "blob": lambda data: decode_frame(data, BlobHeader),
    "manifest": _model(Manifest),
    "secure": lambda data: secure_messages.decode(data, secure_messages.SecureMessage),
    "secure_record": fuzz_secure.record,
    "message": _message,
    "cbor": lambda data: cbor.scan(data, 0, max_depth=12, max_items=4096, max_text=4096),
    "bundle": lambda data: unpack(data, 1 << 20),
    "closed_graph": agreed,
    "bitmap": _bitmap,
    "topic": lambda data: topics.parse(_text(data)),
    "invite": lambda data: Invite.decode(_text(data)),
    "enrolment": _model(EnrolRequest),
    "renewal": _model(RenewRequest),
    "answer": _model(EnrolAnswer),
    "refusal": _model(EnrolRefusal),
    "root": lambda data: (read_role(Root, data), TrustedMetadata.begin(data)),
    "timestamp": lambda data: read_role(Timestamp, data),
    "snapshot": lambda data: read_role(Snapshot, data),
    "targets": lambda data: read_role(Targets, data),
    "trusted": TrustedMetadata.decode,
    "signed_task": lambda data: read_signed(SignedTask, _text(data)),
    "signed_offer": lambda data: read_signed(SignedOffer, _text(data)),
    "csr": lambda data: requested_key(_text(data)),
    "certificate": lambda data: read_certificate(_text(data)),
    "chain": lambda data: certificates_pem(data, "chain"),
    "qqr": _extra(QqrMessage.read),
    "disentafl": _extra(DisentMessage.read),
    "tactfl": _extra(TactflMessage.read),
    "params": _in_file(".npz", tensors.read_npz),
    "windows": _in_file(".npz", lambda path: window_set.load(path, TASK)),
    "recording": _in_file(".npz", read_recording),
    "recording_csv": _in_file(".csv", read_recording),
    "ledger": _in_file(".json", read_ledger),
    "graph_triples": _in_file(".tsv", graph_files.read_triples),
    "graph_features": _in_file(".npz", graph_files.read_features),
    "graph_masks": _in_file(".npz", graph_files.read_masks),
    "graph_keyed": _in_file(".npz", lambda path: keyed.load(path, fuzz_rows.TASK)),
    "graph_tables": _in_file(".npz", lambda path: embedding_tables.tables(tensors.read_npz(path))),
    "mmfed3_hide": fuzz_rows.taken,
    "text_encoder": _in_file(".npz", TextEncoder.load),
}


def survives(name: str, data: bytes) -> str:
    """Decode; returns the refusal's message, or "". Any other error is raised with the bytes to save.

    Raises:
        AssertionError: an error that no decoder may raise.
    """
    try:
        DECODERS[name](data)
    except REFUSALS as refused:
        return str(refused)
    except Exception as error:
        raise AssertionError(
            f"{name}: {type(error).__name__}: {error}; keep it: "
            f"python -m tests.support.fuzz.corpus keep {name} {data[:4096].hex()}"
        ) from error
    return ""
