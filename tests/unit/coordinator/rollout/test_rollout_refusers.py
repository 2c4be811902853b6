"""What one device can do to the fleet's models by saying that it refuses them, and what it cannot."""

import pytest

from coordinator.config.rollout import Gates
from coordinator.delivery import rollout_service
from coordinator.rollout.device_record import LEFT_OUT_AFTER, MAX_BASE_SHARE
from coordinator.rollout.model import Begun, Create
from coordinator.rollout.stage_devices import rank
from coordinator.rollout.view import waits
from protocol.messages import ModelPointer, decode
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task
from tests.support.coordinator.rollouts import Fleet, plan, release, rollout
from tests.unit.coordinator.rollout.test_rollout_staged import Devices, course, deliver

TWENTY = tuple(f"d{n}" for n in range(20))
SHARED = {"canary": "share:0.1", "soak_s": 0.0}


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet(*names)
    fleet.play(Begun(mode="manual", release=release(1)))
    return fleet


def rolled_out(fleet: Fleet, version: int, *refuse: str, **changes: object) -> str:
    """One rollout to its end, in which these devices refuse and all others keep the version."""
    fleet.play(Create(release=release(version), plan=plan(**SHARED | changes)))
    for _ in range(20):
        fleet.tick()
        if fleet.phase() != "open":
            return fleet.phase()
        for name, member in fleet.course.rollout.members.items():
            if member.phase == "waiting":
                fleet.says(name, "refused" if name in refuse else "committed", "I say so")
    raise AssertionError(waits(fleet.course))


def test_a_device_that_refuses_everything_ends_one_rollout_at_most_and_is_then_left_out():
    fleet = fleet_of(*TWENTY)
    liar = min(TWENTY, key=rank)
    assert rolled_out(fleet, 2, liar) == "failed", "half of the canary says that it is bad: so it may be"
    assert liar in fleet.members(0)
    for version in range(3, 3 + LEFT_OUT_AFTER):
        assert rolled_out(fleet, version, liar) == "complete"
        assert liar in fleet.members(1), "others are the canary now"
        assert not fleet.course.rollout.members[liar].left_out
    assert rolled_out(fleet, 10, liar, gates={"max_failed_share": 0.0}) == "complete", "not even one may fail"
    assert fleet.course.rollout.members[liar].left_out
    assert "1 left out" in fleet.course.rollout.why
    assert rolled_out(fleet, 11) == "complete"
    assert fleet.course.refusers == {}, "it kept one, and counts again"


def test_one_of_a_canary_of_ten_may_refuse_and_two_may_not():
    fleet = fleet_of(*(f"d{n}" for n in range(100)))
    first = sorted(fleet.names, key=rank)[:2]
    assert rolled_out(fleet, 2, first[0]) == "complete"
    assert rolled_out(fleet_of(*fleet.names), 2, *first) == "failed"


