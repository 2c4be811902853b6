"""An attempt's state and messages as bytes: stored before anything is announced. Pure."""

from typing import Any

import cbor2

from coordinator.secure_aggregation.book import AttemptBook
from coordinator.secure_aggregation.events import SecurePhase, SecureRules, SecureState
from coordinator.secure_aggregation.transitions import with_graph
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import KeyAuthority
from protocol.secure_aggregation.messages import (
    DeviceKeys,
    KeysAnnounced,
    Revealed,
    SharesSent,
    decode,
    encode,
)


def to_bytes(state: SecureState, book: AttemptBook) -> bytes:
    """Both, without the graph, which follows from the devices."""
    attempt = book.attempt
    return cbor2.dumps(
        {
            "state": state.model_dump_json(),
            "keys": {name: _announced(attempt, keys) for name, keys in book.keys.items()},
            "shares": {name: encode(shares) for name, shares in book.shares.items()},
            "reveals": {name: encode(reveal) for name, reveal in book.reveals.items()},
        },
        canonical=True,
    )


def from_bytes(
    data: bytes, rules: SecureRules, attempt: Attempt, authority: KeyAuthority | None
) -> tuple[SecureState, AttemptBook]:
    """The inverse of :func:`to_bytes`."""
    record: dict[str, Any] = cbor2.loads(data)
    state = SecureState.model_validate_json(record["state"])
    book = AttemptBook(attempt, authority)
    book.keys |= {name: decode(one, KeysAnnounced).keys for name, one in record["keys"].items()}
    book.shares |= {name: decode(one, SharesSent) for name, one in record["shares"].items()}
    book.reveals |= {name: decode(one, Revealed) for name, one in record["reveals"].items()}
    early = state.phase is SecurePhase.KEYS or (state.phase is SecurePhase.FAILED and not state.shared)
    return state if early else with_graph(rules, state), book


def _announced(attempt: Attempt, keys: DeviceKeys) -> bytes:
    return encode(KeysAnnounced(attempt=attempt.digest, keys=keys))
