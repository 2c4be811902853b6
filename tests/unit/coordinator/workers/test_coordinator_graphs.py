"""Devices without torch at the coordinator: graphs that are made once, whom a round takes, and the words."""

import asyncio
import json

import numpy as np
import pytest

from coordinator.cli.status import look
from coordinator.config.coordinator import load_settings
from coordinator.fleet.requirements import Requirements, requirements_of
from coordinator.storage import model_registry
from coordinator.storage.database import Database
from coordinator.workers import encoder_models
from models import registry
from protocol import messages
from protocol.errors import Misconfigured
from protocol.messages import ModalityState, State
from protocol.topics import Kind
from runtime.storage.blob_store import BlobStore
from tests.support.coordinator.bench import Bench, bench
from tests.support.coordinator.fake import TinyJobs, frame, header, tiny_task

TASK = tiny_task(count=3).model_copy(update={"method": "qqr"})
NO_GRAPHS = "waits for the encoder models: "


def update(device: str, base: str, round_: int = 1) -> bytes:
    return frame(header(device, round_, base, method="qqr"))


async def prototyper(made: Bench, *names: str, **changes: object) -> None:
    await made.online(*names, **({"roles": ("observe", "prototype")} | changes))


def state(**changes: object) -> State:
    given = {
        "status": "online",
        "device": "d",
        "roles": ("prototype",),
        "windows": 9,
        "modalities": {"acc": ModalityState(windows=(9, 0))},
    }
    return State.model_validate(given | changes)


def test_what_a_device_lacks_is_said_in_words() -> None:
    ready, waiting = requirements_of(TASK, ""), requirements_of(TASK, "they are being made")
    assert ready.lacks(state()) == ""
    assert waiting.lacks(state()) == "waits for the encoder models: they are being made"
    assert waiting.lacks(state(roles=("prototype", "train"))) == "", "who trains needs no graph"
    assert ready.lacks(state(roles=("observe",))) == "no role train"
    assert ready.lacks(state(modalities={"ecg": ModalityState()})) == "no modality of the task: acc, gyro"
    assert ready.lacks(state(windows=0)) == "0 of 1 labelled windows"
    other = requirements_of(tiny_task(), "")
    assert other.lacks(state()) == "no role train; method 'tiny' has no use for role prototype"
    assert Requirements(1).lacks(state()) == "no role train"


def test_a_round_of_prototypes_alone_is_a_question_to_the_method() -> None:
    assert requirements_of(TASK, "").needs_training
    alone = TASK.model_copy(update={"config": {"upload": "prototypes"}})
    assert not requirements_of(alone, "").needs_training
    assert requirements_of(tiny_task(), "").needs_training


async def test_a_method_without_the_role_waits_for_no_graphs(tmp_path) -> None:
    async with bench(tmp_path, tiny_task(), TinyJobs()) as made:
        await prototyper(made, "p")
        await made.until(lambda: "method 'tiny' has no use for role prototype" in made.app.driver.why())
        assert "encoder models" not in {wait["what"] for wait in told(made)}


async def test_classes_that_the_task_does_not_have_win_no_place(tmp_path) -> None:
    lies = {"acc": ModalityState(windows=(0, 0, *(9,) * 1000))}
    async with bench(tmp_path, tiny_task(min_devices=2, devices_per_round=2), TinyJobs()) as made:
        made.app.fleet.may_select = lambda: len(made.app.roster) == 3
        await made.online("liar", modalities=lies)
        await made.online("a")
        await made.online("b", modalities={"gyro": ModalityState(windows=(0, 9))})
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("a", "b")


async def test_graphs_are_made_when_the_first_device_asks_for_them_and_only_once(tmp_path) -> None:
    jobs = TinyJobs()
    async with bench(tmp_path, TASK, jobs) as made:
        await made.online("t")
        await made.phase("collecting")
        assert "features" not in jobs.done, "a fleet that trains never pays for them"
        await made.give("t", Kind.UPDATE, update("t", made.app.driver.state.manifest))
        await made.until(lambda: made.app.driver.state.round == 2)
        await prototyper(made, "p", "q")
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        await made.online("t")
        await made.until(lambda: made.link.to("t", Kind.OFFER)[-1].round == 2)
    assert jobs.done.count("features") == 1
    jobs = TinyJobs(fail=("features",))
    async with bench(tmp_path, TASK, jobs) as made:
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
    assert "features" not in jobs.done, "found on disk"


