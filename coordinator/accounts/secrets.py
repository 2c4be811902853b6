"""Tokens that are stored as digests: the first half of the digest is the key, all of it is compared."""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Any, Final, Self

from coordinator.storage.engines.shared_tables import Statements

MAX_TOKEN: Final = 128
"""Characters of a text that is looked up at all."""
_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TokenDigest:
    """What a table holds of a token."""

    id: str
    hash: str

    @classmethod
    def of(cls, token: str) -> Self:
        """Of a text that anybody sent."""
        full = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(full[:32], full)

    def matches(self, row: Any) -> bool:
        """Whether a row with ``hash`` is this token's; in constant time."""
        return row is not None and hmac.compare_digest(str(row["hash"]), self.hash)


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(_BYTES)


def find(tables: Statements, table: str, token: str) -> Any:
    """The row of a token in ``links`` or ``sessions``; None if there is none."""
    if not 0 < len(token) <= MAX_TOKEN:
        return None
    digest = TokenDigest.of(token)
    row = tables.execute(f"SELECT * FROM {table} WHERE id = ?", (digest.id,)).fetchone()  # noqa: S608 - our names
    return row if digest.matches(row) else None
