"""Messages and records of secure rounds for the fuzz tests."""

from collections.abc import Iterator

from edge_agent.secure_aggregation.events import HeldShares, MaskingPhase, MaskingState
from edge_agent.secure_aggregation.record import UnreadableRecordError, from_bytes, to_bytes
from protocol.errors import Reason, Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.keys import Secrets
from protocol.secure_aggregation.messages import (
    SEALED_BYTES,
    DeviceKeys,
    KeysAnnounced,
    MaskedUpdate,
    Revealed,
    Roster,
    SecureMessage,
    SharesDelivered,
    SharesSent,
    Survivors,
    encode,
)

_ATTEMPT = Attempt("fleet", "task", 3, 1, "ab" * 32, "cd" * 16)
_DIGEST = _ATTEMPT.digest
_KEYS = DeviceKeys(cipher=b"c" * 32, mask=b"m" * 32, signature=b"s" * 71, certificate=b"c" * 300)
MESSAGES: tuple[SecureMessage, ...] = (
    KeysAnnounced(attempt=_DIGEST, keys=_KEYS),
    Roster(attempt=_DIGEST, devices=5, own=_KEYS, neighbours={"a": _KEYS, "b": _KEYS}),
    SharesSent(attempt=_DIGEST, sealed={"a": b"s" * SEALED_BYTES}),
    SharesDelivered(attempt=_DIGEST, sealed={"b": b"s" * SEALED_BYTES}),
    MaskedUpdate(attempt=_DIGEST, masked=bytes(range(100))),
    Survivors(attempt=_DIGEST, delivered=("a", "b"), lost=("c",)),
    Revealed(attempt=_DIGEST, seeds={"a": b"s" * 33}, masks={"b": b"m" * 33}),
)


def record(data: bytes) -> MaskingState:
    """A device's state from its disk."""
    try:
        return from_bytes(data)
    except UnreadableRecordError as error:
        raise Refused(Reason.MALFORMED, str(error)[:500]) from None


def files() -> Iterator[tuple[str, str, bytes]]:
    """Decoder, file name, content."""
    for message in MESSAGES:
        yield "secure", f"{type(message).__name__}.cbor", encode(message)
    state = MaskingState(
        phase=MaskingPhase.REVEALED,
        attempt=_ATTEMPT,
        secrets=Secrets.of(bytes(Secrets.entropy_bytes)),
        roster=MESSAGES[1] if isinstance(MESSAGES[1], Roster) else None,
        held={"a": HeldShares(b"m" * 33, b"s" * 33)},
        survivors=MESSAGES[5] if isinstance(MESSAGES[5], Survivors) else None,
    )
    yield "secure_record", "revealed.cbor", to_bytes(state)
