"""The daemon's behaviour without a broker: offers, deadlines, failing work, restarts, changed tasks."""

import asyncio
import socket
import urllib.request
from pathlib import Path

import pytest

from coordinator.app import jobs_of
from coordinator.recovery.folder_owner import rules_of
from coordinator.recovery.state_folder import open_storage
from coordinator.round_machine.table import TABLE
from coordinator.status.history import read
from coordinator.status.prometheus import serve_metrics
from coordinator.workers.jobs import ExportedBundle, ExportLineage
from models.contract import Blobs, Evaluation
from models.privacy.accountant import epsilon_after
from protocol import messages
from protocol.errors import Misconfigured, Transient
from protocol.frames.frame import digest
from protocol.messages import RoundAnnouncement
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic
from runtime.clock import SystemClock
from runtime.process.worker import WorkerFailed
from tests.support.coordinator.bench import FakeLink, bench
from tests.support.coordinator.fake import FLEET, TinyJobs, frame, header, settings_for, tiny_task

ROOT = Path(__file__).resolve().parents[3]


def rounds_said(link: FakeLink) -> list[RoundAnnouncement]:
    topic = broadcast_topic(FLEET, Kind.ROUND)
    assert all(retain for t, _, retain in link.sent if t == topic)
    return [messages.decode(p, RoundAnnouncement) for t, p, _ in link.sent if t == topic]


async def test_an_offer_is_retained_repeated_ever_more_slowly_and_cleared_when_the_round_is_over(
    tmp_path,
) -> None:
    topic = broadcast_topic(FLEET, Kind.OFFER)
    async with bench(tmp_path, tiny_task(count=1, min_devices=2), offer_every_s=0.1) as made:

        def said() -> list[bytes]:
            return [p for t, p, retain in made.link.sent if t == topic and retain]

        await made.until(said)
        assert said() == [b""], "what an earlier life left there is cleared"
        began = asyncio.get_running_loop().time()
        await made.online("a", "b")
        await made.until(lambda: len(made.link.offers()) == 3)
        assert asyncio.get_running_loop().time() - began > 0.3, "0.1 and 0.2 s"
        first, _, third = made.link.offers()
        assert first.closes_in_s > third.closes_in_s > 0
        assert (first.round, first.attempt, first.base) == (1, 1, made.app.driver.state.manifest)
        assert first.asks("a")
        assert first.asks("b")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, first.base)))
        assert said()[-1], "the round is open to b"
        await made.give("b", Kind.UPDATE, frame(header("b", 1, first.base)))
        await made.until(lambda: said()[-1] == b"")


async def test_an_offer_that_the_broker_lost_is_published_at_the_next_connect(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2), offer_every_s=1000.0) as made:
        await made.online("a", "b")
        await made.until(lambda: len(made.link.offers()) == 1)
        await made.app.announcer.publish_all()
        await made.until(lambda: len(made.link.offers()) == 2)


async def test_a_device_that_was_away_when_the_round_was_opened_takes_part_and_a_stranger_does_not(
    tmp_path,
) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2)) as made:
        await made.online("a", "b")
        await made.until(made.link.offers)
        (offer, *_) = made.link.offers()
        await made.give("late", Kind.UPDATE, frame(header("late", 1, offer.base)))
        assert made.link.receipts("late")[-1].reason == "unknown_device"
        await made.online("late")
        await made.give("late", Kind.UPDATE, frame(header("late", 1, offer.base)))
        assert made.link.receipts("late")[-1].status == "accepted"
        assert made.app.driver.state.delivered == {"late"}


@pytest.mark.parametrize("selection", ["uniform", "coverage"])
async def test_a_device_that_is_not_in_the_cohort_is_refused_with_the_reason(tmp_path, selection) -> None:
    names = tuple(f"d{n}" for n in range(12))
    task = tiny_task(devices_per_round=4, selection=selection)
    async with bench(tmp_path, task, spread_s=0.5) as made:
        made.link.connected = False  # no round before all are there
        await made.online(*names)
        made.link.connected = True
        await made.until(made.link.offers)
        offer = made.link.offers()[-1]
        asked = {name for name in names if offer.asks(name)}
        assert asked == set(made.app.driver.state.selected)
        assert len(asked) == 4
        other = min(set(names) - asked)
        await made.give(other, Kind.UPDATE, frame(header(other, 1, offer.base)))
        answer = made.link.receipts(other)[-1]
        assert (answer.reason, answer.detail) == ("not_selected", f"{other} was not selected for round 1")


