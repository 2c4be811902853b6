"""One session on PostgreSQL: how it connects, what it requires of the server, and its limits."""

import hashlib
import time
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from coordinator.storage.engines.postgres_address import KEY, PostgresSchema
from coordinator.storage.engines.postgres_errors import sorted_error
from protocol.errors import Misconfigured

_OLDEST: Final = 120000
_LOCKS: Final = 0x6C696368
"""First number of lichen's advisory locks."""
_LOCK_RETRY_S: Final = 0.05
_KEEPALIVE: Final = {"keepalives": 1, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
_UNACKNOWLEDGED_MS: Final = 15_000
_IDLE_S: Final = {True: 15, False: 5}
"""How long a process that is stopped in the middle of a transaction holds its locks, by whether it has the
tables alone. If others share them, less than a lease: the next leader must not wait for the last one."""
_LIMITS: Final = {
    "lock_timeout": "10s",
    "client_min_messages": "warning",
    "timezone": "UTC",
}


def engine_of(
    place: PostgresSchema, path: tuple[str, ...], *, read_only: bool, alone: bool = True
) -> sa.Engine:
    """An engine without a pool: each connection is a new session.

    Args:
        place: the server, the database and the first schema of the path.
        path: further schemas in which tables are looked up.
        read_only: no statement may change anything.
        alone: no other process waits for rows that a transaction has locked.
    """

    def creator() -> Any:
        return _connected(place, path, read_only=read_only, alone=alone)

    return sa.create_engine(
        "postgresql+psycopg://", poolclass=NullPool, creator=creator, use_native_hstore=False
    )


def _connected(place: PostgresSchema, path: tuple[str, ...], *, read_only: bool, alone: bool) -> Any:
    import psycopg  # noqa: PLC0415 - only where the configuration asks for it

    _, options = place.url.get_dialect()().create_connect_args(place.url)
    limits: dict[str, Any] = {
        "connect_timeout": max(2, round(place.connect_timeout_s)),
        "application_name": f"lichen {place.name}",
        "client_encoding": "utf8",
        "tcp_user_timeout": _UNACKNOWLEDGED_MS,
        **_KEEPALIVE,
    }
    try:
        raw = psycopg.connect(**{**limits, **options}, autocommit=True)
    except psycopg.Error as error:
        raise sorted_error(error, place) from None
    try:
        _require_server(raw, place)
        _begin(raw, place, path, read_only=read_only, idle_s=_IDLE_S[alone or read_only])
        raw.autocommit = False
    except psycopg.Error as error:
        raw.close()
        raise sorted_error(error, place, opening=True) from None
    except BaseException:
        raw.close()
        raise
    return raw


def _require_server(raw: Any, place: PostgresSchema) -> None:
    """Check that a commit on this server survives a power cut, and that texts come back as they were."""
    names = ("server_version_num", "fsync", "full_page_writes", "server_encoding", "synchronous_commit")
    row = raw.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names)).fetchone()
    version, fsync, pages, encoding, commit = row
    if int(version) < _OLDEST:
        raise Misconfigured(f"{KEY}: {place.where}: PostgreSQL 12 or newer is needed, this is {version}")
    for name, value in (("fsync", fsync), ("full_page_writes", pages)):
        if value != "on":
            raise Misconfigured(
                f"{KEY}: {place.where}: the server runs with {name} = {value}: a power cut would lose "
                f"updates that devices were told are safe; set {name} = on in postgresql.conf"
            )
    if encoding != "UTF8":
        raise Misconfigured(
            f"{KEY}: {place.where}: the database has the encoding {encoding}; create one with UTF8: "
            "createdb --encoding UTF8 --template template0 NAME"
        )
    if commit == "off":  # a receipt follows the commit, so this session waits for it
        raw.execute("SET synchronous_commit = on")


def _begin(raw: Any, place: PostgresSchema, path: tuple[str, ...], *, read_only: bool, idle_s: int) -> None:
    """Set the session up, and make the schema if it is missing."""
    names = ", ".join(quoted(name) for name in (place.name, *path))
    idle = {"idle_in_transaction_session_timeout": f"{idle_s}s"}
    for name, value in {**_LIMITS, **idle, "search_path": names}.items():
        raw.execute("SELECT set_config(%s, %s, false)", (name, value))
    if read_only:
        raw.execute("SET default_transaction_read_only = on")
        return
    known = raw.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.name,)).fetchone()
    if known is None:
        _make_schema(raw, place)


def _make_schema(raw: Any, place: PostgresSchema) -> None:
    """One process at a time: PostgreSQL's IF NOT EXISTS fails if two make it at the same moment."""
    numbers = lock_numbers(place, "schema")
    raw.execute("SELECT pg_advisory_lock(%s, %s)", numbers)
    try:
        raw.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(place.name)}")
    finally:
        raw.execute("SELECT pg_advisory_unlock(%s, %s)", numbers)


def quoted(name: str) -> str:
    """A name as an identifier."""
    return '"' + name.replace('"', '""') + '"'


def lock_numbers(place: PostgresSchema, what: str) -> tuple[int, int]:
    """The two numbers of an advisory lock of a schema."""
    mark = hashlib.sha256(f"{place.name}\0{what}".encode()).digest()
    return _LOCKS, int.from_bytes(mark[:4], "big", signed=True)


def take_lock(connection: sa.Connection, place: PostgresSchema, *, shared: bool, wait_s: float) -> bool:
    """Take the lock of the process that serves a schema, for the session; False: another one has it.

    Args:
        connection: the session.
        place: the schema.
        shared: with other processes that share it.
        wait_s: how long another process may still have it, in seconds.
    """
    query = f"SELECT pg_try_advisory_lock{'_shared' if shared else ''}(%s, %s)"
    numbers, until = lock_numbers(place, "serve"), time.monotonic() + wait_s
    while not connection.exec_driver_sql(query, numbers).scalar_one():
        if time.monotonic() >= until:
            return False
        time.sleep(_LOCK_RETRY_S)
    return True
