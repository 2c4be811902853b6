"""Tasks of one fleet on one PostgreSQL server: schemas of their own, whatever their names are."""

from pathlib import Path

from coordinator.audit.chain import Person
from coordinator.audit.log import AuditLog, read_log
from coordinator.recovery.downgrade import downgraded
from coordinator.recovery.state_backup import copy_fleet
from tests.support.coordinator.fake import settings_for
from tests.support.storage.postgres import PostgresServer

NAMES = ("sound", "sound_rollouts", "Door-2")


def test_each_task_has_tables_of_its_own(postgres_server: PostgresServer, tmp_path: Path) -> None:
    tasks = [{"name": name, "task": tmp_path / "t.toml"} for name in NAMES]
    storage = {"url": str(postgres_server.url()), "schema_name": "several"}
    settings = settings_for(tmp_path, 1, tasks=tasks, storage=storage)
    places = {name: settings.for_task(name).location for name in (None, *NAMES)}
    for name, location in places.items():
        assert not location.exists()
        with location.database() as store, AuditLog(location) as log:
            store.put_meta({"fleet": settings.for_task(name).fleet})
            with log.acting(Person(name or "main", "admin", "test"), "round.hold", ""):
                pass
    for name, location in places.items():
        assert location.exists()
        with location.database(read_only=True) as store:
            assert store.get_meta("fleet") == settings.for_task(name).fleet
        assert {row.who for row in read_log(location, last=9)} == {name or "main"}
        assert downgraded(location) == []

    copy_fleet(settings, tmp_path / "copy")
    found = {
        str(one.parent.relative_to(tmp_path / "copy")) for one in (tmp_path / "copy").rglob("coord*.sqlite3")
    }
    assert found == {".", *(f"tasks/{name}" for name in NAMES)}
