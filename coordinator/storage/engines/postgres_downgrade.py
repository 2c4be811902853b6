"""The way back to an older release on PostgreSQL: the copy of a schema takes its place."""

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from coordinator.storage.engines import postgres_tables as tables
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.engines.postgres_errors import sorted_error
from coordinator.storage.engines.postgres_look import is_locked
from coordinator.storage.engines.postgres_session import engine_of, lock_numbers, quoted
from protocol.errors import Misconfigured


def put_back(main: PostgresSchema, suffix: str, known: int, due: str = "") -> str:
    """Replace tables that this release cannot use by their newest usable copy, in one transaction.

    Args:
        main: the schema of the coordinator's own tables.
        suffix: of the schema that is put back.
        known: the version of this release's tables.
        due: the key of ``meta`` that makes the next start add what came since; empty: none.

    Returns:
        What was done; empty if there was nothing to do.

    Raises:
        Misconfigured: a coordinator runs, or there is no copy.
        Transient: the server cannot be reached.
    """
    place = main.beside(suffix)
    engine = engine_of(place, (), read_only=False)
    try:
        with engine.connect() as connection, connection.begin():
            if is_locked(connection, lock_numbers(main, "serve")):
                raise Misconfigured(f"{main.where}: a coordinator runs on this schema; stop it first")
            return _put_back(connection, place, known, due)
    except SQLAlchemyError as error:
        raise sorted_error(error, place, opening=True) from None
    finally:
        engine.dispose()


def _put_back(connection: sa.Connection, place: PostgresSchema, known: int, due: str) -> str:
    found = tables.find(connection)
    if found.readable_from <= known:
        return ""
    older = [version for version in tables.copies(connection, place.name) if version <= known]
    if not older:
        tables.require_readable(connection, place, found, known)
    copy, aside = tables.copy_name(place.name, max(older)), f"{place.name}_newer"
    run = connection.exec_driver_sql
    run(f"DROP SCHEMA IF EXISTS {quoted(aside)} CASCADE")
    run(f"ALTER SCHEMA {quoted(place.name)} RENAME TO {quoted(aside)}")
    run(f"ALTER SCHEMA {quoted(copy)} RENAME TO {quoted(place.name)}")
    if due:
        query = "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
        run(query, (due, f"put back from {copy}"))
    return f"{place.name}: as of {copy} again; the newer one is {aside}"
