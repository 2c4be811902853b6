"""Devices with graphs whose fleet secrets differ, and devices that refuse the task: the operator is told."""

import io
import json

import pytest
from rich.console import Console
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.cli import status
from coordinator.cli.main import app as coordinator
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.secret_mismatch import SecretMismatchMonitor, mismatch_warning
from coordinator.status.prometheus import _Collector
from coordinator.storage.database import Database
from lichen.commands.status import as_json
from lichen.commands.status_table import show
from protocol.errors import Reason, Refused
from protocol.messages import MAX_WORDS, State, decode, encode
from protocol.topics import Kind, device_topic
from runtime.fleet_view import FleetView
from tests.support.coordinator.fake import settings_for
from tests.support.coordinator.graph import gateways_online, graph_bench, graph_task

OURS, OTHERS, THIRD = "a" * 16, "b" * 16, "c" * 16
DIFFER = "devices have different fleet secrets and learn nothing from each other"
NO_GRAPH = (
    "task 'things' is on knowledge graphs, and this device has none: write a table [graph] with triples"
)


def test_the_minority_is_named_with_what_to_do() -> None:
    assert mismatch_warning({}) == mismatch_warning({"a": OURS, "b": OURS}) == ""
    words = mismatch_warning(dict.fromkeys("abcde", OURS) | {"hall": OTHERS, "attic": OTHERS, "new": THIRD})
    assert f"each other: attic, hall have {OTHERS}; new has {THIRD}; 5 others have {OURS}; give" in words
    assert "lichen agent enroll --replace --fleet-secret FILE" in words
    assert "lichen agent secret FILE" in words


def test_of_two_halves_both_are_named_and_of_many_devices_or_secrets_a_few() -> None:
    assert f"b has {OTHERS}; a has {OURS}; give" in mismatch_warning({"a": OURS, "b": OTHERS})
    many = {f"m{n:02}": OURS for n in range(40)} | {f"o{n:02}": OTHERS for n in range(30)}
    assert f"o00, o01, o02 and 27 more have {OTHERS}; 40 others have {OURS}" in mismatch_warning(many)
    each = {f"{'d' * 60}{n:03}": f"{n:016x}" for n in range(500)}
    assert "and 495 secrets more" in mismatch_warning(each)
    assert len(mismatch_warning(each)) < 1000


async def test_secrets_that_differ_are_warned_of_once_and_stand_in_status_and_metrics(
    tmp_path, monkeypatch
) -> None:
    settings = settings_for(tmp_path, 1)
    monkeypatch.setattr(status, "read_settings", lambda _file, _task: settings)

    def told(*options: str) -> str:
        return CliRunner().invoke(coordinator, ["status", "-c", "x.toml", *options]).stdout

    async with graph_bench(tmp_path, graph_task(min_devices=9)) as made:

        async def logged(*devices: str, **changes: object) -> list[tuple[str, str]]:
            with capture_logs() as lines:
                await gateways_online(made, *devices, **changes)
            events = [(line["event"], line["log_level"]) for line in lines]
            return [one for one in events if one[0].startswith("fleet_secrets")]

        def gauge() -> float:
            (family,) = [
                f for f in _Collector(made.app.measured).collect() if f.name == "lichen_fleet_secrets"
            ]
            return family.samples[0].value

        warned = [("fleet_secrets_differ", "warning")]
        assert await logged("old") == []
        assert await logged("a", "b", "c", fleet_secret=OURS) == []
        assert gauge() == 1
        assert "secret" not in told("--why")
        assert await logged("hall", fleet_secret=OTHERS) == warned
        assert await logged("hall", "a", fleet_secret=OTHERS, status="offline") == [], "nothing is mended"
        assert gauge() == 1
        assert await logged("hall", fleet_secret=OTHERS) == [], "it was said"
        assert await logged("attic", fleet_secret=THIRD) == warned
        made.app.storage.ledger.save()
        assert gauge() == 3
        words = told("--why")
        assert f"secrets: {DIFFER}: hall has {OTHERS}; attic has {THIRD}; 2 others have {OURS}" in words
        (wait,) = [w for w in json.loads(told("--format", "json"))["waits"] if w["what"] == "secrets"]
        assert "lichen agent enroll" in wait["why"]
        assert await logged("hall", "attic", fleet_secret=OURS) == [("fleet_secrets_agree", "info")]
        assert await logged("attic", fleet_secret=THIRD) == warned, "it had been mended"