async def test_an_offer_names_the_graphs_as_soon_as_they_are_made(tmp_path) -> None:
    class Slow(TinyJobs):
        go_on = asyncio.Event()

        async def features(self) -> dict[str, bytes]:
            await self.go_on.wait()
            return await super().features()

    async with bench(tmp_path, TASK.model_copy(update={"method": "qqr"}), Slow(), offer_every_s=0.1) as made:
        await made.online("t", roles=("train", "prototype"))
        await made.until(made.link.offers)
        raw = next(p for t, p, _ in made.link.sent if t.endswith("b/offer") and p)
        assert b"graphs" not in raw
        await prototyper(made, "p")
        made.app.jobs.go_on.set()
        await made.until(lambda: made.link.offers()[-1].graphs)
        offer = made.link.offers()[-1]
        assert set(offer.graphs) == {"acc", "gyro"}, "a device takes those of its modalities"
        blob = BlobStore(tmp_path / "coordinator" / "blobs").get(offer.graphs["acc"].digest)
        assert blob == b"graph of acc"
        assert offer.asks("p"), "the round is open to it, too"


async def test_a_round_waits_for_a_device_that_trains_and_says_so(tmp_path) -> None:
    async with bench(tmp_path, TASK) as made:
        await prototyper(made, "p")
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        assert "0 are; not p (waits for a device that trains)" in made.app.driver.why()
        assert made.app.driver.able() == ()
        await asyncio.sleep(0.7)  # some ticks
        assert made.app.driver.state.phase == "waiting_for_devices"
        await made.online("t")
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("p", "t")
        base = made.app.driver.state.manifest
        await made.give("t", Kind.UPDATE, update("t", base))
        assert made.app.driver.state.phase == "collecting", "the quorum counts it as any other"
        await made.give("p", Kind.UPDATE, update("p", base))
        await made.until(lambda: made.app.driver.state.version == 1)


async def test_where_nothing_trains_prototypes_alone_make_a_round(tmp_path) -> None:
    task = TASK.model_copy(update={"config": {"upload": "prototypes"}})
    async with bench(tmp_path, task) as made:
        await prototyper(made, "p")
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("p",)


async def test_a_drawn_round_holds_a_device_that_trains(tmp_path) -> None:
    task = tiny_task(devices_per_round=1, min_devices=1).model_copy(update={"method": "qqr"})
    async with bench(tmp_path, task, spread_s=0.3) as made:
        both = {"acc": ModalityState(windows=(9, 9)), "gyro": ModalityState(windows=(9, 9))}
        await prototyper(made, "a", "b", "c", modalities=both)
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        await made.online("t")
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("t",)


async def test_a_trained_update_of_an_earlier_attempt_is_enough(tmp_path) -> None:
    task = tiny_task(count=1, min_devices=2, deadline_s=1.0).model_copy(update={"method": "qqr"})
    async with bench(tmp_path, task) as made:
        await made.online("t")
        await prototyper(made, "p")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await made.give("t", Kind.UPDATE, update("t", base))
        await made.give("t", Kind.STATE, messages.encode(State(status="offline", device="t")))
        await made.until(lambda: made.app.driver.state.attempt == 2)
        await made.phase("collecting")
        await made.give("p", Kind.UPDATE, update("p", base))
        await made.phase("done")


class NoExport(TinyJobs):
    """Answers as a coordinator without the ``export`` extra, until it is installed."""

    installed = False

    async def features(self) -> dict[str, bytes]:
        found = await super().features()
        if not self.installed:
            raise Misconfigured("export needs onnx, not installed here: pip install 'lichen[export]'")
        return found


def told(made: Bench) -> list[dict[str, object]]:
    """What ``lichen coordinator status --why`` says, from the disk alone."""
    folder = made.app.settings.state_dir
    file = folder.parent / "coordinator.toml"
    file.write_text(f'fleet = "test"\nstate_dir = "{folder}"\ntask = "task.toml"\n')
    now = made.app.clock.wall()
    with Database(folder / "coordinator.sqlite3", read_only=True) as store:
        _, waited = look(store, load_settings(file), now)
    return [wait.as_json(now) for wait in waited]


async def test_graphs_that_cannot_be_made_stop_no_round_and_are_tried_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(encoder_models, "_FIRST_PAUSE_S", 0.3)
    jobs = NoExport()
    async with bench(tmp_path, tiny_task(min_devices=2).model_copy(update={"method": "qqr"}), jobs) as made:
        await prototyper(made, "p")
        words = "the export failed: Misconfigured: export needs onnx, not installed here"
        await made.until(lambda: words in made.app.driver.why())
        assert f"p ({NO_GRAPHS}" in made.app.driver.why()

        def failed() -> dict[str, dict[str, object]]:
            """What is waited for, while the next attempt is not at work already; else nothing."""
            waited = {str(wait["what"]): wait for wait in told(made)}
            return waited if words in str(waited["encoder models"]["why"]) else {}

        waited = await made.until(failed)
        assert "devices of role prototype take no part (p)" in str(waited["encoder models"]["why"])
        assert waited["encoder models"]["until"]
        assert words in str(waited["devices"]["why"])
        await made.online("t", "u")
        await made.phase("collecting")
        assert tuple(made.app.driver.state.selected) == ("t", "u")
        jobs.installed = True
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        assert "encoder models" not in {wait["what"] for wait in told(made)}