async def test_a_later_attempt_lists_those_that_delivered(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(min_devices=2, deadline_s=0.5), offer_every_s=0.1) as made:
        await made.online("a", "b")
        await made.until(made.link.offers)
        assert made.link.offers()[0].delivered is None
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.link.offers()[0].base)))
        await made.until(lambda: made.link.offers()[-1].attempt == 2)
        offer = made.link.offers()[-1]
        assert (offer.has_lost("a"), offer.has_lost("b")) == (False, True)


async def test_too_few_at_the_deadline_opens_the_round_again_and_keeps_what_came(tmp_path) -> None:
    task = tiny_task(count=1, min_devices=2, deadline_s=1.2)
    async with bench(tmp_path, task) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.give("a", Kind.UPDATE, frame(header("a", 1, base)))
        await made.until(lambda: made.app.driver.state.attempt == 2)
        await made.until(lambda: made.app.driver.state.phase == "collecting")
        assert tuple(made.app.driver.state.delivered) == ("a",)
        assert made.app.driver.state.missing() == ("b",)
        await made.give("b", Kind.UPDATE, frame(header("b", 1, base)))
        await made.until(lambda: made.app.driver.state.version == 1)
    found = read(tmp_path / "coordinator")
    assert [a["outcome"] for a in found["rounds"][0]["attempts"]] == ["given_up", "quorum"]
    assert found["rounds"][0]["attempts"][1]["why"]["a"] == "delivered in an earlier attempt"
    assert found["versions"][1]["devices"] == ["a", "b"]


@pytest.fixture
def quick_retries(monkeypatch) -> None:
    monkeypatch.setattr("coordinator.round_machine.retry_delay._PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("coordinator.rounds.driver.TICK_S", 0.02)


@pytest.mark.usefixtures("quick_retries")
async def test_failing_evaluation_and_export_are_shown_and_stop_nothing(tmp_path) -> None:
    jobs = TinyJobs(fail=("evaluate", "export"))
    (tmp_path / "w.npz").touch()
    evaluation = {"data": tmp_path / "w.npz"}
    async with bench(tmp_path, tiny_task(count=1), jobs, evaluation=evaluation) as made:
        await made.until(lambda: made.app.driver.state.phase == "waiting_for_devices")
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.phase("done")
        await made.until(lambda: rounds_said(made.link)[-1].phase == "done")
        assert "export was told to fail" in rounds_said(made.link)[-1].waiting_for
    found = read(tmp_path / "coordinator")
    assert "evaluate was told to fail" in found["versions"][0]["trouble"]
    assert found["versions"][1]["metrics"] == {}
    assert jobs.done.count("export") == 3, "tried again as often as there are pauses"


class FullForAWhile(TinyJobs):
    """The first two exports meet a full disk."""

    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        bundle = await super().export(state, lineage)
        if self.done.count("export") <= 2:
            raise Transient("no space left in jobs")
        return bundle


@pytest.mark.usefixtures("quick_retries")
async def test_a_full_disk_that_is_mended_costs_no_bundle(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1), FullForAWhile()) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.until(lambda: "export: Transient: no space left" in made.app.driver.why())
        await made.phase("done")
        assert made.app.driver.state.trouble == ""
    found = read(tmp_path / "coordinator")
    assert [row["version"] for row in found["exports"]] == [1]
    assert found["versions"][1]["trouble"] == ""


class Crashing(TinyJobs):
    async def export(self, state: Blobs, lineage: ExportLineage) -> ExportedBundle:
        await super().export(state, lineage)
        raise WorkerFailed("export: ValueError: parity", "")


