"""The meaning of PostgreSQL's errors: what waits, and what the operator must do."""

from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from coordinator.storage.engines.postgres_address import KEY, PostgresSchema
from protocol.errors import LichenError, Misconfigured, Transient

_MOST: Final = 400
_REFUSED: Final = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "authentication failed",
    "certificate verify failed",
    "server does not support SSL",
    "invalid connection option",
    "invalid sslmode",
    "invalid port number",
    "could not open certificate",
)
"""Words of a failed connection that only the operator can correct. Such errors have no code (SQLSTATE)."""
_MISSING: Final = ("database", "role")
_OPERATORS: Final = {
    "28": "correct the user or the password",
    "3D": "create the database: createdb NAME",
    "3F": "create the schema, or let the user create it",
    "42P01": "the tables are gone; restore them from a backup, or name another schema",
    "42501": "let the user create and use the schema: GRANT CREATE, CONNECT ON DATABASE ... TO ...",
}
"""SQLSTATE, or its class -> what to do."""
_WAITS: Final = ("08", "25", "40", "53", "55", "57", "58")
"""Classes that pass: connection, read-only or idle transaction, serialisation, resources, locks, the
operator's shutdown, the server's disk."""


def code_of(error: BaseException | None) -> str:
    """The SQLSTATE; empty if there is none."""
    return str(getattr(error, "sqlstate", None) or "")


def is_lost(error: DBAPIError) -> bool:
    """Whether the connection is gone, so that nobody answered the last statement."""
    return error.connection_invalidated or code_of(error.orig)[:2] in {"", "08", "57"}


def sorted_error(error: Any, place: PostgresSchema, *, opening: bool = False) -> Exception:
    """The error for an error of the driver; its message names the place, never the password.

    Args:
        error: of psycopg, or of SQLAlchemy around one.
        place: the tables.
        opening: nothing was written yet: an unknown error is for the operator to solve.

    Returns:
        Transient: the server cannot be reached, stops, has no room, or refuses for now.
        Misconfigured: the user, the database or the tables are not as they must be.
        The error itself: a statement is wrong, which is a bug.
    """
    found = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code = code_of(found)
    words = place.scrubbed(" ".join(str(found).split()))[:_MOST]
    if not code:
        return _of_connection(words, place)
    advice = _OPERATORS.get(code) or _OPERATORS.get(code[:2])
    if advice is not None:
        return Misconfigured(f"{KEY}: {place.where}: {words}; {advice}")
    if code == "25006":
        return Transient(
            f"{place.where}: the server takes no changes (a standby, or read-only): {words}; name the "
            f"primary in {KEY}, or all servers with target_session_attrs=read-write"
        )
    if code[:2] in _WAITS:
        return Transient(f"{place.where}: {words}")
    return Misconfigured(f"{KEY}: {place.where}: the tables cannot be used: {words}") if opening else error


def _of_connection(words: str, place: PostgresSchema) -> LichenError:
    missing = "does not exist" in words and any(f'{what} "' in words for what in _MISSING)
    if missing or any(one in words for one in _REFUSED):
        return Misconfigured(f"{KEY}: {place.where}: {words}")
    return Transient(f"{place.where}: the server cannot be reached: {words}")
