"""Messages of secure rounds: CBOR with a checksum, bounded before anything is allocated. Pure.

    55799([4, {"kind": ..., fields}, checksum])

They travel on the topics of updates and receipts. The tag is that of every frame
(:mod:`protocol.frames.frame`); the number 4 tells them apart. Older releases refuse a frame of format 4 in
words; they are never sent one, because they announce no keys. All of a message belongs to one attempt, whose
digest it names.
"""

import zlib
from typing import Annotated, Any, Final, Literal, TypeVar

import cbor2
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from protocol.base import Name, Wire, first_fault
from protocol.errors import Reason, Refused
from protocol.frames import cbor
from protocol.secure_aggregation.credentials import MAX_CERTIFICATE
from protocol.secure_aggregation.keys import KEY_BYTES, NONCE_BYTES, TAG_BYTES
from protocol.secure_aggregation.neighbours import MAX_NEIGHBOURS
from protocol.secure_aggregation.shamir import SHARE_BYTES

FORMAT: Final = 4
MAX_BYTES: Final = 2 << 20
"""Of every message but a masked vector: a roster of 512 neighbours with the largest certificates is half."""
CRC_BYTES: Final = 4
SHARES_BYTES: Final = 2 * SHARE_BYTES
SEALED_BYTES: Final = NONCE_BYTES + SHARES_BYTES + TAG_BYTES
_PARTS: Final = 3
_PREFIX: Final = cbor.SELF_DESCRIBED + cbor.array_head(_PARTS) + cbor2.dumps(FORMAT)
_MAX_ITEMS: Final = 16 * MAX_NEIGHBOURS
_MAX_DEPTH: Final = 5
_MAX_TEXT: Final = 256

AttemptDigest = Annotated[bytes, Field(min_length=32, max_length=32)]
PublicKey = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Share = Annotated[bytes, Field(min_length=SHARE_BYTES, max_length=SHARE_BYTES)]
Sealed = Annotated[bytes, Field(min_length=SEALED_BYTES, max_length=SEALED_BYTES)]
_N = TypeVar("_N")
Few = Annotated[dict[Name, _N], Field(max_length=MAX_NEIGHBOURS)]
"""Something for each of a device's neighbours."""


def _as_tuple(value: object) -> object:
    """CBOR has lists."""
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[Name, ...], Field(max_length=MAX_NEIGHBOURS), BeforeValidator(_as_tuple)]


class SecureMessage(Wire):
    """What all messages name."""

    attempt: AttemptDigest


class DeviceKeys(Wire):
    """A device's public keys in one attempt; with its signature in a fleet with identities."""

    cipher: PublicKey
    mask: PublicKey
    signature: Annotated[bytes, Field(max_length=80)] = b""
    certificate: Annotated[bytes, Field(max_length=MAX_CERTIFICATE)] = b""


class KeysAnnounced(SecureMessage):
    """Stage 1, to the coordinator: "I take part, these are my keys"."""

    kind: Literal["keys"] = "keys"
    keys: DeviceKeys


class Roster(SecureMessage):
    """Stage 1, to a device: the keys of its neighbours, among so many devices."""

    kind: Literal["roster"] = "roster"
    devices: Annotated[int, Field(ge=1, le=1 << 20)]
    own: DeviceKeys
    neighbours: Few[DeviceKeys]


class SharesSent(SecureMessage):
    """Stage 2, to the coordinator: two shares for each neighbour, which only that can read."""

    kind: Literal["shares"] = "shares"
    sealed: Few[Sealed]


class SharesDelivered(SecureMessage):
    """Stage 2, to a device: the shares of its neighbours that go on; with these it masks."""

    kind: Literal["delivery"] = "delivery"
    sealed: Few[Sealed]


class MaskedUpdate(SecureMessage):
    """Stage 3, to the coordinator: the packed vector with all masks."""

    kind: Literal["masked"] = "masked"
    masked: bytes


class Survivors(SecureMessage):
    """Stage 4, to a device: which of its neighbours' vectors are in the sum, and which never came."""

    kind: Literal["survivors"] = "survivors"
    delivered: Names
    lost: Names


class Revealed(SecureMessage):
    """Stage 4, to the coordinator: one share for each neighbour, of its seed or of its mask key."""

    kind: Literal["revealed"] = "revealed"
    seeds: Few[Share]
    masks: Few[Share]


Message = Annotated[
    KeysAnnounced | Roster | SharesSent | SharesDelivered | MaskedUpdate | Survivors | Revealed,
    Field(discriminator="kind"),
]
_ADAPTER: Final[TypeAdapter[Message]] = TypeAdapter(Message)
_M = TypeVar("_M", bound=SecureMessage)


def is_secure(payload: bytes) -> bool:
    """Whether a payload is a message of a secure round, by its first bytes."""
    return payload.startswith(_PREFIX)


def encode(message: SecureMessage) -> bytes:
    """A message as bytes; equal messages give equal bytes."""
    content = message.model_dump(mode="python")
    body = _PREFIX + cbor2.dumps(_plain(content), canonical=True) + cbor.byte_string_head(CRC_BYTES)
    return body + zlib.crc32(body).to_bytes(CRC_BYTES)


def _plain(value: Any) -> Any:
    """Without fields that are empty bytes: they are the defaults."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if one != b""}
    return list(value) if isinstance(value, tuple) else value


def decode(payload: bytes, *expected: type[_M], max_bytes: int = MAX_BYTES) -> _M:
    """Read a message that must be one of ``expected``.

    Args:
        payload: of an MQTT message.
        expected: the kinds that are taken.
        max_bytes: of the message; of a masked vector the size of the ring's elements, and 1 KiB.

    Raises:
        Refused: too large, damaged, malformed, or of another kind.
    """
    if len(payload) > max_bytes:
        raise Refused(
            Reason.TOO_LARGE, f"message of a secure round of {len(payload)} bytes, at most {max_bytes}"
        )
    crc = zlib.crc32(memoryview(payload)[:-CRC_BYTES]).to_bytes(CRC_BYTES)
    if not is_secure(payload) or payload[-CRC_BYTES:] != crc:
        raise Refused(
            Reason.WRONG_DIGEST, f"{len(payload)} bytes are no message of a secure round, or are damaged"
        )
    start = len(cbor.SELF_DESCRIBED)
    cbor.scan(payload, start, max_depth=_MAX_DEPTH, max_items=_MAX_ITEMS, max_text=_MAX_TEXT)
    try:
        _, content, _ = cbor2.loads(memoryview(payload)[start:])
        message = _ADAPTER.validate_python(content, strict=True)
    except (cbor2.CBORDecodeError, ValueError) as error:
        words = first_fault(error) if isinstance(error, ValidationError) else f"CBOR: {error}"[:500]
        raise Refused(Reason.MALFORMED, words) from None
    if not isinstance(message, expected):
        names = " or ".join(kind.__name__ for kind in expected)
        raise Refused(Reason.MALFORMED, f"expected {names}, got {type(message).__name__}")
    return message