@pytest.mark.parametrize("count", [1, 2, 4, 20])
def test_a_bad_version_ends_at_the_canary_of_a_fleet_of_any_size(count):
    fleet = fleet_of(*TWENTY[:count])
    assert rolled_out(fleet, 2, *TWENTY) == "failed"
    assert len(fleet.course.rollout.members) == max(1, count // 10), "nobody else saw it"


def test_bad_versions_one_after_the_other_leave_nobody_out():
    """Else the word of the whole fleet would count for nothing in the end."""
    fleet = fleet_of(*TWENTY)
    for version in range(2, 12):
        assert rolled_out(fleet, version, *TWENTY) == "failed"
    assert not any(one.left_out for one in fleet.course.refusers.values())


def test_a_wave_of_nobody_but_such_devices_passes():
    fleet = fleet_of("a", "b", "c")
    for version in range(2, 2 + LEFT_OUT_AFTER):
        gates = {"min_committed_share": 0.5, "max_failed_share": 0.5}
        assert rolled_out(fleet, version, "c", canary="device:a", gates=gates) == "complete"
    assert rolled_out(fleet, 9, "c", canary="device:a,b", gates={"max_failed_share": 0.0}) == "complete"
    assert rolled_out(fleet, 10, "c", canary="device:c") == "failed", "the operator asked for it by name"


def test_failures_that_every_version_has_do_not_count_against_one():
    gates = Gates()
    assert [gates.allowed(n, 0.0) for n in (1, 10, 99, 100, 10_000)] == [1, 1, 1, 2, 200]
    assert gates.allowed(10_000, 0.03) == 500
    assert Gates(max_failed_share=0.0).allowed(10_000, 0.03) == 0
    names = [f"d{n}" for n in range(1000)]
    some = sorted(names, key=rank)[200:230]  # 3 of 100, none of them in the canary
    fleet = fleet_of(*names)
    assert rolled_out(fleet, 2, *some) == "failed"
    assert rolled_out(fleet, 3, *some, gates={"max_failed_share": 0.03}) == "complete"
    assert fleet.course.base_share == 0.03
    assert rolled_out(fleet, 4, *some, *sorted(names, key=rank)[300:320]) == "complete", "3 and 2 of 100"
    assert fleet.course.base_share == MAX_BASE_SHARE
    assert rolled_out(fleet, 5, *sorted(names, key=rank)[300:380]) == "failed", "8 of 100"


def test_devices_that_are_here_are_here_from_the_first_line_on():
    fleet = fleet_of(*TWENTY)
    fleet.play(Create(release=release(2), plan=plan(**SHARED)))
    fleet.tick()
    words = waits(fleet.course)[0].why
    assert "0 of 2 that are here committed, 2 not yet on trial" in words
    assert "not here since" not in words


class Crowd(Devices):
    """Two train, the others only run models."""

    async def say(self, name: str, model=None, trial=None, **more) -> None:
        roles = ("observe", "train") if name in ("d0", "d1") else ("observe",)
        await self.made.online(name, roles=roles, model=model, trial=trial, **more)

    async def answer(self, number: int, liar: str) -> None:
        """All say what became of a rollout's version, stage by stage, until it is over."""
        await self.made.until(lambda: course(self.made).number == number)
        answered: set[str] = set()

        def news() -> bool:
            return course(self.made).phase != "open" or bool(self.asked() - answered)

        while course(self.made).phase == "open":
            for name in self.asked() - answered:
                await self.made.until(lambda name=name: self.newest(name) == number)
                if course(self.made).phase != "open":  # it failed meanwhile: the pointer may be taken back
                    break
                await self.tried(name, "refused" if name == liar else "committed", "a lie")
                answered.add(name)
            await self.made.until(news)

    def asked(self) -> set[str]:
        return set(course(self.made).rollout.members)

    def newest(self, name: str) -> int:
        own = [one for one in self.own(name) if one]
        return decode(own[-1], ModelPointer).version if own else 0


async def test_the_coordinator_carries_versions_past_one_member_that_lies_and_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_service, "TICK_S", 0.01)
    (tmp_path / "task.toml").write_text("")
    names, liar = TWENTY[:12], min(TWENTY[:12], key=rank)
    how = {"mode": "staged", "canary": "share:0.2", "soak_s": 0.0, "deadline_s": 60.0}
    (tmp_path / "coordinator.toml").write_text(
        'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n[rollout]\nmode = "staged"\n'
    )
    every = {"export": {"every_rounds": 1}}
    async with bench(tmp_path, tiny_task(count=6, min_devices=2), rollout=how, **every) as made:
        crowd = Crowd(made)
        for name in names:
            await crowd.say(name)
        ends = []
        for number in range(1, 7):
            await deliver(made, ("d0", "d1"), float(number))
            await crowd.answer(number, liar)
            ends.append(course(made).phase.value)
            await made.until(lambda: course(made).rollout.cleared)
        assert ends == ["failed", *["complete"] * 5]
        found = await rollout(tmp_path, "status")
        assert {name for name, one in found["refusers"].items() if one["left_out"]} == {liar}
        assert [one["device"] for one in found["rollout"]["devices"] if one["left_out"]] == [liar]
