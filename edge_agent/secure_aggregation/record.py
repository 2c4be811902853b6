"""A device's state in a secure round as bytes: one atomic file, which only the agent may read. Pure."""

from dataclasses import asdict
from typing import Any, Final

import cbor2

from edge_agent.secure_aggregation.events import HeldShares, MaskingPhase, MaskingState
from protocol.errors import Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.keys import Secrets
from protocol.secure_aggregation.messages import Roster, SecureMessage, SharesSent, Survivors, decode, encode

_FORMAT: Final = 1


class UnreadableRecordError(ValueError):
    """The bytes are no record of this release; the device begins anew with the next attempt."""


def to_bytes(state: MaskingState) -> bytes:
    """The record of a state."""
    return cbor2.dumps(
        {
            "format": _FORMAT,
            "phase": state.phase.value,
            "attempt": None if state.attempt is None else asdict(state.attempt),
            "secrets": None if state.secrets is None else _old_secrets(state.secrets),
            "noise": b"" if state.secrets is None else state.secrets.noise,
            "counted": [state.counted, dict(state.releases)],
            "roster": _written(state.roster),
            "sent": _written(state.sent),
            "held": {name: [held.mask, held.seed] for name, held in state.held.items()},
            "masked": state.masked,
            "survivors": _written(state.survivors),
            "opened": state.opened,
            "ended": state.ended,
        },
        canonical=True,
    )


def from_bytes(data: bytes) -> MaskingState:
    """The state of a record.

    Raises:
        UnreadableRecordError: it is damaged, or of another release.
    """
    try:
        record: dict[str, Any] = cbor2.loads(data)
        if record["format"] != _FORMAT:
            raise UnreadableRecordError(f"record of format {record['format']}")
        return MaskingState(
            phase=MaskingPhase(record["phase"]),
            attempt=None if record["attempt"] is None else Attempt(**record["attempt"]),
            secrets=None
            if record["secrets"] is None
            else Secrets(**record["secrets"], noise=record.get("noise", b"")),
            roster=None if record["roster"] is None else decode(record["roster"], Roster),
            sent=None if record["sent"] is None else decode(record["sent"], SharesSent),
            held={name: HeldShares(*pair) for name, pair in record["held"].items()},
            masked=record["masked"],
            survivors=None if record["survivors"] is None else decode(record["survivors"], Survivors),
            opened=record["opened"],
            ended=record.get("ended", ""),
            counted=record.get("counted", ["", {}])[0],
            releases=record.get("counted", ["", {}])[1],
        )
    except (cbor2.CBORDecodeError, Refused, KeyError, TypeError, ValueError) as error:
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from None


def _old_secrets(secrets: Secrets) -> dict[str, bytes]:
    """Those that releases before noise of devices read."""
    return {name: value for name, value in asdict(secrets).items() if name != "noise"}


def _written(message: SecureMessage | None) -> bytes | None:
    return None if message is None else encode(message)
