"""From PostgreSQL to files and back, and the way back from a newer release's tables."""

import shutil
from itertools import count
from pathlib import Path

import pytest

from coordinator.recovery.downgrade import downgraded
from coordinator.recovery.state_backup import copy_state
from coordinator.recovery.table_copy import copy_from_files
from coordinator.status.history import read
from coordinator.storage import schema
from coordinator.storage.location import Location
from protocol.errors import Misconfigured
from protocol.topics import Kind
from tests.support.coordinator.bench import Bench, bench
from tests.support.coordinator.fake import frame, header, settings_for, tiny_task
from tests.support.storage.postgres import PostgresServer

_SCHEMAS = count()
TASK = tiny_task(count=3)
SHOWN = ("task", "versions", "rounds", "devices", "exports", "refusals")


@pytest.fixture
def storage(postgres_server: PostgresServer) -> dict[str, str]:
    return {"url": postgres_server.url(), "schema_name": f"copied_{next(_SCHEMAS)}"}


async def one_round(made: Bench) -> None:
    version = made.app.driver.state.version
    await made.online("a")
    await made.until(lambda: made.app.driver.state.phase == "collecting")
    state = made.app.driver.state
    await made.give("a", Kind.UPDATE, frame(header("a", state.round, state.manifest)))
    await made.until(lambda: made.app.driver.state.version > version)


def shown(where: Location | Path) -> dict[str, object]:
    found = read(where)
    return {key: found[key] for key in SHOWN}


async def test_a_backup_is_a_state_folder_and_goes_back_into_a_database(
    tmp_path: Path, storage: dict[str, str]
) -> None:
    async with bench(tmp_path, TASK, storage=storage) as made:
        await one_round(made)
        location, run = made.app.settings.location, made.app.storage.run_id.get()
        copied = copy_state(location, tmp_path / "backup")
    assert copied.files > 3
    assert (tmp_path / "backup" / "run_id").read_text() == run
    before = shown(tmp_path / "backup")
    assert [one["version"] for one in before["versions"]] == [0, 1]
    other = storage | {"schema_name": f"{storage['schema_name']}_b"}
    again = settings_for(tmp_path / "again", 1, storage=other)
    shutil.copytree(tmp_path / "backup", again.state_dir)
    copy_from_files(tmp_path / "backup", again.location)
    assert shown(again.location) == before
    with pytest.raises(Misconfigured, match="tables of a coordinator already"):
        copy_from_files(tmp_path / "backup", again.location)
    async with bench(tmp_path / "again", TASK, storage=other) as made:
        assert made.app.storage.run_id.get() == run
        await one_round(made)
        assert made.app.driver.state.version == 2
    assert read(again.location)["salvaged"].endswith("restored from " + str(tmp_path / "backup"))


async def test_back_from_a_step_the_copy_is_used_and_what_came_since_is_added(
    tmp_path: Path, storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path, TASK, storage=storage) as made:
        await one_round(made)
        location = made.app.settings.location
    assert downgraded(location) == []
    with monkeypatch.context() as patch:
        step = "ALTER TABLE versions ADD COLUMN mood VARCHAR NOT NULL DEFAULT 'good'"
        patch.setattr(schema, "UPGRADES", {**schema.UPGRADES, schema.VERSION: (step,)})
        patch.setattr(schema, "READABLE_FROM", schema.VERSION + 1)
        patch.setattr(schema, "VERSION", schema.VERSION + 1)
        async with bench(tmp_path, TASK, storage=storage) as made:
            await one_round(made)
            manifest = made.app.driver.state.manifest
            with pytest.raises(Misconfigured, match="a coordinator runs"):
                downgraded(location)
    with pytest.raises(Misconfigured, match="go back to the copy"):
        location.database()
    [done] = downgraded(location)
    assert "as of copied" in done
    async with bench(tmp_path, TASK, storage=storage) as made:
        assert (made.app.driver.state.version, made.app.driver.state.manifest) == (2, manifest)
        await one_round(made)
