"""Pages and operations of rollouts, over a store that the rollout machine filled."""

import pytest

from coordinator.rollout.device_record import DeviceReport
from coordinator.rollout.model import Begun, Create, Pause, RolloutTick
from coordinator.rollout.stage_devices import Fact
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from protocol.rollout import Trial
from tests.support.console.history import NOW, History, settings_in
from tests.support.console.serving import served
from tests.support.coordinator.rollouts import plan, release, report

NASTY = "it drifts <script>alert(1)</script>"


class Book:
    """A store of rollouts, and devices that report to it."""

    def __init__(self, settings) -> None:
        self.store = RolloutStore(settings.location)
        self.store.play(Begun(mode="manual", release=release(1)), NOW)
        self.now = NOW

    def begin(self, version: int, **changes: object) -> None:
        self.now += 10
        self.store.play(Create(release=release(version), plan=plan(**changes)), self.now)

    def tick(self, names: list[str], **phases: tuple[str, str, dict[str, float]]) -> None:
        self.now += 1
        rollout = self.store.course().rollout
        heard = {}
        for name, (phase, why, measures) in phases.items():
            serial = rollout.members[name].serial
            heard[name] = DeviceReport(
                online=True, trial=report(rollout.release, serial, phase, why, **measures)
            )
        fleet = {name: Fact(online=True) for name in names}
        self.store.play(RolloutTick(heard=heard, fleet=fleet), self.now)


@pytest.mark.both_engines
async def test_console_a_rollout_shows_stages_gates_and_each_verdict(tmp_path) -> None:
    settings = settings_in(tmp_path, rollout={"mode": "manual"})
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a"])
        history.stands(RoundPhase.DONE, 1, 1)
    book = Book(settings)
    names = ["a", "b", "c"]
    book.begin(2, canary="device:a", gates={"max_failed_share": 0.0})
    book.tick(names)
    book.tick(names, a=("rolled_back", NASTY, {"drift": 0.7, "windows": 20.0}))
    limits = Trial(max_drift=0.5, min_agreement=0.4)
    book.begin(3, canary="device:a,b", trial=limits.model_dump())
    book.tick(names)
    book.tick(names, a=("trial", "", {"drift": 0.2, "agreement": 0.3}))
    book.store.play(Pause(), book.now)
    book.store.close()
    async with served(settings) as made:
        found = (await made.json("/rollouts"))["rollouts"]
        assert [(one["number"], one["phase"]) for one in found["rollouts"]] == [(2, "paused"), (1, "failed")]
        assert (found["stable"]["version"], found["failed"][0]["version"]) == (1, 2)
        one = (await made.json("/rollouts/2"))["rollout"]
        assert [stage["state"] for stage in one["stages"]] == ["now", "next"]
        assert one["stages"][0]["members"] == 2
        gates = {gate["name"]: gate for gate in one["gates"]}
        assert gates["Failed devices"]["value"] == "0 of 2"
        assert gates["Committed in this stage"]["standing"] == "open"
        trial = {row["name"]: row for row in one["trial"]}
        assert trial["agreement with the previous model"]["standing"] == "bad"
        assert trial["drift of the predicted classes"]["standing"] == "good"
        failed = (await made.json("/rollouts/1"))["rollout"]
        assert {gate["name"]: gate["standing"] for gate in failed["gates"]}["Failed devices"] == "bad"
        [device] = (await made.json("/rollouts/1/devices?phase=rolled_back"))["devices"]
        assert (device["device"], device["why"]) == ("a", NASTY)
        page = await made.page("/rollouts/1")
        assert "it drifts &lt;script&gt;" in page
        page += await made.page("/rollouts") + await made.page("/rollouts/2") + await made.page("/")
        assert "<script>alert" not in page
        assert "is paused" in page
        assert "/versions/2" not in page, "a version that the registry has not is no link"
        assert "rollout 9 is not stored" in await made.page("/rollouts/9", 404)


async def test_console_a_rollout_of_ten_thousand_devices_pages_them(tmp_path) -> None:
    settings = settings_in(tmp_path, rollout={"mode": "manual"})
    names = [f"device-{n:05}" for n in range(10_000)]
    with History(settings) as history:
        history.makes(0)
        history.stands(RoundPhase.DONE, 0, 0)
    book = Book(settings)
    book.begin(2, canary="share:1")
    book.tick(names)
    book.store.close()
    async with served(settings) as made:
        before = made.statements
        page = await made.page("/rollouts/1?sort=device")
        assert made.statements - before < 10
        assert page.count("/devices/device-") == 100
        assert len(page.encode()) < 200_000
        assert "1 to 100 of 10,000 devices" in page
        assert (await made.json("/rollouts/1/devices?q=09999"))["total"] == 1


async def test_console_without_a_rollout_the_pages_say_so(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.stands(RoundPhase.DONE, 0, 0)
    async with served(settings) as made:
        assert "There was none yet" in await made.page("/rollouts")
        assert (await made.json("/rollouts"))["rollouts"]["rollouts"] == []
        assert "Each export goes to all devices at once" in await made.page("/")
