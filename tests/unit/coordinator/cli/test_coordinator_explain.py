"""``lichen round explain`` and ``status``: why a round has the devices that it has."""

import json

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app as coordinator
from coordinator.cli.round import app
from protocol.messages import ModalityState
from protocol.topics import Kind
from runtime import exit_codes
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, tiny_task

CONFIG = 'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n'


@pytest.fixture
def file(tmp_path) -> str:
    (tmp_path / "coordinator.toml").write_text(CONFIG)
    return str(tmp_path / "coordinator.toml")


def said(*words: str, of=app) -> str:
    done = CliRunner().invoke(of, list(words))
    assert done.exit_code in (0, exit_codes.UNAVAILABLE), done.exception
    return done.stdout


async def test_a_round_is_explained_by_device_with_what_came_of_it(tmp_path, file) -> None:
    task = tiny_task(count=2, devices_per_round=2, selection="bandit")
    async with bench(tmp_path, task) as made:
        made.app.fleet.may_select = lambda: len(made.app.roster) == 3
        for name in ("a", "b", "c"):
            await made.online(name, modalities={"acc": ModalityState(windows=(2, 1))})
        await made.phase("collecting")
        driver = made.app.driver
        first, *_ = driver.state.selected
        head = header(first, 1, driver.state.manifest, metrics={"loss": 0.5})
        await made.give(first, Kind.UPDATE, frame(head))
        status = json.loads(said("status", "-c", file, "--format", "json", of=coordinator))
        assert status["selection"] == "bandit"
        assert set(status["selected"]) == set(driver.state.selected)
        waited = [one for one in status["waits"] if one["what"].startswith("update of")]
        assert len(waited) == len(driver.state.missing())
        assert all("; selected: " in one["why"] for one in waited), waited
        assert f"selected by bandit: {first}: " in said("status", "-c", file, of=coordinator)
    told = json.loads(said("explain", "-c", file, "--format", "json"))
    [attempt] = told["attempts"]
    assert (told["round"], attempt["policy"], attempt["outcome"]) == (1, "bandit", "open")
    by_name = {one["device"]: one for one in attempt["devices"]}
    assert by_name[first]["update"]["loss"] == 0.5
    assert by_name[first]["update"]["blobs"] == ["head"]
    words = said("explain", "-c", file, "--round", "1")
    assert "round 1, attempt 1: open, chosen by bandit" in words
    assert f"{first}: {by_name[first]['why']}; delivered (loss 0.5, " in words
    assert "; no update is here" in words


async def test_a_round_that_is_not_there_is_named(tmp_path, file) -> None:
    assert (
        "has this coordinator ever run?"
        in json.loads(said("explain", "-c", file, "--format", "json"))["error"]
    )
    async with bench(tmp_path, tiny_task()):
        pass
    done = CliRunner().invoke(app, ["explain", "-c", file])
    assert done.exit_code == exit_codes.UNAVAILABLE
    assert "none was opened yet" in done.output
