"""The same tests over both engines: ``pytestmark = pytest.mark.both_engines``.

On PostgreSQL they are long, but for those of ``WITH_POSTGRESQL``: to make its tables takes longer than most
tests. There every state folder, and every database file, of a test has a schema of its own. A test that
looks into files of SQLite is marked ``sqlite_only`` with a reason.
"""

import hashlib
from pathlib import Path

import pytest

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.storage import database
from coordinator.storage.engines.postgres_address import PostgresSchema, address_of
from coordinator.storage.location import DATABASE, Location
from tests.support.storage.postgres import PostgresServer, shared_server

ENGINES = ("sqlite", "postgresql")
WITH_POSTGRESQL = ("unit/coordinator/storage/", "unit/coordinator/cluster/", "unit/console/tables/")
"""Folders whose tests are of the engines themselves: their statements, locks and leases."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run marked tests once on each engine."""
    if metafunc.definition.get_closest_marker("both_engines") is None:
        return
    only = metafunc.definition.get_closest_marker("sqlite_only") is not None
    short = any(folder in metafunc.definition.path.as_posix() for folder in WITH_POSTGRESQL)
    marks = () if short else (pytest.mark.long,)
    engines = ["sqlite"] if only else ["sqlite", pytest.param("postgresql", marks=marks)]
    metafunc.parametrize("storage_engine", engines, indirect=True)


def schema_of(file: Path) -> PostgresSchema:
    """The schema that stands for a file."""
    name = f"t_{hashlib.sha256(str(file.absolute()).encode()).hexdigest()[:16]}"
    return address_of(shared_server().url(), name, 5.0)


@pytest.fixture(autouse=True)
def storage_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that holds all tables of the test."""
    engine: str = getattr(request, "param", ENGINES[0])
    if engine == "postgresql":
        shared_server()  # skips if it is not installed
        made = database.engine_for

        def elsewhere(place: Path | PostgresSchema, **options: bool) -> object:
            return made(schema_of(place) if isinstance(place, Path) else place, **options)

        def location(state_dir: Path) -> Location:
            return Location(state_dir, schema_of(state_dir / DATABASE))

        at = Location.at
        monkeypatch.setattr(database, "engine_for", elsewhere)
        monkeypatch.setattr(Location, "at", lambda w: at(w) if isinstance(w, Location) else location(w))
        monkeypatch.setattr(CoordinatorSettings, "location", property(lambda s: location(s.state_dir)))
    return engine


@pytest.fixture
def postgres_server() -> PostgresServer:
    """The server that the tests of this process share: it must not be stopped."""
    return shared_server()