@pytest.mark.usefixtures("quick_retries")
async def test_a_worker_that_fails_by_itself_is_not_asked_for_the_same_again(tmp_path) -> None:
    jobs = Crashing()
    async with bench(tmp_path, tiny_task(count=1), jobs) as made:
        await made.online("a")
        await made.phase("collecting")
        await made.give("a", Kind.UPDATE, frame(header("a", 1, made.app.driver.state.manifest)))
        await made.phase("done")
    assert jobs.done.count("export") == 1
    assert "parity" in read(tmp_path / "coordinator")["versions"][1]["trouble"]


async def test_metrics_that_cannot_travel_are_left_out(tmp_path) -> None:
    class Odd(TinyJobs):
        async def evaluate(self, _state: Blobs) -> Evaluation:
            many = {f"m{i}": 1.0 for i in range(200)}
            return Evaluation({"accuracy": 0.5, "f1": float("nan"), "x" * 90: 1.0, **many}, [[1]])

    (tmp_path / "w.npz").touch()
    async with bench(tmp_path, jobs=Odd(), evaluation={"data": tmp_path / "w.npz"}) as made:
        await made.phase("waiting_for_devices")
        await made.until(lambda: [r.phase for r in rounds_said(made.link)[-1:]] == ["waiting_for_devices"])
        metrics = rounds_said(made.link)[-1].metrics
        assert metrics["accuracy"] == 0.5
        assert "f1" not in metrics
        assert len(metrics) == 128


async def test_a_worker_that_cannot_make_the_model_is_tried_again_and_it_says_so(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("coordinator.round_machine.retry_delay._RETRY_S", 0.05)
    jobs = TinyJobs(fail=("initial",))
    async with bench(tmp_path, jobs=jobs) as made:
        await made.until(lambda: "initial was told to fail" in made.app.driver.why())
        jobs.fail.clear()
        await made.phase("waiting_for_devices")


async def test_nothing_is_selected_without_a_broker(tmp_path) -> None:
    async with bench(tmp_path) as made:
        made.link.connected = False
        await made.online("a")
        await asyncio.sleep(0.7)
        assert made.app.driver.state.phase == "waiting_for_devices"
        made.link.connected = True
        await made.phase("collecting")


async def test_a_full_disk_stops_nothing_and_the_update_comes_again(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=1)) as made:
        await made.online("a")
        await made.phase("collecting")
        update = frame(header("a", 1, made.app.driver.state.manifest))
        with made.app.storage.store.transaction() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
        await made.give("a", Kind.UPDATE, update)
        await made.give("a", Kind.UPDATE, b"{}")
        await made.online("b")
        await asyncio.sleep(0.6)
        assert [r.digest for r in made.link.receipts("a")] == [digest(b"{}")], "the update has none"
        assert tuple(made.app.driver.state.delivered) == ()
        assert "nothing can be written (" in made.app.driver.why()
        with made.app.storage.store.transaction() as connection:
            connection.exec_driver_sql("PRAGMA query_only=OFF")
        await made.give("a", Kind.UPDATE, update)
        assert made.link.receipts("a")[-1].status == "accepted"
        assert "nothing can be written" not in made.app.driver.why()
        await made.phase("done")


async def test_only_new_devices_make_a_round_wait_for_more(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(count=3), spread_s=1000.0) as made:
        await made.online("a")
        await made.until(lambda: made.app.driver.state.enough_since is not None)
        assert made.app.driver.state.phase == "waiting_for_devices"
        made.app.driver._lookout._joined_at -= 1000.0
        for round_ in (1, 2):
            await made.phase("collecting")
            await made.give("a", Kind.UPDATE, frame(header("a", round_, made.app.driver.state.manifest)))
            await made.until(lambda known=round_: made.app.driver.state.round == known + 1)
            if round_ == 1:
                await made.phase("collecting")
                await made.online("b")
        await made.until(lambda: made.app.driver.state.enough_since is not None)
        assert made.app.driver.state.phase == "waiting_for_devices"
        assert made.app.driver.state.round == 3


async def test_announcements_are_bounded_in_rate_and_say_why(tmp_path) -> None:
    async with bench(tmp_path) as made:
        for _ in range(50):
            made.app.wires.changes.set()
            await asyncio.sleep(0.005)
        said = rounds_said(made.link)
        assert 1 <= len(said) <= 3
        assert "waiting until 1 device is online" in said[-1].waiting_for


