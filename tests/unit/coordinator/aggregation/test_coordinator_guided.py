"""A guided round: looked at, weighed, folded, finished; what the operator sees; cut off anywhere."""

import asyncio
import json

import numpy as np
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs
from typer.testing import CliRunner

from coordinator.aggregation.device_weight_store import newest
from coordinator.aggregation.device_weights import FULL, NEAREST, kept, shares
from coordinator.aggregation.round_fold import RoundFold
from coordinator.cli.main import app as coordinator
from coordinator.cli.round import app as rounds
from coordinator.status.history import read
from coordinator.status.prometheus import _Collector
from coordinator.storage import schema
from models.guided import DeviceWeights
from protocol.errors import Misconfigured
from protocol.frames.frame import Limits
from protocol.tasks.folding import Privacy
from protocol.topics import Kind
from runtime.process.worker import WorkerFailed
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import TinyServer, frame, header, tiny_task
from tests.support.coordinator.guided import Guided, GuidedJobs

VALUES = {"a": 1.0, "b": 1.25, "c": 1.0, "odd": 9.0}
TASK = tiny_task(count=1, min_devices=4)


async def deliver(made, values=VALUES, round_: int = 1) -> None:
    """All devices report, are selected, and send their value."""
    await made.online(*values)
    await made.phase("collecting")
    base = made.app.driver.state.manifest
    for device, value in values.items():
        if device in made.app.driver.state.missing():
            await made.give(device, Kind.UPDATE, frame(header(device, round_, base), value))


