"""A PostgreSQL server for tests; without PostgreSQL the test is skipped."""

from functools import cache

import pytest

from lichen_lab.simulation.processes import postgres
from lichen_lab.simulation.processes.postgres import USER, programs

__all__ = ["USER", "PostgresServer", "programs", "require_postgres", "shared_server"]


def require_postgres() -> None:
    """Skip the test without PostgreSQL."""
    if programs() is None:
        pytest.skip("SKIPPED LOUDLY: PostgreSQL is not installed (apt-get install postgresql)")


class PostgresServer(postgres.PostgresServer):
    """A server; the test is skipped if there is none."""

    def __init__(self, *settings: str) -> None:
        require_postgres()
        super().__init__(*settings)


@cache
def shared_server() -> PostgresServer:
    """One server for all tests of this process, with an empty database."""
    server = PostgresServer("full_page_writes = on").start()
    server.sql(f"CREATE DATABASE {USER}", database="postgres")
    return server
