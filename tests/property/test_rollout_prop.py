"""The rollout's machine under any sequence of events, with its book on disk."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.config.rollout import Gates, Plan
from coordinator.rollout.device_record import MAX_BASE_SHARE, DeviceReport
from coordinator.rollout.model import (
    OVER,
    Abort,
    Begun,
    Cleared,
    Create,
    Exported,
    Pause,
    Resume,
    RolloutPhase,
    RolloutState,
    RolloutTick,
)
from coordinator.rollout.stage_devices import Fact, chosen
from coordinator.rollout.store import RolloutStore
from coordinator.rollout.table import TABLE
from coordinator.rollout.view import read_rollouts, waits
from protocol.errors import Refused
from tests.support.coordinator.rollouts import NOW, release, report

NAMES = ("a", "b", "c", "d", "e")
RELEASES = [release(n) for n in range(1, 5)]
SHARES = st.floats(0.01, 0.99)
PLANS = st.builds(
    Plan,
    canary=st.sampled_from(["device:a", "device:a,b", "share:0.2", "share:1", "label:site=barn"]),
    waves=st.one_of(st.just((1.0,)), SHARES.map(lambda share: (share, 1.0))),
    soak_s=st.sampled_from([0.0, 3.0]),
    deadline_s=st.sampled_from([5.0, 50.0]),
    gates=st.builds(
        Gates, min_committed_share=st.floats(0, 1), max_failed_share=st.sampled_from([0.0, 0.02, 0.5])
    ),
)
MODES = st.sampled_from(["newest", "staged", "manual"])
EVENTS = st.one_of(
    st.builds(Exported, release=st.sampled_from(RELEASES), mode=MODES, plan=PLANS),
    st.builds(Create, release=st.sampled_from(RELEASES), plan=PLANS),
    st.builds(Begun, mode=MODES, release=st.none() | st.sampled_from(RELEASES)),
    st.sampled_from([Pause(), Resume(), Abort()]),
    st.builds(Cleared, number=st.integers(0, 3)),
)
SAID = st.tuples(
    st.booleans(),
    st.sampled_from(["", "trial", "committed", "committed", "rolled_back", "refused"]),
    st.booleans(),
)


class Machine(RuleBasedStateMachine):
    """Devices say anything, the operator does anything, time goes on; two handles write the book."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.books = [RolloutStore(Path(self.folder.name)) for _ in range(2)]
        self.course = RolloutState()
        self.now = NOW

    def teardown(self) -> None:
        for book in self.books:
            book.close()
        self.folder.cleanup()

    def play(self, event, by: int = 0) -> None:
        before = self.course
        try:
            seen, self.course, _ = self.books[by].play(event, self.now)
        except Refused:
            assert self.books[by].course() == before, "who is refused changes nothing"
            return
        assert seen == before, "both see what the other wrote"
        self.check(before, event)

    def check(self, before: RolloutState, event) -> None:
        after = self.course
        assert after.serial >= before.serial
        if after.phase is not before.phase:
            edges = {phase for phase, _ in TABLE.rows[before.phase, type(event)].to}
            assert after.phase in edges, "the diagram would not show this step"
        if after.stable != before.stable:
            assert after.serial > before.serial
            assert after.stable.serial == after.serial
            self.check_stable(before, event)
        if after.phase is RolloutPhase.COMPLETE and before.phase is RolloutPhase.OPEN:
            self.check_complete()

    def check_stable(self, before: RolloutState, event) -> None:
        """Nothing is ever everybody's but by the mode, at the first start, or after all stages."""
        after = self.course
        if before.stable is not None and after.stable.release == before.stable.release:
            return
        by_mode = after.phase is before.phase and (
            isinstance(event, (Exported, Begun))
            or (
                isinstance(event, RolloutTick)
                and before.waiting is not None
                and before.waiting.mode == "newest"
            )
        )
        passed = before.phase is RolloutPhase.OPEN and after.phase is RolloutPhase.COMPLETE
        assert by_mode or passed

    def check_complete(self) -> None:
        rollout = self.course.rollout
        members = [one for one in rollout.members.values() if not one.left_out]
        most = rollout.plan.gates.allowed(len(members), MAX_BASE_SHARE)
        assert sum(one.failed for one in members) <= most
        for stage in {one.stage for one in members}:
            # One may go back later on, within what the gate allows.
            assert any(one.stage == stage and "committed" in one.times for one in members)

    @rule(event=EVENTS, by=st.integers(0, 1))
    def anything(self, event, by: int) -> None:
        self.play(event, by)

    @rule(
        seconds=st.sampled_from([-20.0, 0.0, 1.0, 4.0, 60.0]),
        said=st.fixed_dictionaries(dict.fromkeys(NAMES, SAID)),
        by=st.integers(0, 1),
    )
    def time_goes_on(self, seconds: float, said, by: int) -> None:
        self.now += seconds
        heard, rollout = {}, self.course.rollout
        for name, (online, phase, lately) in said.items():
            member = None if rollout is None else rollout.members.get(name)
            told = None
            if member is not None and phase:
                told = report(rollout.release, member.serial if lately else 1, phase)
            heard[name] = DeviceReport(online=online, trial=told)
        fleet = {
            name: Fact(online=heard[name].online, labels={"site": "barn"} if name > "c" else {})
            for name in NAMES
        }
        self.play(RolloutTick(heard=heard, fleet=fleet), by)

    @rule()
    def the_operator_lets_it_go_on(self) -> None:
        """All devices commit until it is over, paused or short of devices."""
        for _ in range(8):
            self.time_goes_on(4.0, dict.fromkeys(NAMES, (True, "committed", True)), 0)

    @invariant()
    def what_is_on_disk_is_what_was_decided(self) -> None:
        assert self.books[1].course() == self.course
        assert read_rollouts(Path(self.folder.name))[0] == self.course

    @invariant()
    def every_wait_is_said(self) -> None:
        found = waits(self.course)
        assert bool(found) == (self.course.phase not in OVER or self.course.waiting is not None)
        for wait in found:
            assert wait.why
            assert wait.until is not None or wait.then, "bounded, or it says who ends it"

    @invariant()
    def pointers_are_newer_than_what_they_replace(self) -> None:
        rollout, stable = self.course.open, self.course.stable
        if rollout is None:
            if stable is not None and self.course.rollout is not None:
                old = self.course.rollout.members.values()
                assert all(one.serial < stable.serial for one in old)
            return
        for one in rollout.members.values():
            assert one.serial <= self.course.serial
            assert stable is None or one.serial > stable.serial


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


@given(
    plan=PLANS,
    stage=st.integers(0, 2),
    online=st.fixed_dictionaries(dict.fromkeys(NAMES, st.booleans())),
    had=st.sets(st.sampled_from(NAMES)),
)
def test_a_stage_never_reaches_beyond_its_share(plan, stage, online, had) -> None:
    stage = min(stage, len(plan.stages) - 1)
    found = chosen(plan, stage, {name: Fact(online=here) for name, here in online.items()}, had)
    assert not set(found) & had
    kind, _, share = plan.stages[stage].partition(":")
    if kind == "share":
        assert len(found) + len(had) <= max(len(had), float(share) * len(NAMES) + 1)
        if float(share) == 1:
            assert set(found) | had == set(NAMES)