def said(app, *words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_a_guided_round_folds_by_weight_and_is_finished_at_the_coordinator(tmp_path) -> None:
    async with bench(tmp_path, TASK, GuidedJobs(), Guided()) as made:
        with capture_logs() as logs:
            await deliver(made)
            await made.until(lambda: made.app.driver.state.version == 1)
        state = await made.app.model.state()
        jobs = made.app.jobs
    raw = {d: 1.0 / (1.0 + abs(v - 1.125)) for d, v in VALUES.items()}
    mean = sum(VALUES[d] * w for d, w in raw.items()) / sum(raw.values())
    np.testing.assert_allclose(state["head"]["head/w"], mean + 0.5, atol=1e-3)
    assert jobs.seen == [["a", "b", "c", "odd"]]
    [(round_, seed)] = jobs.finished
    assert round_ == 1
    assert 0 <= seed < 2**31
    [said] = [one for one in logs if one["event"] == "weighing"]
    assert "odd is pushed out" in said["why"]
    [found] = [one for one in read(tmp_path / "coordinator")["rounds"] if one["round"] == 1]
    assert found["weighing"]["metrics"] == {"head_loss": 0.25}
    assert sum(found["weighing"]["weights"]["head"].values()) == pytest.approx(1.0, abs=1e-5)
    row = found["weighing"]["similarity"]["head"]["a"]
    assert row["others"] == {"c": 1.0, "b": 0.8, "odd": pytest.approx(1 / 9, rel=1e-4)}
    assert (row["of"], row["most"]) == (3, 1.0)


async def test_a_sum_that_nobody_looked_into_is_finished_at_the_coordinator_without_weights() -> None:
    jobs = GuidedJobs()
    state = {"head": {"head/w": np.ones(3, np.float32)}, "optimizer/m": {"x": np.zeros(1, np.float32)}}
    made = await RoundFold(Guided(), TASK, jobs).finish(7, state, {"head": 2.0})
    np.testing.assert_array_equal(made.state["head"]["head/w"], np.full(3, 1.5, np.float32))
    assert "optimizer/m" in made.state
    assert jobs.seen == []
    assert [round_ for round_, _ in jobs.finished] == [7]
    assert made.reference == {"head": 2.0}
    assert made.weighed is not None
    assert (made.weighed.weights, made.weighed.metrics) == ({}, {"head_loss": 0.25})
    plain = await RoundFold(TinyServer(), TASK, jobs).finish(7, state, {})
    assert (plain.state, plain.weighed) == (state, None)


@pytest.mark.parametrize("how", ["diverges", "is not finite"])
async def test_a_sum_on_which_nothing_can_be_trained_is_a_version_with_a_warning(how) -> None:
    class Failing(GuidedJobs):
        async def finish(self, *_):
            if how == "is not finite":
                return {"head": {"head/w": np.full(3, np.nan, np.float32)}}, {}
            raise Misconfigured("training on 9 labelled windows diverged: lower head_lr")

    state = {"head": {"head/w": np.ones(3, np.float32)}}
    with capture_logs() as logs:
        made = await RoundFold(Guided(), TASK, Failing()).finish(7, state, {})
    assert made.state is state
    assert made.weighed is not None
    [words] = made.weighed.warnings
    assert words.startswith("not trained on the labelled windows, so only the devices' parts are new: ")
    assert [one["event"] for one in logs] == ["round_not_finished"]


async def test_with_privacy_no_update_is_looked_at() -> None:
    class Folds:
        """Notes the weights of a fold, which adds one to the head."""

        views_a_job = 4

        def __init__(self):
            self.weighings = []

        async def screen(self, *_):
            return {}

        async def fold(self, _server, _updates, state, weighing):
            self.weighings.append(weighing)
            return {"head": {"head/w": state["head"]["head/w"] + np.float32(1)}}

    private = TASK.model_copy(update={"privacy": Privacy(clip=1.0, noise_multiplier=1.0)})
    jobs, folds, state = GuidedJobs(), Folds(), {"head": {"head/w": np.ones(3, np.float32)}}
    made = await RoundFold(Guided(), private, jobs, folds).fold(
        1, state, [], Limits(), {}, {}, lambda: pytest.fail("no view needs the published model")
    )
    assert folds.weighings == [None]
    assert jobs.seen == []
    np.testing.assert_array_equal(made.state["head"]["head/w"], np.full(3, 2.5, np.float32))


async def test_the_operator_sees_weights_similarities_and_who_was_pushed_out(tmp_path) -> None:
    (tmp_path / "coordinator.toml").write_text(
        'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n'
    )
    file = str(tmp_path / "coordinator.toml")
    async with bench(tmp_path, TASK, GuidedJobs(), Guided()) as made:
        families = {one.name: one for one in _Collector(made.app.measured).collect()}
        assert "lichen_device_weight" not in families
        await deliver(made)
        await made.until(lambda: made.app.driver.state.version == 1)
        families = {one.name: one for one in _Collector(made.app.measured).collect()}
        status = json.loads(
            CliRunner().invoke(coordinator, ["status", "-c", file, "--format", "json"]).stdout
        )
        words = CliRunner().invoke(coordinator, ["status", "-c", file]).stdout
    weights = {s.labels["device"]: s.value for s in families["lichen_device_weight"].samples}
    assert min(weights, key=weights.__getitem__) == "odd"
    assert sum(weights.values()) == pytest.approx(4.0, abs=1e-4)
    assert families["lichen_weighing_warnings"].samples[0].value == 1
    assert status["weighing"]["round"] == 1
    assert status["weighing"]["warnings"] == ["odd is pushed out: raise floor"]
    assert f"weight in round 1: odd: {weights['odd']:.2f} of an equal share of head" in words
    assert "warning: odd is pushed out" in words
    told = said(rounds, "explain", "-c", file).splitlines()
    first = told.index("weights of head (1 is an equal share; the lightest first):") + 1
    assert told[first].startswith(f"  odd: {weights['odd']:.2f}, ")
    assert "similarity to the other 3: mean 0.1" in told[first]
    assert "trained on the labelled windows: head_loss 0.25" in told
    assert told[-1] == "warning: odd is pushed out: raise floor"
    data = json.loads(said(rounds, "explain", "-c", file, "--format", "json"))
    assert set(data["weighing"]["similarity"]["head"]["odd"]["others"]) == {"a", "b", "c"}


async def test_a_device_without_a_view_is_lost_told_and_not_asked_again(tmp_path) -> None:
    task = tiny_task(count=1, min_devices=3)
    async with bench(tmp_path, task, GuidedJobs(blind=["odd"]), Guided()) as made:
        made.app.fleet.may_select = lambda: len(made.app.roster) == len(VALUES)
        await deliver(made)
        await made.until(lambda: made.app.driver.state.version == 1)
        assert made.link.receipts("odd")[-1].reason == "non_finite"
        assert made.app.jobs.seen == [["a", "b", "c", "odd"]], "nobody is looked at twice"
    [found] = read(tmp_path / "coordinator")["rounds"]
    assert found["counted"] == ["a", "b", "c"]
    assert set(found["weighing"]["weights"]["head"]) == {"a", "b", "c"}
    async with bench(tmp_path / "few", TASK, GuidedJobs(blind=["odd"]), Guided()) as made:
        await deliver(made)
        await made.phase("waiting_for_devices")
        assert made.app.driver.state.refused == {"odd": "non_finite"}
        assert made.app.driver.state.version == 0


class Stuck(GuidedJobs):
    """Never ends the step that it is told."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.reached = asyncio.Event()

    async def _stop(self, where: str) -> None:
        if where == self.where:
            self.reached.set()
            await asyncio.Event().wait()

    async def view(self, state, entries, limits):
        await self._stop("view")
        found = await super().view(state, entries, limits)
        await self._stop("viewed")
        return found

    async def finish(self, round_, seed, state):
        await self._stop("finish")
        found = await super().finish(round_, seed, state)
        await self._stop("finished")
        return found


async def test_a_round_that_is_cut_off_anywhere_gives_the_same_version_when_done_again(tmp_path) -> None:
    manifests = set()
    for where in ("nowhere", "view", "viewed", "finish", "finished"):
        jobs, root = Stuck(where), tmp_path / where
        async with bench(root, TASK, jobs, Guided()) as made:
            await deliver(made)
            if where != "nowhere":
                await asyncio.wait_for(jobs.reached.wait(), 20)
                assert made.app.driver.state.version == 0
                assert newest(made.app.storage.store) is None, "a weighing is there when its version is"
            else:
                await made.until(lambda: made.app.driver.state.version == 1)
        async with bench(root, TASK, GuidedJobs(), Guided()) as made:
            await made.until(lambda: made.app.driver.state.version == 1)
            manifests.add(made.app.driver.state.manifest)
            assert newest(made.app.storage.store)["round"] == 1
    assert len(manifests) == 1


class Spoiling(GuidedJobs):
    """Its first training leaves something that is no model."""

    def __init__(self, spoil) -> None:
        super().__init__()
        self.spoil = spoil

    async def finish(self, round_, seed, state):
        made, metrics = await super().finish(round_, seed, state)
        return (self.spoil(made) if len(self.finished) == 1 else made), metrics


@pytest.mark.parametrize(
    ("jobs", "server", "words"),
    [
        (lambda: GuidedJobs(fail=["view"]), Guided, "view was told to fail"),
        (lambda: Spoiling(lambda _: {}), Guided, "spoilt 'head/w'"),
        (
            lambda: Spoiling(lambda made: {"head": {"head/w": made["head"]["head/w"] * np.nan}}),
            Guided,
            "spoilt",
        ),
        (lambda: Spoiling(lambda _: {"head": {"head/w": np.zeros(3, np.float32)}}), Guided, "another shape"),
        (GuidedJobs, lambda: Guided(ValueError("a fault of ours")), "weighing failed: ValueError"),
    ],
    ids=["worker", "nothing", "not-finite", "shape", "weighing"],
)
async def test_what_fails_is_said_and_tried_again_and_no_half_version_is_made(
    tmp_path, jobs, server, words
) -> None:
    async with bench(tmp_path, TASK, jobs(), server()) as made:
        await deliver(made)
        await made.until(lambda: made.app.driver.state.failures == 1)
        assert words in made.app.driver.state.trouble
        assert made.app.driver.state.version == 0
        assert newest(made.app.storage.store) is None
        if made.app.jobs.fail:  # one of them, as each takes the time of a retry
            made.app.jobs.fail.clear()
            await made.until(lambda: made.app.driver.state.version == 1)


class Short(GuidedJobs):
    """Has time for two updates a job; the third job is cut off once more."""

    async def view(self, state, entries, limits):
        if len(entries) > 2 or (len(self.seen) == 1 and not self.finished):
            self.finished.append((0, 0))
            raise WorkerFailed("models.worker did not end within 600 s", "")
        return await super().view(state, entries, limits)


async def test_looks_that_take_too_long_are_tried_again_with_fewer_and_none_is_done_twice(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("coordinator.round_machine.retry_delay._RETRY_S", 0.05)
    async with bench(tmp_path, TASK, Short(), Guided()) as made:
        await deliver(made)
        await made.until(lambda: made.app.driver.state.version == 1)
        seen = made.app.jobs.seen
    assert sorted(device for part in seen for device in part) == sorted(VALUES)
    assert max(map(len, seen)) == 2
    async with bench(tmp_path / "at-once", TASK, GuidedJobs(), Guided()) as other:
        await deliver(other)
        await other.until(lambda: other.app.driver.state.version == 1)
        assert other.app.driver.state.manifest == made.app.driver.state.manifest


def many(count: int) -> DeviceWeights:
    names = [f"d{n:03}" for n in range(count)]
    rows = {a: {b: float(np.cos((i - j) / count)) for j, b in enumerate(names)} for i, a in enumerate(names)}
    return DeviceWeights(
        {"encoder/acc": dict.fromkeys(names, 1 / count)}, {"encoder/acc": rows}, ("x" * 5000,) * 50
    )


def test_what_is_kept_of_a_large_fleet_grows_with_its_devices_alone() -> None:
    few, more = kept(many(FULL), {}), kept(many(200), {"loss": float("nan")})
    rows = few.similarity["encoder/acc"]
    assert {len(row["others"]) for row in rows.values()} == {FULL - 1}
    rows = more.similarity["encoder/acc"]
    assert {len(row["others"]) for row in rows.values()} == {2 * NEAREST}
    first = rows["d000"]
    assert list(first["others"]) == ["d001", "d002", "d003", "d197", "d198", "d199"]
    assert (first["of"], first["others"]["d001"], first["others"]["d199"]) == (
        199,
        first["most"],
        first["least"],
    )
    assert first["least"] < first["mean"] < first["most"]
    assert len(more.weights["encoder/acc"]) == 200
    assert len(more.warnings) == 20
    assert len(json.dumps(more.as_json(), allow_nan=False)) < 200 * 400 + 20 * 1100
    assert more.as_json()["metrics"] == {}


def test_a_device_alone_has_a_row_without_others() -> None:
    alone = kept(DeviceWeights({"p": {"d": 1.0}}, {"p": {"d": {"d": 1.0}}}), {}).similarity["p"]["d"]
    assert (alone["of"], alone["others"]) == (0, {})
    assert list(shares({"p": {"d": 1.0}})) == [("p", "d", 1.0)]


async def test_weighings_leave_the_history_with_their_rounds(tmp_path) -> None:
    task = tiny_task(count=3, min_devices=2)
    async with bench(tmp_path, task, GuidedJobs(), Guided(), keep_updates=1) as made:
        for round_ in (1, 2, 3):
            await deliver(made, {"a": 1.0, "b": 2.0}, round_)
            await made.until(lambda wanted=round_: made.app.driver.state.version == wanted)
        await made.phase("done")
        await made.until(lambda: len(made.app.storage.store.rows(sa.select(schema.weighings))) < 3)
    kept_rounds = [one["round"] for one in read(tmp_path / "coordinator")["rounds"] if one["weighing"]]
    assert kept_rounds
    assert 1 not in kept_rounds
    assert kept_rounds[-1] == 3


async def test_a_weighing_survives_a_salvage_from_the_backup(tmp_path) -> None:
    task = tiny_task(count=2, min_devices=2)
    async with bench(tmp_path, task, GuidedJobs(), Guided()) as made:
        await deliver(made, {"a": 1.0, "b": 2.0})
        await made.phase("collecting")
        await made.until(lambda: made.app.round_worker._secured == 1)
        before = newest(made.app.storage.store)
    database = tmp_path / "coordinator" / "coordinator.sqlite3"
    database.write_bytes(b"not a database")
    async with bench(tmp_path, task, GuidedJobs(), Guided()) as made:
        assert newest(made.app.storage.store) == before
        assert before["round"] == 1
