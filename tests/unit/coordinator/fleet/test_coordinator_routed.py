"""Bundles by serving route: one for each kind of device, each device pointed at its own."""

import asyncio

import sqlalchemy as sa

from coordinator.cli.status import look
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.routes import ReleaseBundle, ServingNeed, best_bundle, group_by_route
from coordinator.fleet.serving_routes import ServingRoutes, TrainingRoutes, routing, served
from coordinator.status.history import read as history
from coordinator.storage import schema
from coordinator.storage.database import Database
from models.contract import Profile
from models.methods.disentafl.messages import DisentMessage
from models.registry import method
from protocol import messages
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModalityState, ModelPointer, State
from protocol.tasks.task import Target
from protocol.topics import Kind, broadcast_topic, device_topic
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, frame, header, tiny_task
from tests.support.coordinator.routed import PartJobs, Parts

ACC, GYRO = {"acc": ModalityState(windows=(2, 1))}, {"gyro": ModalityState(windows=(2, 1))}


def task(**rounds):
    speed = Target(name="speed", kind="regression")
    return tiny_task(**({"count": 1} | rounds)).model_copy(update={"targets": (speed,)})


def routed(folder, task_=None, jobs=None, **settings):
    return bench(folder, task_ or task(), jobs or PartJobs(), Parts(), **settings)


async def finish(made, **extra: dict) -> None:
    """Everybody who is selected delivers, until the task is done."""
    driver = made.app.driver
    for round_ in range(driver.state.round, made.app.driver.task.rounds.count + 1):
        await made.until(lambda known=round_: driver.state.round == known)
        await made.phase("collecting")
        for device in driver.state.missing():
            head = header(device, round_, driver.state.manifest, extra=extra.get(device, {}))
            await made.give(device, Kind.UPDATE, frame(head))
        await made.until(lambda known=round_: driver.state.version == known)
    await made.phase("done")


def pointers(made, device: str) -> list[ModelPointer]:
    topic = device_topic(FLEET, device, Kind.MODEL)
    assert all(retain for t, _, retain in made.link.sent if t == topic), "the broker keeps it"
    return made.link.to(device, Kind.MODEL)


async def fleet(made) -> None:
    await made.online("a1", "a2", "a3", modalities=ACC)
    await made.online("g1", "g2", modalities=GYRO)
    await made.online("both", modalities=ACC | GYRO, targets=("label", "speed"))


async def test_every_kind_of_device_gets_a_bundle_of_its_own_and_b_model_says_nothing(tmp_path) -> None:
    jobs = PartJobs()
    async with routed(tmp_path, task(min_devices=6), jobs) as made:
        await fleet(made)
        await made.online("deaf", modalities={"strange": ModalityState()}, windows=0)
        await finish(made)
        await made.until(lambda: all(pointers(made, d) for d in ("a1", "a2", "a3", "g1", "g2", "both")))
        assert jobs.exported == [
            ("base/acc", "last/label"),  # of three devices
            ("base/gyro", "last/label"),
            ("base/acc", "base/gyro", "last/label", "last/speed"),
        ]
        told = {d: pointers(made, d)[-1].bundle.digest for d in ("a1", "a2", "a3", "g1", "g2", "both")}
        assert len({told[d] for d in ("a1", "a2", "a3")}) == len({told["g1"], told["g2"]}) == 1
        assert len(set(told.values())) == 3
        assert pointers(made, "deaf") == []
        assert all(topic != broadcast_topic(FLEET, Kind.FLEET_MODEL) for topic, *_ in made.link.sent)
        for name in told.values():
            assert made.app.deployment.blobs.has(name)
    found = history(tmp_path / "coordinator")
    assert found["exports"] == []
    assert {(tuple(b["modalities"]), tuple(b["targets"])): b["devices"] for b in found["bundles"]} == {
        (("acc",), ("label",)): 3,
        (("gyro",), ("label",)): 2,
        (("acc", "gyro"), ("label", "speed")): 1,
    }


async def test_routes_beyond_the_bound_are_named_and_keep_what_they_have(tmp_path) -> None:
    async with routed(tmp_path, task(min_devices=6), export={"max_routes": 1}) as made:
        await fleet(made)
        await finish(made)
        await made.until(lambda: pointers(made, "a1"))
        assert len(made.app.jobs.exported) == 1
        assert pointers(made, "g1") == []
        found, _ = look(made.app.storage.store, made.app.settings, 0.0)
        assert [one["words"] for one in found["unserved"]] == [
            "gyro -> label: 2 devices (g1, g2)",
            "acc, gyro -> label, speed: 1 device (both)",
        ]
        assert [(one["route"], one["version"]) for one in found["bundles"]] == [("acc -> label", 1)]