async def test_the_greeting_says_task_round_and_model_again(tmp_path) -> None:
    async with bench(tmp_path) as made:
        await asyncio.sleep(0.2)  # version 0 is made, but its tidying may still be at work among the blobs
        await made.app.deployment.exporter.store_bundle(1, b"bundle", {"accuracy": 0.5})
        made.link.sent.clear()
        await made.app.announcer.publish_all()
        topics = [t for t, _, retain in made.link.sent if retain]
        assert topics[:3] == [broadcast_topic(FLEET, k) for k in (Kind.TASK, Kind.ROUND, Kind.FLEET_MODEL)]


async def test_more_rounds_in_the_task_file_go_on_where_it_stopped(tmp_path) -> None:
    for count in (1, 2):
        async with bench(tmp_path, tiny_task(count=count)) as made:
            await made.online("a")
            await made.phase("collecting")
            assert made.app.driver.state.round == count
            await made.give("a", Kind.UPDATE, frame(header("a", count, made.app.driver.state.manifest)))
            await made.phase("done")
    assert [v["version"] for v in read(tmp_path / "coordinator")["versions"]] == [0, 1, 2]


def open_folder(folder: Path, task: Task) -> None:
    with open_storage(settings_for(folder, 1), task, SystemClock(), keeps_messages=False):
        pass


def test_the_workers_last_round_is_the_last_that_max_epsilon_leaves(tmp_path) -> None:
    """A guided method trains more in it, and a task that ends earlier must not go without."""
    settings, private = settings_for(tmp_path, 1), Privacy(clip=1.0, noise_multiplier=4.0)
    task = tiny_task(count=50).model_copy(update={"privacy": private})
    with open_storage(settings, task, SystemClock(), keeps_messages=False) as storage:
        assert jobs_of(settings, task, storage)._task.rounds.count == 50
        limited = private.model_copy(update={"max_epsilon": epsilon_after(private, 3) * 1.01})
        task = task.model_copy(update={"privacy": limited})
        assert jobs_of(settings, task, storage)._task.rounds.count == rules_of(task, settings).rounds == 3


async def test_another_task_in_the_same_state_folder_is_refused_by_key(tmp_path) -> None:
    async with bench(tmp_path):
        pass
    other = tiny_task().model_copy(update={"labels": ("a", "c")})
    with pytest.raises(Misconfigured, match="labels differs"):
        open_folder(tmp_path, other)


async def test_devices_may_come_to_keep_more_of_their_stream_in_the_same_state_folder(tmp_path) -> None:
    async with bench(tmp_path):
        pass
    window = tiny_task().window
    longer = window.model_copy(update={"context_s": 4 * window.length_s})
    async with bench(tmp_path, tiny_task().model_copy(update={"window": longer})) as made:
        assert made.app.driver.task.window.context_s == 4 * window.length_s
    other = window.model_copy(update={"length_s": 2 * window.length_s})
    changed = tiny_task().model_copy(update={"window": other})
    with pytest.raises(Misconfigured, match="window differs"):
        open_folder(tmp_path, changed)


async def test_prometheus_shows_rounds_bytes_and_refusals(tmp_path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with bench(tmp_path, metrics={"prometheus_port": port}) as made:
        parts, settings = made.app.measured, made.app.settings.metrics
        with serve_metrics(settings, parts):
            await made.online("a")
            await made.phase("collecting")
            await made.give("a", Kind.UPDATE, b"\xd9\xd9\xf7nonsense")
            url = f"http://127.0.0.1:{port}/metrics"
            page = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())).decode()
            with pytest.raises(Misconfigured, match="prometheus_port"), serve_metrics(settings, parts):
                pass
    assert "lichen_devices_online 1.0" in page
    assert 'lichen_coverage{label="a",modality="acc"} 1.0' in page
    assert 'lichen_refused_total{reason="malformed"} 1.0' in page


def test_the_docs_diagram_is_the_table() -> None:
    page = (ROOT / "docs/rounds.md").read_text()
    words = "write coordinator.round_machine.table.TABLE.diagram() and TABLE.listing() into docs/rounds.md"
    assert f"```mermaid\n{TABLE.diagram()}\n```" in page, words
    assert f"\n{TABLE.listing()}\n" in page, words