async def test_while_they_are_made_it_is_said(tmp_path) -> None:
    class Slow(TinyJobs):
        go_on = asyncio.Event()

        async def features(self) -> dict[str, bytes]:
            await self.go_on.wait()
            return await super().features()

    async with bench(tmp_path, TASK, Slow()) as made:
        await prototyper(made, "p")
        await made.until(lambda: f"p ({NO_GRAPHS}the export process makes them)" in made.app.driver.why())
        (wait,) = [wait for wait in told(made) if wait["what"] == "encoder models"]
        assert str(wait["why"]).startswith("the export process makes them")
        assert 0 < float(wait["left_s"]) <= made.app.settings.worker.timeout_s
        made.app.jobs.go_on.set()
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")


@pytest.mark.parametrize("how", ["gone", "rotten", "table"])
async def test_what_is_lost_or_damaged_is_made_again(tmp_path, monkeypatch, how: str) -> None:
    monkeypatch.setattr(encoder_models, "LOOK_S", 0.05)
    jobs = TinyJobs()
    async with bench(tmp_path, TASK, jobs) as made:
        await prototyper(made, "p")
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        ref = made.app.encoder_models.offered()["acc"]
        path = BlobStore(tmp_path / "coordinator" / "blobs").path(ref.digest)
        if how == "gone":
            path.unlink()
        elif how == "rotten":
            path.write_bytes(b"graph of ac!")
        else:
            made.app.storage.store.put_meta({encoder_models.META: '{"made_for": "rotten'})
        if how != "table":
            await made.until(lambda: jobs.done.count("features") == 2)
            await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
            assert path.read_bytes() == b"graph of acc"
    if how == "table":
        async with bench(tmp_path, TASK, jobs) as made:
            await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        assert jobs.done.count("features") == 2


async def test_graphs_that_can_be_written_and_not_read_are_no_reason_to_work_without_end(
    tmp_path, monkeypatch
) -> None:
    jobs = TinyJobs()
    async with bench(tmp_path, TASK, jobs) as made:
        monkeypatch.setattr(made.app.encoder_models, "_look", lambda: False)
        await prototyper(made, "p")
        words = "the export failed: Transient: they were written but cannot be read"
        await made.until(lambda: words in made.app.driver.why())
        assert jobs.done.count("features") == 1, "the next try waits"


async def test_graphs_of_another_release_are_of_no_use(tmp_path, monkeypatch) -> None:
    jobs = TinyJobs()
    async with bench(tmp_path, TASK, jobs) as made:
        await prototyper(made, "p")
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        old = json.loads(made.app.storage.store.get_meta(encoder_models.META) or "")
    monkeypatch.setattr("coordinator.workers.encoder_models.metadata.version", lambda _: "99.0")
    async with bench(tmp_path, TASK, jobs) as made:
        await made.until(lambda: jobs.done.count("features") == 2)
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        assert (
            json.loads(made.app.storage.store.get_meta(encoder_models.META) or "")["made_for"]
            != old["made_for"]
        )


async def test_collecting_old_versions_leaves_the_graphs(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        model_registry, "DIFFERENCES_KEPT", 1
    )  # their small manifests would stay for 16 versions
    async with bench(tmp_path, TASK, keep_versions=1) as made:
        await prototyper(made, "p")
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        refs = made.app.encoder_models.offered()
        blobs = BlobStore(tmp_path / "coordinator" / "blobs")
        for round_ in (1, 2, 3):
            await made.online("t")
            await prototyper(made, "p")
            await made.until(lambda n=round_: made.app.driver.state.round == n)
            await made.phase("collecting")
            base = made.app.driver.state.manifest
            for name in ("t", "p"):
                await made.give(name, Kind.UPDATE, update(name, base, round_))
            await made.until(lambda n=round_: made.app.driver.state.version == n)
        await made.phase("done")
        await made.until(lambda: not blobs.has(base))  # what is old goes, a moment after the last version
        assert all(blobs.has(ref.digest) for ref in refs.values())


async def test_model_tensors_of_a_device_that_announced_prototypes_are_checked_and_taken(tmp_path) -> None:
    """A role says what a device can do, and is no permission: its update passes the method's own checks."""
    async with bench(tmp_path, TASK) as made:
        await prototyper(made, "p")
        await made.until(lambda: made.app.encoder_models.terms().no_prototypes == "")
        await made.online("t")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        wrong = frame(header("p", 1, base, method="qqr"), tensors={"head/x": np.zeros(3, np.float32)})
        await made.give("p", Kind.UPDATE, wrong)
        assert made.link.receipts("p")[-1].reason == "wrong_tensors"
        await made.give("p", Kind.UPDATE, update("p", base))
        assert made.link.receipts("p")[-1].status == "accepted"


def test_only_methods_that_say_so_have_the_role() -> None:
    for name, spec in registry.methods().items():
        task = TASK.model_copy(update={"method": name})
        assert (requirements_of(task, "").no_prototypes == "") == spec.prototype_role