async def test_a_route_that_cannot_be_exported_costs_the_others_nothing(tmp_path) -> None:
    jobs = PartJobs(broken=["base/gyro"])
    async with routed(tmp_path, task(min_devices=6), jobs) as made:
        await fleet(made)
        await finish(made)
        assert "2 of 3 bundles, the first for gyro -> label: 2 devices" in made.app.driver.state.trouble
        assert pointers(made, "a1")
        assert pointers(made, "g1") == []
    assert "base/gyro is broken" in history(tmp_path / "coordinator")["versions"][1]["trouble"]


async def test_what_is_tried_again_makes_only_the_bundles_that_lack(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coordinator.round_machine.retry_delay._PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr("coordinator.rounds.driver.TICK_S", 0.02)
    jobs = PartJobs(broken=["base/gyro"], error=Transient)
    async with routed(tmp_path, task(min_devices=6), jobs) as made:
        await fleet(made)

        async def mend() -> None:
            await made.until(lambda: "base/gyro is broken" in made.app.driver.why())
            jobs.broken.clear()

        await asyncio.gather(finish(made), mend())
        assert made.app.driver.state.trouble == ""
    assert sorted(jobs.exported) == sorted(set(jobs.exported))
    assert len(jobs.exported) == 3


async def test_an_export_waits_for_devices_to_make_bundles_for(tmp_path, monkeypatch) -> None:
    """As after a salvage without a backup: the roster is empty until the broker hands out its states."""
    monkeypatch.setattr("coordinator.round_machine.retry_delay._PAUSES_S", (0.01,) * 50)
    monkeypatch.setattr("coordinator.rounds.driver.TICK_S", 0.02)
    async with routed(tmp_path) as made:
        routes = made.app.deployment.exporter.routes
        known, routes.all = routes.all, dict
        await made.online("a1", modalities=ACC)

        async def come_back() -> None:
            await made.until(lambda: "no device is known that reads" in made.app.driver.why())
            routes.all = known

        await asyncio.gather(finish(made), come_back())
        await made.until(lambda: pointers(made, "a1"))


async def test_a_restart_in_the_middle_of_an_export_goes_on_with_the_rest(tmp_path) -> None:
    class Halting(PartJobs):
        async def export(self, state, lineage):
            if self.exported:
                await asyncio.Event().wait()
            return await super().export(state, lineage)

    first, second = Halting(), PartJobs()
    async with routed(tmp_path, task(min_devices=6), first) as made:
        await fleet(made)
        over = asyncio.create_task(finish(made))
        await made.until(
            lambda: made.app.driver.state.phase == "exporting" and served(made.app.storage.store)
        )
        over.cancel()
    async with routed(tmp_path, task(min_devices=6), second) as made:
        await made.phase("done")
        assert len(second.exported) == 2
        assert not set(first.exported) & set(second.exported)


async def test_who_comes_later_is_told_at_once_and_who_runs_it_is_left_alone(tmp_path) -> None:
    async with routed(tmp_path) as made:
        await made.online("a1", modalities=ACC)
        await finish(made)
        await made.until(lambda: pointers(made, "a1"))
        mine = pointers(made, "a1")[0].bundle.digest
        await made.online("a9", modalities=ACC)
        await made.until(lambda: pointers(made, "a9"))
        assert pointers(made, "a9")[0].bundle.digest == mine
        for _ in range(3):
            await made.online("a9", modalities=ACC, windows=11)
        assert len(pointers(made, "a9")) == 1, "it says so often, and is told once a minute"
        leaves = State(status="offline", device="a9")
        await made.give("a9", Kind.STATE, messages.encode(leaves))
        await made.online("a9", modalities=ACC)
        await made.until(lambda: len(pointers(made, "a9")) == 2)  # who was away is told again
        await made.give("a9", Kind.STATE, messages.encode(leaves))
        await made.online("a9", modalities=ACC, model=mine)
        assert len(pointers(made, "a9")) == 2, "it runs that already"
        await made.online("g9", modalities=GYRO)
        assert pointers(made, "g9") == [], "nothing was made for it yet"
        said = len(pointers(made, "a1"))
        await made.app.announcer.publish_all()
        assert len(pointers(made, "a1")) == said + 1, "the broker may have lost it"


async def test_a_state_of_a_device_with_a_route_reads_one_row(tmp_path, monkeypatch) -> None:
    async with routed(tmp_path) as made:
        await made.online("a1", modalities=ACC)
        await finish(made)
        await made.until(lambda: pointers(made, "a1"))
        delivery, queries = made.app.deployment, []
        read = made.app.storage.store.rows
        monkeypatch.setattr(
            made.app.storage.store, "rows", lambda query: queries.append(query) or read(query)
        )
        assert await delivery.pointer_for("a1", reconnected=True) is not None
        # The coordinator's other tasks go on meanwhile, and read other tables.
        read_from = [str(query).split("FROM ")[1].split()[0] for query in queries]
        assert read_from.count("messages") == 1, "what the device last said"
        assert "bundles" not in read_from, "the tables of bundles are read by announcements alone"


async def test_a_sensor_that_comes_changes_the_pointer_without_a_restart(tmp_path) -> None:
    async with routed(tmp_path, task(min_devices=6)) as made:
        await fleet(made)
        await finish(made)
        await made.until(lambda: all(pointers(made, d) for d in ("a1", "a2", "a3", "g1", "g2", "both")))
        await made.online("a1", modalities=ACC | GYRO, targets=("label", "speed"))
        await made.until(lambda: len(pointers(made, "a1")) == 2)
        assert pointers(made, "a1")[-1].bundle == pointers(made, "both")[-1].bundle
        mine = pointers(made, "a2")[-1].bundle
        await made.online("a1", modalities=ACC, model=mine.digest)
        # it runs that, but the broker retains another
        await made.until(lambda: pointers(made, "a1")[-1].bundle == mine)


async def test_what_a_device_chose_in_its_last_update_is_served_also_after_a_restart(tmp_path) -> None:
    jobs = PartJobs()
    async with routed(tmp_path, task(min_devices=2), jobs, export={"enabled": False}) as made:
        await made.online("a1", "a2", modalities=ACC)
        await finish(made, a1={"best": "2"})
    async with routed(tmp_path, task(min_devices=2, count=2), jobs) as made:
        await made.online("a1", "a2", modalities=ACC)
        await made.phase("collecting")
        head = header("a2", 2, made.app.driver.state.manifest, extra={"best": 7})
        await made.give("a2", Kind.UPDATE, frame(head))  # a message that nobody can read, for some reason
        head = header("a1", 2, made.app.driver.state.manifest, extra={"best": "2"})
        await made.give("a1", Kind.UPDATE, frame(head))
        await made.phase("done")
        assert set(jobs.exported) == {("base/acc", "last/label"), ("base/acc2", "last/label")}
        rows = made.app.storage.store.rows(sa.select(schema.messages))
        assert {(row["device"], row["round"]) for row in rows} == {("a1", 2), ("a2", 2)}


async def test_a_route_that_nobody_has_any_more_leaves_the_disk(tmp_path) -> None:
    jobs = PartJobs()
    async with routed(tmp_path, task(count=4, min_devices=1), jobs, export={"every_rounds": 1}) as made:
        await made.online("a1", modalities=ACC)
        for round_ in range(1, 5):
            await made.until(lambda known=round_: made.app.driver.state.round == known)
            await made.phase("collecting")
            if round_ == 2:
                await made.online("a1", modalities=GYRO)
            await made.give("a1", Kind.UPDATE, frame(header("a1", round_, made.app.driver.state.manifest)))
        await made.phase("done")
        there = served(made.app.storage.store)
        assert [(one.need.blobs, one.version) for one in there] == [(("base/gyro", "last/label"), 4)]
        old = digest(b"1 ['base/acc', 'last/label']")
        assert not made.app.deployment.blobs.has(old)
        assert made.app.deployment.blobs.has(there[0].bundle.digest)


async def test_a_device_whose_new_route_cannot_be_exported_keeps_its_bundle(tmp_path) -> None:
    jobs = PartJobs(broken=["base/acc2"])
    async with routed(tmp_path, task(count=3, min_devices=1), jobs, export={"every_rounds": 1}) as made:
        await made.online("a1", modalities=ACC)
        for round_ in range(1, 4):
            await made.until(lambda known=round_: made.app.driver.state.round == known)
            await made.phase("collecting")
            best = {"best": "" if round_ == 1 else "2"}
            head = header("a1", round_, made.app.driver.state.manifest, extra=best)
            await made.give("a1", Kind.UPDATE, frame(head))
        await made.phase("done")
        assert [(one.need.blobs, one.version) for one in served(made.app.storage.store)] == [
            (("base/acc", "last/label"), 1)
        ]
        assert made.app.deployment.blobs.has(pointers(made, "a1")[-1].bundle.digest)


def need(*blobs: str, targets: tuple[str, ...] = ("label",)) -> ServingNeed:
    return ServingNeed(Profile(("acc",), targets), blobs)


def bundle(of: ServingNeed, version: int, devices: int = 1) -> ReleaseBundle:
    return ReleaseBundle(
        version=version,
        bundle=BlobRef(digest=digest(f"{version} {of.blobs}".encode()), size=1),
        blobs=of.blobs,
        modalities=of.profile.modalities,
        targets=of.profile.targets,
        devices=devices,
        base="base",
    )


def test_a_device_gets_the_newest_bundle_that_does_what_it_does() -> None:
    mine, twin, other = need("x"), need("y"), need("x", "z", targets=("label", "speed"))
    assert best_bundle(mine, [bundle(twin, 3, 9), bundle(mine, 3)]).need == mine, "its own route first"
    assert best_bundle(mine, [bundle(twin, 4), bundle(mine, 3)]).need == twin, "but never an older one"
    assert best_bundle(mine, [bundle(other, 9)]) is None
    assert best_bundle(mine, []) is None


def test_routes_are_ordered_by_devices_and_then_by_name() -> None:
    found = group_by_route({"c": need("y"), "a": need("x"), "b": need("y"), "d": need("w")})
    assert [(one.need.blobs, one.devices) for one in found] == [
        (("y",), ("b", "c")),
        (("w",), ("d",)),
        (("x",), ("a",)),
    ]
    assert len({one.key for one in found}) == 3


def test_the_real_method_is_served_the_domain_that_a_device_prefers(tmp_path) -> None:
    names = task().model_copy(update={"method": "disentafl"})
    message = DisentMessage(modalities=("acc",), targets=("label",), domain=0, best=2)
    with Database(tmp_path / "c.sqlite3") as store:
        roster = DeviceRegistry(store, lambda: 0.0)
        given = {"status": "online", "roles": ("train",)}
        roster.update(State(device="a", modalities=ACC, **given))
        roster.update(State(device="new", modalities=ACC, targets=("label", "speed"), **given))
        roster.update(State(device="barred", modalities=ACC, **given))
        roster.update(State(device="odd", modalities={"mic": ModalityState()}, **given))
        store.put(schema.messages, device="a", round=1, extra=message.extra())
        no = Refused(Reason.QUARANTINED, "no")
        server = routing(method("disentafl").server())
        needs = ServingRoutes(names, server, store, roster, lambda device: no if device == "barred" else None)
        found = needs.all()
        assert set(found) == {"a", "new"}
        assert {
            "base/acc",
            "domain/acc.2",
            "expert/acc.label",
            "expert/_shared._shared",
            "last/label",
        } <= set(found["a"].blobs)
        assert not {"domain/acc.0", "last/speed", "gate/acc"} & set(found["a"].blobs)
        assert {"domain/acc.0", "decoder/speed"} <= set(found["new"].blobs)
        assert needs.one("a") == found["a"]
        wrong = {**message.extra(), "best": 99}
        store.put(schema.messages, device="a", round=1, extra=wrong)
        assert "domain/acc.0" in needs.one("a").blobs, "what cannot be read counts as never said"
        learns = TrainingRoutes(names, server, roster)
        assert {f"domain/acc.{d}" for d in range(3)} <= set(learns("a"))
        assert learns("nobody") == ()
    assert routing(method("qqr").server()) is None


async def test_a_device_that_comes_after_the_last_round_with_a_new_kind_gets_a_bundle(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("coordinator.rounds.late_bundles._POLL_S", 0.05)
    jobs = PartJobs()
    async with routed(tmp_path, task(min_devices=3), jobs) as made:
        await made.online("a1", "a2", "a3", modalities=ACC)
        await finish(made)
        await made.until(lambda: pointers(made, "a1"))
        assert jobs.exported == [("base/acc", "last/label")]
        await made.online("late", modalities=GYRO, targets=("label", "speed"))
        await made.until(lambda: pointers(made, "late"))
        assert len(jobs.exported) == 2, "the others' is not made again"
        assert pointers(made, "late")[-1].bundle.digest != pointers(made, "a1")[-1].bundle.digest
        assert pointers(made, "late")[-1].version == 1
        _, waits = look(made.app.storage.store, made.app.settings, made.app.clock.wall())
        assert waits == []


async def test_what_a_late_device_waits_for_is_said_where_no_bundle_can_be_made(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("coordinator.rounds.late_bundles._POLL_S", 0.05)
    jobs = PartJobs(broken=["base/gyro"])

    def said(made) -> list[str]:
        _, waits = look(made.app.storage.store, made.app.settings, made.app.clock.wall())
        return [wait.why for wait in waits if wait.what == "bundles"]

    async with routed(tmp_path, task(min_devices=3), jobs) as made:
        await made.online("a1", "a2", "a3", modalities=ACC)
        await finish(made)
        await made.until(lambda: pointers(made, "a1"))
        await made.online("late", modalities=GYRO)
        [words] = await made.until(lambda: said(made))
        assert "no bundle could be made for gyro -> label: 1 device (late)" in words
        assert "base/gyro is broken" in words
