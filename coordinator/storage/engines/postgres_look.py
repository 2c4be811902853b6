"""Questions to a PostgreSQL database."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.postgres_errors import sorted_error
from coordinator.storage.engines.postgres_session import engine_of

_SIZES: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c JOIN pg_namespace n ON n.oid = "
    "c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'"
)
_SMALL: Final = 8 * 1024 * 1024
_LOCKED: Final = (
    "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = "
    "current_database() WHERE l.locktype = 'advisory' AND l.granted AND l.classid = %s AND l.objid = %s"
)


def used_bytes(connection: sa.Connection, metadata: sa.MetaData) -> int:
    """Bytes of the rows, about: tables do not shrink with their rows, so large ones are added up."""
    run = connection.exec_driver_sql
    size = int(run(_SIZES).scalar_one())
    if size <= _SMALL:
        return size
    rows = "SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM {} t"
    return sum(int(run(rows.format(one.name)).scalar_one()) for one in metadata.sorted_tables)


def is_locked(connection: sa.Connection, numbers: tuple[int, int]) -> bool:
    """Whether a session holds an advisory lock."""
    first, second = numbers
    return bool(connection.exec_driver_sql(_LOCKED, (first, second % 2**32)).scalar_one())


def changes_in(connection: sa.Connection, name: str) -> tuple[int, ...]:
    """How often the tables of a schema of the same database were changed; nothing if they were never made."""
    run = connection.exec_driver_sql
    table = f"{connection.dialect.identifier_preparer.quote_identifier(name)}.table_version"
    if run("SELECT to_regclass(%s)", (table,)).scalar_one() is None:
        return ()
    return (int(run(f"SELECT changes FROM {table}").scalar_one()),)  # noqa: S608 - a quoted name


def has_tables(place: PostgresSchema) -> bool:
    """Whether a coordinator ever made its tables in a schema.

    Raises:
        Misconfigured, Transient: the server cannot be asked.
    """
    engine = engine_of(place, (), read_only=True)
    try:
        with engine.connect() as connection:
            query = "SELECT to_regclass('table_version') IS NOT NULL"
            return bool(connection.exec_driver_sql(query).scalar_one())
    except SQLAlchemyError as error:
        raise sorted_error(error, place, opening=True) from None
    finally:
        engine.dispose()
