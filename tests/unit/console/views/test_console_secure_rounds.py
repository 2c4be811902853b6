"""Pages and operations of secure rounds and their versions, in the words of `lichen round explain`."""

from pathlib import Path

from typer.testing import CliRunner

from coordinator.aggregation.secure.reports import SecureReports
from coordinator.cli.main import app as coordinator
from coordinator.cli.round import app as rounds
from coordinator.round_machine.events import RoundPhase
from coordinator.secure_aggregation.report import LostDevices, SecureReport
from tests.support.console.history import History, settings_in
from tests.support.console.serving import served

NASTY = "<script>alert(1)</script>"
CLOSED = f"the sum stays closed: 1 of 3 neighbours of device 'b' have answered {NASTY}"
FAILED = SecureReport(
    attempt=1,
    phase="failed",
    words=f"attempt 1, stage failed: 3 devices with keys; {CLOSED}",
    why=CLOSED,
    asked=4,
    keys=3,
    shares=3,
    going=3,
    inside=3,
    answered=1,
    lost=(
        LostDevices(stage="keys", why="announced no keys in time", count=1, devices=("d",)),
        LostDevices(stage="unmask", why="did not answer in time", count=2, devices=("a", "b")),
    ),
)
DONE = FAILED.model_copy(
    update={
        "attempt": 2,
        "phase": "done",
        "words": "attempt 2, stage done: 4 in the sum",
        "why": "",
        "lost": (),
    }
)


async def test_console_a_secure_round_shows_its_stage_and_who_was_lost(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        reports = SecureReports(history.store)
        reports.write(1, FAILED, history.wall())
        reports.write(1, DONE, history.wall())
        history.plays(2, ["a", "b"])
    async with served(settings) as made:
        one = await made.json("/rounds/1")
        assert [(report["phase"], report["asked"]) for report in one["secure"]] == [
            ("failed", 4),
            ("done", 4),
        ]
        assert one["secure"][0]["lost"][1]["devices"] == ["a", "b"]
        assert one["secure"][0]["why"] == CLOSED
        assert (await made.json("/rounds/2"))["secure"] == []
        listed = (await made.json("/rounds"))["rounds"]
        assert [row["secure"] for row in listed] == ["", "done"]
        page = await made.page("/rounds/1")
        for words in ("Secure aggregation", "attempt 2, stage done", "announced no keys in time", "unmask"):
            assert words in page
        assert NASTY not in page
        assert "the sum stays closed: 1 of 3 neighbours" in page
        assert "Secure aggregation" not in await made.page("/rounds/2")
        assert "secure: done" in await made.page("/rounds")
        assert "attempt 2, stage done: 4 in the sum" in await made.page("/versions/1")
        assert (await made.json("/versions/1"))["version"]["secure"] == DONE.words
        assert "SecureReport" in (await made.json("/openapi.json"))["components"]["schemas"]


def test_console_says_what_the_commands_say(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        SecureReports(history.store).write(1, FAILED, history.wall())
        history.stands(RoundPhase.COLLECTING, 1, 0, selected=("a", "b"), until=history.wall() + 60)
    file = tmp_path / "coordinator.toml"
    file.write_text(f'fleet = "test"\nstate_dir = "{settings.state_dir}"\ntask = "task.toml"\n')
    explained = CliRunner().invoke(rounds, ["explain", "--config", str(file)]).stdout
    assert f"secure aggregation: {FAILED.words}" in explained
    assert "  lost at unmask: a, b (did not answer in time)" in explained
    for command in ("status", "history"):
        said = CliRunner().invoke(coordinator, [command, "--config", str(file)]).stdout
        assert f"secure aggregation: {FAILED.words}" in said, command