def test_a_large_fleet_in_halves_does_not_fill_the_log(tmp_path) -> None:
    with Database(tmp_path / "x.sqlite3") as store, capture_logs() as lines:
        roster = DeviceRegistry(store, lambda: 0.0)
        watch = SecretMismatchMonitor(roster)
        for n in range(400):
            roster.update(State(status="online", device=f"d{n}", fleet_secret=OURS if n % 2 else OTHERS))
            watch.heard(f"d{n}")
    warned = [line["why"] for line in lines if line["event"] == "fleet_secrets_differ"]
    assert 2 < len(warned) < 40
    assert "and " in warned[-1]


async def test_a_fleet_that_is_parted_when_the_coordinator_starts_is_warned_of(tmp_path) -> None:
    task = graph_task(min_devices=9)
    async with graph_bench(tmp_path, task) as made:
        await gateways_online(made, "a", "b", fleet_secret=OURS)
        await gateways_online(made, "hall", fleet_secret=OTHERS)
    with capture_logs() as lines:
        async with graph_bench(tmp_path, task):
            pass
    (line,) = [one for one in lines if one["event"] == "fleet_secrets_differ"]
    assert f"hall has {OTHERS}" in line["why"]


async def test_a_device_that_refuses_the_task_is_not_selected_and_says_why(tmp_path) -> None:
    async with graph_bench(tmp_path, graph_task(min_devices=2, min_windows=20)) as made:
        await gateways_online(made, "a", triples=30)
        refuses = {"modalities": {}, "windows": 0, "targets": None, "refuses": NO_GRAPH}
        for _ in range(2):
            await made.online("bare", **refuses)
        assert f"bare (refuses the task: {NO_GRAPH})" in made.app.driver.why()
        assert made.app.driver.able() == ("a",)
        assert made.app.announcer._task_again, "what it refuses may have been damaged on the way"
        await gateways_online(made, "bare", triples=30)
        await made.phase("collecting")


def table(*states: State) -> tuple[str, FleetView]:
    view, said = FleetView("f"), io.StringIO()
    for state in states:
        assert view.apply(device_topic("f", state.device, Kind.STATE), encode(state))
    show(view, Console(file=said, width=400), why=False)
    return said.getvalue(), view


def test_lichen_status_shows_both() -> None:
    states = [State(status="online", device=name, windows=5, fleet_secret=OURS) for name in ("a", "b")]
    bare = State(status="online", device="bare", windows=7, refuses=NO_GRAPH)
    away = State(status="stopped", device="gone", fleet_secret=THIRD)
    words, view = table(*states, away, bare)
    assert "warning" not in words
    (row,) = [line for line in words.splitlines() if "bare" in line]
    assert f"refuses the task: {NO_GRAPH}" in row
    assert "7" not in row, "what it has is of a task before"
    assert as_json(view)["devices"]["bare"]["refuses"] == NO_GRAPH
    words, _ = table(*states, State(status="online", device="hall", fleet_secret=OTHERS))
    assert f"warning: {DIFFER}: hall has {OTHERS}" in words


def test_peers_of_older_releases_read_and_say_nothing_of_it() -> None:
    plain = State(status="online", device="a")
    assert b"fleet_secret" not in encode(plain)
    assert b"refuses" not in encode(plain)
    whole = plain.model_copy(update={"fleet_secret": OURS, "refuses": NO_GRAPH})
    assert decode(encode(whole), State) == whole


@pytest.mark.parametrize(
    "changes",
    [{"fleet_secret": "A" * 16}, {"fleet_secret": "a" * 64}, {"refuses": "x" * (MAX_WORDS + 1)}]
    + [{"refuses": words} for words in ("", "two\nlines", "\x1b[2J")],
)
def test_words_and_prints_are_bounded(changes) -> None:
    with pytest.raises(Refused) as refused:
        decode(encode(State(status="online", device="a").model_copy(update=changes)), State)
    assert refused.value.reason is Reason.MALFORMED
