"""The round machine under any sequence of events."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.round_machine.closing import needed
from coordinator.round_machine.commands import Aggregate, Select
from coordinator.round_machine.events import (
    JOURNALED,
    Begin,
    Checkpoint,
    DeviceOnline,
    EvaluationDone,
    ExportDone,
    Presence,
    Resumed,
    RoundPhase,
    RoundState,
    RoundTick,
    Rules,
    Selected,
    UpdateRefused,
    UpdatesAccepted,
    UpdatesLost,
    VersionMade,
    WorkFailed,
)
from coordinator.round_machine.queries import replay
from coordinator.round_machine.table import TABLE, apply
from coordinator.rounds.progress import FleetStatus, explain

NAMES = ("a", "b", "c", "d", "e")
DEVICE = st.sampled_from((*NAMES, "stranger"))
DEVICES = st.lists(st.sampled_from(NAMES), unique=True).map(lambda d: tuple(sorted(d)))
SMALL = st.integers(0, 4)
EVENTS = st.one_of(
    st.just(Begin()),
    st.just(Resumed()),
    st.builds(RoundTick, able=SMALL, present=SMALL, settled=st.booleans()),
    st.builds(DeviceOnline, device=DEVICE, came=st.booleans()),
    st.builds(Presence, here=st.booleans()),
    st.builds(Selected, round=SMALL, attempt=SMALL, devices=DEVICES),
    st.builds(UpdatesAccepted, round=SMALL, devices=st.lists(DEVICE, max_size=4).map(tuple)),
    st.builds(UpdateRefused, device=DEVICE, round=SMALL, reason=st.just("non_finite")),
    st.builds(UpdatesLost, round=SMALL, devices=DEVICES),
    st.builds(VersionMade, version=SMALL, manifest=st.just("f" * 64)),
    st.builds(EvaluationDone, version=SMALL),
    st.builds(ExportDone, version=SMALL),
    st.builds(
        WorkFailed,
        phase=st.sampled_from(RoundPhase),
        version=SMALL,
        detail=st.just("it broke"),
        passing=st.booleans(),
    ),
)
RULES = st.builds(
    Rules,
    rounds=st.integers(1, 3),
    deadline_s=st.floats(1, 20),
    devices_per_round=st.none() | st.integers(1, 5),
    quorum=st.floats(0, 1),
    min_devices=st.integers(1, 4),
    spread_s=st.floats(0, 5),
    away_grace_s=st.floats(0, 5),
    evaluate=st.booleans(),
    evaluate_every=st.integers(1, 2),
    export=st.booleans(),
    export_every=st.integers(0, 2),
)


class Machine(RuleBasedStateMachine):
    """Plays events at the machine and keeps its own, simple books."""

    @initialize(rules=RULES)
    def begin(self, rules: Rules) -> None:
        self.rules = rules
        self.now = 100.0
        self.state = RoundState()
        self.journal = [(self.now, Checkpoint(state=self.state, rules=rules))]
        self.counted: set[str] = set()
        self.round = 0
        self.gone_at: float | None = None
        self.send(Begin())

    def send(self, event) -> None:
        before = self.state
        self.state, commands = apply(self.rules, before, event, self.now)
        if self.state is not before:
            self.journal.append((self.now, event))
        self.check_step(before, event, commands)

    def check_step(self, before: RoundState, event, commands) -> None:
        after = self.state
        self.note_the_away(before, event)
        if after.round != self.round:
            self.round, self.counted = after.round, set()
        if after.phase is not before.phase:
            edges = {phase for phase, _ in TABLE.rows[before.phase, type(event)].to}
            assert after.phase in edges, "the diagram would not show this step"
        if isinstance(event, UpdatesAccepted):
            fresh = set(after.delivered) - set(before.delivered)
            assert not fresh & self.counted, "a device was counted twice"
            assert fresh <= set(event.devices) & set(before.invited)
            self.counted |= fresh
        if isinstance(event, UpdatesLost) and after.delivered != before.delivered:
            self.counted -= set(event.devices)
        if after.phase is RoundPhase.AGGREGATING and before.phase in (
            RoundPhase.COLLECTING,
            RoundPhase.WAITING,
        ):
            enough = len(after.delivered) >= needed(self.rules, len(after.selected))
            late = after.closed_by == "deadline" and len(after.delivered) >= max(1, self.rules.min_devices)
            due = before.phase is RoundPhase.WAITING or (
                before.until is not None and self.now >= before.until
            )
            assert enough or (late and due) or self.all_away(), "closed without quorum or deadline"
        for command in commands:
            if isinstance(command, Aggregate):
                assert command.devices == tuple(after.delivered)
                assert len(command.devices) >= max(1, self.rules.min_devices)
            if isinstance(command, Select):
                assert after.phase is RoundPhase.WAITING

    def note_the_away(self, before: RoundState, event) -> None:
        if isinstance(event, Presence) and before.phase is RoundPhase.COLLECTING:
            self.gone_at = None if event.here else self.gone_at or self.now
        elif isinstance(event, Resumed) or self.state.phase is not before.phase:
            self.gone_at = None if self.state.phase is not RoundPhase.AGGREGATING else self.gone_at

    def all_away(self) -> bool:
        """Whether the round may close because all that lack went away, and long enough ago."""
        least = max(1, self.rules.min_devices)
        assert self.state.closed_by == "away"
        assert self.gone_at is not None
        return len(self.state.delivered) >= least and self.now - self.gone_at >= self.rules.away_grace_s

    @rule(here=st.booleans())
    def presence(self, *, here: bool) -> None:
        self.send(Presence(here=here))

    @rule(event=EVENTS)
    def anything(self, event) -> None:
        self.send(event)

    @rule(seconds=st.floats(0, 30), able=SMALL, more=SMALL)
    def time(self, seconds: float, able: int, more: int) -> None:
        self.now += seconds
        self.send(RoundTick(able=able, present=able + more))

    @precondition(lambda self: self.state.phase is RoundPhase.WAITING)
    @rule(devices=DEVICES)
    def select(self, devices: tuple[str, ...]) -> None:
        self.send(Selected(round=self.state.round, attempt=self.state.attempt, devices=devices))

    @precondition(lambda self: bool(self.state.invited))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(tuple(self.state.invited)), min_size=1, max_size=4)
        self.send(UpdatesAccepted(round=self.state.round, devices=tuple(data.draw(some))))

    @precondition(lambda self: self.state.phase is not RoundPhase.DONE)
    @rule(ok=st.booleans(), passing=st.booleans())
    def finish_work(self, *, ok: bool, passing: bool) -> None:
        phase = self.state.phase
        if not ok:
            version = (
                self.state.version
                if phase in (RoundPhase.EVALUATING, RoundPhase.EXPORTING)
                else self.state.round
            )
            self.send(WorkFailed(phase=phase, version=version, passing=passing))
        elif phase in (RoundPhase.INITIALISING, RoundPhase.AGGREGATING):
            self.send(VersionMade(version=self.state.round, manifest=f"{self.state.round:064x}"))
        elif phase is RoundPhase.EVALUATING:
            self.send(EvaluationDone(version=self.state.version))
        elif phase is RoundPhase.EXPORTING:
            self.send(ExportDone(version=self.state.version))

    @rule(back=st.floats(-1e6, 1e6))
    def restart_with_another_clock(self, back: float) -> None:
        self.now = max(0.0, self.now + back)
        self.send(Resumed())
        if self.state.phase is RoundPhase.COLLECTING:
            assert self.state.until is not None
            assert self.state.until - self.now <= self.rules.deadline_s + 1e-6

    @invariant()
    def books_agree(self) -> None:
        state = self.state
        assert set(state.delivered) == self.counted or state.phase is RoundPhase.DONE
        assert set(state.selected) <= set(state.invited) or state.phase is RoundPhase.AGGREGATING
        assert set(state.delivered) <= set(state.invited)
        assert list(state.delivered) == sorted(set(state.delivered.unsorted()))
        if state.phase is RoundPhase.COLLECTING:
            assert set(state.delivered) <= set(state.selected)
            assert state.missing() == tuple(sorted(set(state.selected) - set(state.delivered)))
            assert (state.missing_count, state.first_missing(2)) == (
                len(state.missing()),
                state.missing()[:2],
            )
        assert state.version in (state.round, state.round - 1)
        assert state.version <= self.rules.rounds
        assert (state.until is not None) == (state.phase is RoundPhase.COLLECTING)

    @invariant()
    def no_version_is_judged_or_exported_for_ever(self) -> None:
        assert (
            self.state.phase not in (RoundPhase.EVALUATING, RoundPhase.EXPORTING) or self.state.failures <= 3
        )

    @invariant()
    def it_says_why(self) -> None:
        said = explain(
            self.rules,
            self.state,
            self.now,
            FleetStatus(frozenset(f"{n:064}" for n in range(9)), {"b\n" * 99: "x" * 999}, 9, "z" * 999),
        )
        assert 20 < len(said) <= 1000
        assert "\n" not in said

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        stored = [
            (now, JOURNALED.validate_python(JOURNALED.dump_python(e, mode="json"))) for now, e in self.journal
        ]
        assert replay(stored) == (self.state, self.rules)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(rules=RULES, events=st.lists(EVENTS, max_size=30))
@settings(max_examples=60, deadline=None)
def test_an_event_twice_is_as_good_as_once_where_devices_deliver(rules: Rules, events: list) -> None:
    state = RoundState()
    for now, event in enumerate(events):
        state, _ = apply(rules, state, event, float(now))
        if isinstance(event, UpdatesAccepted | VersionMade | EvaluationDone | ExportDone | Selected):
            again, commands = apply(rules, state, event, float(now))
            assert again == state
            assert commands == ()


def test_who_was_refused_between_two_attempts_is_not_asked_again_in_the_round() -> None:
    rules = Rules(rounds=1, deadline_s=10.0, min_devices=2)
    state = RoundState(phase=RoundPhase.WAITING, round=1, attempt=2, version=0, invited=("a", "b", "c"))
    state, _ = apply(rules, state, UpdateRefused(device="a", round=1, reason="non_finite"), 1.0)
    assert state.refused == {"a": "non_finite"}
    assert apply(rules, state, RoundTick(able=1, present=1, settled=True), 2.0)[1] == ()
    _, commands = apply(rules, state, RoundTick(able=2, present=2, settled=True), 2.0)
    assert commands == (Select(round=1, attempt=2),)
