"""Versions of the tables in a schema of PostgreSQL, and the copy before each step."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from coordinator.storage import schema
from coordinator.storage.engines.postgres_address import KEY, PostgresSchema
from coordinator.storage.engines.postgres_session import lock_numbers, quoted
from coordinator.storage.migrations import COMMAND, KEPT, TableVersion
from protocol.errors import Misconfigured

_OWN: Final = (
    """CREATE TABLE IF NOT EXISTS table_version (
        id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, readable_from INTEGER NOT NULL,
        changes BIGINT NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '')""",
    """CREATE TABLE IF NOT EXISTS writers (
        writer TEXT PRIMARY KEY, seq BIGINT NOT NULL, wall DOUBLE PRECISION NOT NULL)""",
)
"""``changes``: grows with each change, for readers that keep a copy. ``owner``: the writer that has the
tables for itself. ``writers``: the number of each writer's last commit, to find out whether a commit whose
answer was lost took place."""

_FORGOTTEN_S: Final = 30 * 86400.0
"""A writer that ended without removing its row."""


@dataclass(frozen=True)
class KnownTables:
    """The tables of a schema.

    Attributes:
        version: of them.
        upgrades: statements from a version to the next.
        missing: statements that create what is missing.
        metadata: the same, as tables.
    """

    version: TableVersion
    upgrades: Mapping[int, Sequence[str]]
    missing: Sequence[str] = ()
    metadata: sa.MetaData = field(default_factory=sa.MetaData)


def coordinator_tables() -> KnownTables:
    """The coordinator's own tables in this release."""
    version = TableVersion(schema.VERSION, schema.READABLE_FROM)
    return KnownTables(version, schema.UPGRADES, metadata=schema.metadata)


def find(connection: sa.Connection) -> TableVersion:
    """The version of the tables; 0: there are none yet."""
    if connection.exec_driver_sql("SELECT to_regclass('table_version')").scalar_one() is None:
        return TableVersion(0, 0)
    row = connection.exec_driver_sql("SELECT version, readable_from FROM table_version").first()
    return TableVersion(0, 0) if row is None else TableVersion(row[0], row[1])


def require_readable(
    connection: sa.Connection, place: PostgresSchema, found: TableVersion, known: int
) -> None:
    """Check whether this release can use the tables.

    Raises:
        Misconfigured: it cannot; the message says what to do.
    """
    if found.readable_from <= known:
        return
    older = [version for version in copies(connection, place.name) if version <= known]
    way = (
        f"go back to the copy {copy_name(place.name, max(older))}: {COMMAND}"
        if older
        else "there is no copy from before"
    )
    raise Misconfigured(
        f"{KEY}: {place.where}: written by a newer lichen (tables {found.version}, usable from "
        f"{found.readable_from} on; known here: {known}); install that release again; {way}"
    )


@contextmanager
def preparing(
    connection: sa.Connection, place: PostgresSchema, known: KnownTables, *, read_only: bool
) -> Iterator[None]:
    """Check the tables, and bring them up to date; the transaction goes on in the body.

    Raises:
        Misconfigured: there are none to read, or they are not those of this release.
    """
    with connection.begin():
        # Tables of the same name in other schemas of the path are not these.
        query = "SELECT set_config('search_path', %s, true)"
        connection.exec_driver_sql(query, (quoted(place.name),))
        if not read_only:  # one process at a time
            numbers = lock_numbers(place, "prepare")
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s, %s)", numbers)
        found = find(connection)
        require_readable(connection, place, found, known.version.version)
        if read_only:
            _require_present(place, found, known)
        else:
            bring_up_to_date(connection, place, known)
            _require_sound(connection, place, known)
        yield


def _require_present(place: PostgresSchema, found: TableVersion, known: KnownTables) -> None:
    if found.version == 0:
        raise Misconfigured(f"{KEY}: {place.where}: there are no tables; has this coordinator ever run?")
    if found.version < known.version.version:
        raise Misconfigured(
            f"{place.where}: written by an older lichen (tables {found.version}); it is brought up to date "
            "when the coordinator starts"
        )


def _require_sound(connection: sa.Connection, place: PostgresSchema, known: KnownTables) -> None:
    if trouble := unsound(connection, known.metadata):
        raise Misconfigured(
            f"{KEY}: {place.where}: these are not the tables of this release: {trouble}; name another schema "
            "(storage.schema_name), or restore the database from its backup"
        )


def bring_up_to_date(connection: sa.Connection, place: PostgresSchema, known: KnownTables) -> None:
    """Run all steps to the version of this release, or none: the caller's transaction is exclusive."""
    run = connection.exec_driver_sql
    found = find(connection).version
    newest = known.version.version
    if found > newest:
        return
    if 0 < found < newest:
        keep_copy(connection, place.name, found)
    for step in range(found or newest, newest):
        for words in known.upgrades[step]:
            run(words)
    for words in (*_OWN, *known.missing):
        run(words)
    known.metadata.create_all(connection)
    run(
        "INSERT INTO table_version (id, version, readable_from) VALUES (1, %s, %s) ON CONFLICT (id) "
        "DO UPDATE SET version = excluded.version, readable_from = excluded.readable_from",
        (newest, known.version.readable_from),
    )


def enter(connection: sa.Connection, writer: str, seq: int, *, alone: bool) -> None:
    """Enter a writer with the number of its last commit; ``alone``: it has the tables for itself."""
    run, now = connection.exec_driver_sql, time.time()
    run("DELETE FROM writers WHERE wall < %s", (now - _FORGOTTEN_S,))
    run(
        "INSERT INTO writers VALUES (%s, %s, %s) ON CONFLICT (writer) DO UPDATE SET seq = excluded.seq",
        (writer, seq, now),
    )
    if alone:
        run("UPDATE table_version SET owner = %s", (writer,))


def unsound(connection: sa.Connection, metadata: sa.MetaData) -> str:
    """What tables of the present version lack, as text; empty if nothing."""
    rows = connection.exec_driver_sql(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    )
    there: dict[str, set[str]] = {}
    for table, column in rows:
        there.setdefault(table, set()).add(column)
    for one in metadata.sorted_tables:
        if lacking := set(one.columns.keys()) - there.get(one.name, set()):
            return f"table {one.name} lacks {', '.join(sorted(lacking))}"
    return ""


def copy_name(schema: str, version: int) -> str:
    """The schema that holds the copy made before the tables of ``version`` were changed."""
    return f"{schema}_v{version}"


def copies(connection: sa.Connection, schema: str) -> dict[int, str]:
    """All copies of a schema, by version."""
    pattern = re.compile(re.escape(schema) + r"_v(\d{1,6})\Z")
    names = connection.exec_driver_sql("SELECT nspname FROM pg_namespace").scalars()
    return {int(match[1]): name for name in names if (match := pattern.match(name))}


def count_on(connection: sa.Connection, schema: str) -> None:
    """Let the numbers that PostgreSQL draws go on after those of the rows."""
    run = connection.exec_driver_sql
    query = (
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s AND "
        "is_identity = 'YES'"
    )
    for table, column in run(query, (schema,)).all():
        name = f"{quoted(schema)}.{quoted(table)}"
        newest = f"(SELECT coalesce(max({quoted(column)}), 0) + 1 FROM {name})"  # noqa: S608 - our own names
        run(f"SELECT setval(pg_get_serial_sequence(%s, %s), {newest}, false)", (name, column))


def keep_copy(connection: sa.Connection, schema: str, version: int) -> None:
    """Copy a schema before its tables are changed, in the same transaction; the newest copies are kept."""
    run, copy = connection.exec_driver_sql, quoted(copy_name(schema, version))
    run(f"DROP SCHEMA IF EXISTS {copy} CASCADE")
    run(f"CREATE SCHEMA {copy}")
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
    for name in run(query, (schema,)).scalars().all():
        table = quoted(name)
        run(f"CREATE TABLE {copy}.{table} (LIKE {quoted(schema)}.{table} INCLUDING ALL)")
        run(f"INSERT INTO {copy}.{table} OVERRIDING SYSTEM VALUE SELECT * FROM {quoted(schema)}.{table}")  # noqa: S608 - our own names
    count_on(connection, copy_name(schema, version))
    for old in sorted(copies(connection, schema))[:-KEPT]:
        run(f"DROP SCHEMA {quoted(copy_name(schema, old))} CASCADE")
