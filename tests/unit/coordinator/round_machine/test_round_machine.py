"""The round machine, step by step: what each event does to a round, and what it leaves alone."""

import pytest

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.round_machine.batch import ReceivedUpdate, accept_batch
from coordinator.round_machine.closing import closes_at, needed
from coordinator.round_machine.commands import (
    Aggregate,
    Evaluate,
    Export,
    Finish,
    Initialise,
    OfferRound,
    RecordAttempt,
    Select,
)
from coordinator.round_machine.device_sets import DeviceSet
from coordinator.round_machine.events import (
    Begin,
    Checkpoint,
    DeviceOnline,
    EndRounds,
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
from coordinator.round_machine.pending_work import pending
from coordinator.round_machine.queries import check_acceptable, replay
from coordinator.round_machine.table import apply
from protocol.cohort import is_below, place, threshold
from protocol.errors import Reason, Refused
from tests.support.coordinator.fake import header

BASE = "b" * 64
THREE = ("a", "b", "c")


def rules(**changes) -> Rules:
    return Rules(**{"rounds": 3, "deadline_s": 60.0, "min_devices": 2, "spread_s": 5.0, **changes})


def waiting(**changes) -> RoundState:
    """Round 1 looks for devices since second 100."""
    start = {"phase": RoundPhase.WAITING, "round": 1, "version": 0, "manifest": BASE, "since": 100.0}
    return RoundState(**{**start, **changes})


def collecting(**changes) -> RoundState:
    """Round 1 is open to a, b and c until second 160."""
    start = {"phase": RoundPhase.COLLECTING, "invited": THREE, "selected": THREE, "until": 160.0}
    return waiting(**{**start, **changes})


def aggregating(**changes) -> RoundState:
    """Round 1 folds the updates of a, b and c."""
    return collecting(**{"phase": RoundPhase.AGGREGATING, "delivered": THREE, "until": None, **changes})


# Waiting for devices.


def test_a_selection_is_asked_for_when_enough_devices_are_able_for_the_whole_spread() -> None:
    alone, commands = apply(rules(), waiting(), RoundTick(able=1, present=1), 101.0)
    assert (alone, commands) == (waiting(), ())
    enough, commands = apply(rules(), waiting(), RoundTick(able=2, present=2), 101.0)
    assert (enough.enough_since, commands) == (101.0, ())
    assert apply(rules(), enough, RoundTick(able=2, present=2), 105.9) == (enough, ())
    assert apply(rules(), enough, RoundTick(able=2, present=2), 106.0) == (
        enough,
        (Select(round=1, attempt=1),),
    )


def test_the_spread_begins_anew_when_a_device_has_gone() -> None:
    fewer, _ = apply(rules(), waiting(enough_since=101.0), RoundTick(able=1, present=1), 105.0)
    assert fewer.enough_since is None
    again, commands = apply(rules(), fewer, RoundTick(able=2, present=2), 107.0)
    assert (again.enough_since, commands) == (107.0, ())


def test_nobody_is_waited_for_once_all_wanted_are_able_or_no_more_come() -> None:
    asked = (Select(round=1, attempt=1),)
    assert apply(rules(), waiting(), RoundTick(able=2, present=2, settled=True), 101.0)[1] == asked
    assert apply(rules(devices_per_round=3), waiting(), RoundTick(able=3, present=3), 101.0)[1] == asked
    assert apply(rules(devices_per_round=2), waiting(), RoundTick(able=3, present=3), 101.0)[1] == asked
    assert apply(rules(devices_per_round=4), waiting(), RoundTick(able=3, present=3), 101.0)[1] == ()


def test_whoever_delivered_in_an_earlier_attempt_counts_as_able_but_somebody_must_be_left_to_ask() -> None:
    state = waiting(attempt=2, invited=THREE, delivered=("a",))
    _, commands = apply(rules(), state, RoundTick(able=1, present=2, settled=True), 101.0)
    assert commands == (Select(round=1, attempt=2),)
    both = waiting(attempt=2, invited=THREE, delivered=("a", "b"))
    assert apply(rules(), both, RoundTick(present=2, settled=True), 101.0)[1] == ()


def test_a_task_without_a_least_number_still_needs_one_device() -> None:
    least = rules(min_devices=0)
    assert apply(least, waiting(), RoundTick(settled=True), 101.0) == (waiting(), ())
    assert apply(least, waiting(), RoundTick(able=1, present=1, settled=True), 101.0)[1] == (
        Select(round=1, attempt=1),
    )
    assert apply(least, waiting(), Selected(round=1, attempt=1, devices=()), 101.0) == (waiting(), ())
    assert needed(rules(min_devices=0, quorum=0.0), 5) == 1


def test_whoever_was_refused_is_asked_again_where_the_round_waits_five_minutes_without() -> None:
    state = waiting(invited=THREE, refused=(("a", "non_finite"),))
    early, commands = apply(rules(), state, RoundTick(able=1, present=1, settled=True), 399.9)
    assert (early, commands) == (state, ())
    forgiven, commands = apply(rules(), state, RoundTick(able=1, present=1, settled=True), 400.0)
    assert (forgiven.refused, commands) == ({}, ())
    assert apply(rules(), forgiven, RoundTick(able=2, present=2, settled=True), 401.0)[1] == (
        Select(round=1, attempt=1),
    )


def test_whoever_was_refused_may_try_again_when_it_comes_back_and_not_by_staying() -> None:
    state = waiting(refused=(("a", "non_finite"), ("b", "outlier")))
    assert apply(rules(), state, DeviceOnline(device="a", came=False), 101.0) == (state, ())
    assert apply(rules(), state, DeviceOnline(device="c", came=True), 101.0) == (state, ())
    back, _ = apply(rules(), state, DeviceOnline(device="a", came=True), 101.0)
    assert back.refused == {"b": "outlier"}


# Opening.


def test_a_round_opens_for_its_deadline_and_is_offered_to_those_selected() -> None:
    state = waiting(trouble="attempt 1 got 0 updates", failures=2, retry_at=3.0, enough_since=99.0)
    opened, commands = apply(rules(), state, Selected(round=1, attempt=1, devices=("c", "a")), 110.0)
    assert opened == waiting(
        phase=RoundPhase.COLLECTING, since=110.0, until=170.0, selected=("a", "c"), invited=("a", "c")
    )
    assert commands == (OfferRound(),)


@pytest.mark.parametrize(("round_", "attempt"), [(2, 1), (1, 2), (0, 0)])
def test_a_selection_for_another_round_or_attempt_opens_nothing(round_: int, attempt: int) -> None:
    event = Selected(round=round_, attempt=attempt, devices=THREE)
    assert apply(rules(), waiting(), event, 110.0) == (waiting(), ())


def test_a_selection_of_too_few_opens_nothing() -> None:
    assert apply(rules(), waiting(), Selected(round=1, attempt=1, devices=("a",)), 110.0) == (waiting(), ())


def test_the_next_attempt_keeps_what_was_delivered_and_whom_it_invited() -> None:
    state = waiting(attempt=2, invited=("a", "b"), delivered=("a",))
    opened, commands = apply(rules(), state, Selected(round=1, attempt=2, devices=("c",)), 110.0)
    assert (opened.selected, opened.invited, opened.delivered) == ({"a", "c"}, set(THREE), {"a"})
    assert commands == (OfferRound(),)


def test_an_attempt_whose_quorum_is_there_already_closes_at_once() -> None:
    state = waiting(attempt=2, invited=THREE, delivered=("a", "b"))
    event = Selected(round=1, attempt=2, devices=("c",))
    closed, commands = apply(rules(quorum=0.6), state, event, 110.0)
    assert (closed.phase, closed.closed_by) == (RoundPhase.AGGREGATING, "quorum")
    assert commands == (
        RecordAttempt(round=1, attempt=2, outcome="quorum"),
        Aggregate(round=1, devices=("a", "b")),
    )


# Updates.


def test_an_update_counts_once_and_the_quorum_closes_the_round() -> None:
    one, commands = apply(rules(quorum=0.6), collecting(), UpdatesAccepted(round=1, devices=("b",)), 120.0)
    assert (one.delivered, one.phase, commands) == ({"b"}, RoundPhase.COLLECTING, ())
    assert apply(rules(quorum=0.6), one, UpdatesAccepted(round=1, devices=("b",)), 121.0) == (one, ())
    closed, commands = apply(rules(quorum=0.6), one, UpdatesAccepted(round=1, devices=("a",)), 122.0)
    assert closed == one.model_copy(
        update={
            "phase": RoundPhase.AGGREGATING,
            "delivered": DeviceSet(("a", "b")),
            "since": 122.0,
            "until": None,
            "closed_by": "quorum",
        }
    )
    assert commands == (
        RecordAttempt(round=1, attempt=1, outcome="quorum"),
        Aggregate(round=1, devices=("a", "b")),
    )


@pytest.mark.parametrize("state", [collecting(), waiting(invited=THREE)], ids=["open", "between attempts"])
def test_an_update_of_another_round_or_of_an_uninvited_device_does_not_count(state: RoundState) -> None:
    for event in (UpdatesAccepted(round=2, devices=("a",)), UpdatesAccepted(round=1, devices=("x",))):
        assert apply(rules(), state, event, 120.0) == (state, ())


def test_a_device_that_was_invited_in_an_earlier_attempt_joins_and_is_no_longer_refused() -> None:
    state = collecting(selected=("a", "b"), refused=(("b", "outlier"), ("c", "non_finite")))
    after, _ = apply(rules(), state, UpdatesAccepted(round=1, devices=("c",)), 120.0)
    assert (after.selected, after.delivered, after.refused) == (set(THREE), {"c"}, {"b": "outlier"})


def test_an_update_between_attempts_counts_and_the_one_that_was_lacking_closes_the_round() -> None:
    state = waiting(attempt=2, invited=THREE, refused=(("a", "outlier"), ("b", "outlier")))
    one, commands = apply(rules(), state, UpdatesAccepted(round=1, devices=("b",)), 101.0)
    assert (one.phase, one.delivered, one.refused, commands) == (
        RoundPhase.WAITING,
        {"b"},
        {"a": "outlier"},
        (),
    )
    closed, commands = apply(rules(), one, UpdatesAccepted(round=1, devices=("c",)), 102.0)
    assert (closed.phase, closed.closed_by, closed.selected) == (
        RoundPhase.AGGREGATING,
        "deadline",
        {"b", "c"},
    )
    assert commands == (
        RecordAttempt(round=1, attempt=2, outcome="deadline"),
        Aggregate(round=1, devices=("b", "c")),
    )
    alone, _ = apply(rules(min_devices=0), state, UpdatesAccepted(round=1, devices=("b",)), 101.0)
    assert alone.phase is RoundPhase.AGGREGATING


def test_a_refusal_is_noted_once_of_an_invited_device_that_has_not_delivered() -> None:
    state = collecting(delivered=("a",))
    noted, commands = apply(rules(), state, UpdateRefused(device="c", round=1, reason="non_finite"), 120.0)
    assert (noted.refused, commands) == ({"c": "non_finite"}, ())
    more, _ = apply(rules(), noted, UpdateRefused(device="b", round=1, reason="outlier"), 121.0)
    assert list(more.refused.items()) == [("b", "outlier"), ("c", "non_finite")], (
        "sorted, as replay gives them"
    )
    for device, round_ in (("c", 1), ("a", 1), ("x", 1), ("b", 2)):
        event = UpdateRefused(device=device, round=round_, reason="outlier")
        assert apply(rules(), noted, event, 121.0) == (noted, ())


# The open round.


def test_a_device_that_was_away_when_a_round_was_opened_by_a_threshold_takes_part() -> None:
    salt = "ab" * 16
    places = {device: place(salt, device) for device in ("a", "b", "c", "late", "other")}
    below = threshold(sorted(places.values())[3])
    asked = {device for device in places if is_below(salt, device, below)}
    assert len(asked) == 3
    event = Selected(round=1, attempt=1, devices=("a",), salt=salt, below=below)
    state, _ = apply(rules(min_devices=1, quorum=1.0), waiting(), event, 110.0)
    assert (state.selected, state.by_name) == ({"a"}, False)
    for device in set(places) - {"a"}:
        arrived = UpdatesAccepted(round=1, devices=(device,))
        after, _ = apply(rules(min_devices=1, quorum=1.0), state, arrived, 120.0)
        if device in asked:
            assert (after.delivered, after.selected) == ({device}, {"a", device})
        else:
            assert after is state
            with pytest.raises(Refused, match="was not selected"):
                check_acceptable(state, device, 1, state.manifest)


def test_the_threshold_of_a_round_never_falls_and_ends_with_it() -> None:
    salt, low, high = "ab" * 16, threshold(5), threshold(2**63)
    state, _ = apply(
        rules(), waiting(), Selected(round=1, attempt=1, devices=THREE, salt=salt, below=high), 110.0
    )
    again, _ = apply(rules(), state, RoundTick(), 200.0)
    assert (again.phase, again.attempt, again.below) == (RoundPhase.WAITING, 2, high)
    for below, by_name in ((low, False), ("", True)):
        event = Selected(round=1, attempt=2, devices=THREE, salt=salt, below=below)
        opened, _ = apply(rules(), again, event, 210.0)
        assert (opened.below, opened.by_name) == (high, by_name)


def test_at_its_deadline_a_round_closes_with_enough_updates() -> None:
    state = collecting(delivered=("a", "b"))
    assert apply(rules(), state, RoundTick(), 159.9) == (state, ())
    closed, commands = apply(rules(), state, RoundTick(), 160.0)
    assert (closed.phase, closed.closed_by) == (RoundPhase.AGGREGATING, "deadline")
    assert commands[0] == RecordAttempt(round=1, attempt=1, outcome="deadline")


def test_at_its_deadline_an_attempt_with_too_few_updates_is_given_up_and_keeps_them() -> None:
    state = collecting(delivered=("a",), refused=(("b", "outlier"),))
    after, commands = apply(rules(), state, RoundTick(), 160.0)
    assert after == waiting(
        attempt=2,
        since=160.0,
        invited=THREE,
        delivered=("a",),
        refused=(("b", "outlier"),),
        trouble="attempt 1 got 1 of at least 2 updates in time",
    )
    assert commands == (RecordAttempt(round=1, attempt=1, outcome="given_up"),)
    none, _ = apply(rules(min_devices=0), collecting(), RoundTick(), 160.0)
    assert none.trouble == "attempt 1 got 0 of at least 1 updates in time"


def test_the_grace_for_devices_that_are_away_begins_with_the_last_and_ends_with_the_first_back() -> None:
    away, commands = apply(rules(), collecting(), Presence(here=False), 120.0)
    assert (away.away_since, commands) == (120.0, ())
    assert apply(rules(), away, Presence(here=False), 125.0) == (away, ()), "it does not begin anew"
    assert apply(rules(), collecting(), Presence(here=True), 120.0) == (collecting(), ())
    assert apply(rules(), away, Presence(here=True), 125.0) == (collecting(), ())


def test_a_round_whose_missing_devices_are_all_away_closes_after_the_grace_where_enough_delivered() -> None:
    grace = rules(away_grace_s=10.0)
    state = collecting(delivered=("a", "b"), away_since=120.0)
    assert apply(grace, state, RoundTick(), 129.9) == (state, ())
    closed, commands = apply(grace, state, RoundTick(), 130.0)
    assert (closed.closed_by, closed.away_since) == ("away", None)
    assert commands[0] == RecordAttempt(round=1, attempt=1, outcome="away")
    few = collecting(delivered=("a",), away_since=120.0)
    assert apply(grace, few, RoundTick(), 130.0) == (few, ()), "too few: they have until the deadline"
    late = collecting(delivered=("a", "b"), away_since=155.0)
    assert apply(grace, late, RoundTick(), 160.0)[0].closed_by == "deadline"
    assert closes_at(grace, few) == 160.0
    least = rules(min_devices=0, away_grace_s=10.0)
    assert closes_at(least, few) == 130.0
    assert closes_at(least, collecting(away_since=120.0)) == 160.0, "nothing came: there is nothing to fold"
    assert closes_at(grace, aggregating(away_since=120.0)) is None, "it is closed"


@pytest.mark.parametrize(
    ("quorum", "selected", "least", "updates"),
    [(0.5, 4, 1, 2), (0.5, 5, 1, 3), (0.1, 30, 1, 3), (0.7, 10, 1, 7), (0.1, 4, 3, 3), (0.0, 4, 0, 1)],
)
def test_the_quorum_is_rounded_up_and_never_below_the_least_number(
    quorum: float, selected: int, least: int, updates: int
) -> None:
    assert needed(rules(quorum=quorum, min_devices=least), selected) == updates


@pytest.mark.parametrize(
    ("quorum", "selected", "max_lost", "updates"),
    [
        (0.5, 5, 0.1, 5),
        (0.5, 5, 0.4, 4),
        (0.1, 4, 0.3, 3),
        (0.5, 100, 0.3, 70),
        (0.9, 100, 0.3, 90),
        (0.5, 2, 0.3, 2),
    ],
)
def test_a_secure_round_never_closes_early_with_fewer_updates_than_its_sum_needs(
    quorum: float, selected: int, max_lost: float, updates: int
) -> None:
    """A quorum of half of five devices gave three updates, whose sum stays closed: each attempt failed."""
    assert needed(rules(quorum=quorum, max_lost=max_lost), selected) == updates


# Unusable updates.


def test_unusable_updates_are_left_out_of_the_fold() -> None:
    event = UpdatesLost(
        round=1, devices=("b", "x"), outliers=("b", "x"), refused=(("b", "non_finite"), ("y", "outlier"))
    )
    after, commands = apply(rules(), aggregating(failures=1, retry_at=1.0), event, 130.0)
    assert after == aggregating(
        delivered=("a", "c"),
        refused=(("b", "non_finite"),),
        trouble="unusable updates of b",
        since=130.0,
    )
    assert commands == (Aggregate(round=1, devices=("a", "c")),)


def test_an_outlier_named_as_older_journals_do_is_refused_too_beside_those_known() -> None:
    state = aggregating(refused=(("d", "non_finite"),))
    after, _ = apply(rules(), state, UpdatesLost(round=1, devices=("b",), outliers=("b",)), 130.0)
    assert after.refused == {"b": "outlier", "d": "non_finite"}


def test_a_round_that_has_too_few_usable_updates_opens_again() -> None:
    after, commands = apply(rules(), aggregating(), UpdatesLost(round=1, devices=("a", "b")), 130.0)
    assert (after.phase, after.attempt, after.delivered) == (RoundPhase.WAITING, 2, {"c"})
    assert (after.selected, after.closed_by, after.trouble) == (set(), "", "unusable updates of a, b")
    assert commands == (RecordAttempt(round=1, attempt=1, outcome="given_up"),)
    none, _ = apply(rules(min_devices=0), aggregating(), UpdatesLost(round=1, devices=THREE), 130.0)
    assert none.phase is RoundPhase.WAITING, "a fold of nothing is no fold"


def test_before_the_round_closes_a_device_whose_update_was_lost_is_offered_it_again() -> None:
    state = collecting(delivered=("a", "b"))
    after, commands = apply(rules(), state, UpdatesLost(round=1, devices=("b",)), 130.0)
    assert after == collecting(delivered=("a",), trouble="unusable updates of b")
    assert commands == (OfferRound(),)


@pytest.mark.parametrize("state", [collecting(delivered=("a", "b")), aggregating(delivered=("a", "b"))])
def test_a_loss_in_another_round_or_of_what_was_never_counted_changes_nothing(state: RoundState) -> None:
    for event in (UpdatesLost(round=2, devices=("a",)), UpdatesLost(round=1, devices=("c",))):
        assert apply(rules(), state, event, 130.0) == (state, ())


# Versions.


def test_the_first_model_is_made_and_then_the_first_round_waits() -> None:
    begun, commands = apply(rules(), RoundState(), Begin(), 90.0)
    assert (begun.phase, begun.since, commands) == (RoundPhase.INITIALISING, 90.0, (Initialise(),))
    first, commands = apply(rules(), begun, VersionMade(version=0, manifest=BASE), 100.0)
    assert (first, commands) == (waiting(), ())
    assert apply(rules(), begun, VersionMade(version=1, manifest=BASE), 100.0) == (begun, ())


def test_a_round_that_made_its_version_leads_to_an_empty_next_one() -> None:
    state = aggregating(
        refused=(("d", "outlier"),), closed_by="quorum", attempt=4, trouble="slow", failures=2
    )
    after, commands = apply(rules(), state, VersionMade(version=1, manifest="c" * 64), 200.0)
    assert after == waiting(round=2, version=1, manifest="c" * 64, since=200.0)
    assert commands == ()


def test_the_last_version_is_judged_and_exported_and_then_all_is_done() -> None:
    both = rules(rounds=1, evaluate=True, export=True)
    made, commands = apply(both, aggregating(), VersionMade(version=1, manifest=BASE), 200.0)
    assert (made.phase, commands) == (RoundPhase.EVALUATING, (Evaluate(version=1),))
    assert apply(both, made, EvaluationDone(version=0), 201.0) == (made, ())
    judged, commands = apply(both, made, EvaluationDone(version=1), 201.0)
    assert (judged.phase, commands) == (RoundPhase.EXPORTING, (Export(version=1),))
    assert apply(both, judged, ExportDone(version=0), 202.0) == (judged, ())
    done, commands = apply(both, judged, ExportDone(version=1), 202.0)
    assert commands == (Finish(),)
    assert done == RoundState(
        phase=RoundPhase.DONE, round=1, version=1, manifest=BASE, since=202.0, closed_by=done.closed_by
    )


def test_which_versions_are_judged_and_exported() -> None:
    every = rules(rounds=7, evaluate=True, evaluate_every=3, export=True, export_every=2)
    assert [v for v in range(8) if every.evaluates(v)] == [0, 3, 6, 7]
    assert [v for v in range(8) if every.exports(v)] == [2, 4, 6, 7]
    only_last = rules(rounds=7, export=True)
    assert [v for v in range(8) if only_last.exports(v)] == [7]
    neither = rules(rounds=7, evaluate_every=1, export_every=1)
    assert not any(neither.evaluates(v) or neither.exports(v) for v in range(8))


# Work that fails.


def test_making_a_model_is_tried_for_ever_with_longer_and_longer_pauses() -> None:
    state, now, pauses = aggregating(), 200.0, []
    for _ in range(20):
        state, commands = apply(
            rules(), state, WorkFailed(phase=RoundPhase.AGGREGATING, version=1, detail="disk"), now
        )
        assert commands == ()
        assert state.retry_at is not None
        pauses.append(state.retry_at - now)
        assert apply(rules(), state, RoundTick(), state.retry_at - 0.1) == (state, ())
        now = state.retry_at
        state, commands = apply(rules(), state, RoundTick(), now)
        assert (state.retry_at, commands) == (None, (Aggregate(round=1, devices=THREE),))
    assert pauses[:9] == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]
    assert set(pauses[9:]) == {300.0}
    assert (state.failures, state.trouble) == (20, "disk")
    assert apply(rules(), state, RoundTick(), now + 999.0) == (state, ()), "nothing is due"


def test_judging_is_tried_a_few_times_where_the_trouble_may_pass_and_then_left_out() -> None:
    both = rules(rounds=5, evaluate=True, export=True, export_every=1)
    state = aggregating(phase=RoundPhase.EVALUATING, version=1)
    event = WorkFailed(phase=RoundPhase.EVALUATING, version=1, detail="full", passing=True)
    for pause in (5.0, 30.0, 120.0):
        state, commands = apply(both, state, event, 200.0)
        assert (state.phase, state.retry_at, commands) == (RoundPhase.EVALUATING, 200.0 + pause, ())
    assert state.trouble == "evaluation: full"
    after, commands = apply(both, state, event, 200.0)
    assert (after.phase, after.failures, after.trouble) == (RoundPhase.EXPORTING, 0, "evaluation: full")
    assert commands == (Export(version=1),)
    better, _ = apply(both, state, EvaluationDone(version=1), 300.0)
    assert (better.phase, better.trouble) == (RoundPhase.EXPORTING, "")


def test_an_export_that_cannot_succeed_is_left_out_at_once_and_the_rounds_go_on() -> None:
    both = rules(rounds=5, export=True, export_every=1)
    state = aggregating(phase=RoundPhase.EXPORTING, version=1)
    after, _ = apply(both, state, WorkFailed(phase=RoundPhase.EXPORTING, version=1, detail="x" * 600), 200.0)
    assert (after.phase, after.round, after.trouble) == (RoundPhase.WAITING, 2, f"export: {'x' * 500}")
    tried = state.model_copy(update={"failures": 1, "trouble": "export: full"})
    assert apply(both, tried, ExportDone(version=1), 200.0)[0].trouble == ""
    kept = state.model_copy(update={"trouble": "of the round"})
    assert apply(both, kept, ExportDone(version=1), 200.0)[0].trouble == "of the round"


def test_a_failure_of_other_work_is_not_of_this_phase() -> None:
    judging = aggregating(phase=RoundPhase.EVALUATING, version=0)
    for state, event in (
        (aggregating(), WorkFailed(phase=RoundPhase.AGGREGATING, version=0)),
        (aggregating(), WorkFailed(phase=RoundPhase.EXPORTING, version=1)),
        (judging, WorkFailed(phase=RoundPhase.EVALUATING, version=1)),
    ):
        assert apply(rules(), state, event, 200.0) == (state, ())


# After a restart.


def test_after_a_restart_no_time_lies_further_ahead_than_it_honestly_can() -> None:
    state = collecting(since=500.0, until=560.0, away_since=510.0, enough_since=1.0)
    back, commands = apply(rules(), state, Resumed(), 120.0)
    assert back == collecting(since=120.0, until=180.0)
    assert commands == (OfferRound(),)
    soon, _ = apply(rules(), collecting(until=130.0), Resumed(), 120.0)
    assert (soon.since, soon.until) == (100.0, 130.0)
    failed, commands = apply(rules(), aggregating(failures=3, retry_at=900.0), Resumed(), 120.0)
    assert (failed.retry_at, failed.failures) == (None, 3)
    assert commands == (Aggregate(round=1, devices=THREE),)


def test_a_task_that_is_done_goes_on_when_it_is_given_more_rounds() -> None:
    done = waiting(phase=RoundPhase.DONE, round=3, version=3)
    same, commands = apply(rules(), done, Resumed(), 200.0)
    assert (same, commands) == (done, (Finish(),))
    more, _ = apply(rules(rounds=4), done, Resumed(), 200.0)
    assert (more.phase, more.round, more.attempt) == (RoundPhase.WAITING, 4, 1)
    open_, _ = apply(rules(rounds=4), collecting(), Resumed(), 101.0)
    assert open_.phase is RoundPhase.COLLECTING, "only a task that is done"


def test_an_event_that_no_phase_expects_changes_nothing() -> None:
    done = waiting(phase=RoundPhase.DONE)
    for event in (RoundTick(able=3, present=3), Begin(), UpdatesAccepted(round=1, devices=("a",))):
        state, commands = apply(rules(), done, event, 200.0)
        assert state is done
        assert commands == ()


def test_a_replay_begins_at_the_last_checkpoint_and_ignores_what_stands_before_the_first() -> None:
    journal = [
        (1.0, Begin()),
        (2.0, Checkpoint(state=waiting(), rules=rules())),
        (3.0, Checkpoint(state=collecting(), rules=rules(quorum=0.6))),
        (4.0, UpdatesAccepted(round=1, devices=("a",))),
    ]
    assert replay(journal[:1]) == (RoundState(), None)
    assert replay(journal[:2]) == (waiting(), rules())
    assert replay(journal) == (collecting(delivered=("a",)), rules(quorum=0.6))


def test_the_rules_of_an_older_journal_know_the_grace_that_is_the_settings_default() -> None:
    older = Rules.model_validate({"rounds": 1, "deadline_s": 1.0})
    assert older.away_grace_s == CoordinatorSettings.model_fields["away_grace_s"].default


def test_no_work_waits_while_the_round_looks_for_devices() -> None:
    assert pending(waiting()) == ()


# Whether an update may count.


def test_an_update_is_taken_where_the_round_is_open_on_its_base_to_an_invited_device() -> None:
    for state in (collecting(), waiting(invited=THREE)):
        check_acceptable(state, "a", 1, BASE)
        check_acceptable(state, "a", 1, None)


@pytest.mark.parametrize(
    ("state", "device", "round_", "base", "reason"),
    [
        (collecting(), "a", 2, BASE, Reason.WRONG_ROUND),
        (waiting(), "a", 1, BASE, Reason.WRONG_ROUND),
        (aggregating(), "a", 1, BASE, Reason.WRONG_ROUND),
        (collecting(), "a", 1, "c" * 64, Reason.WRONG_BASE),
        (collecting(), "x", 1, BASE, Reason.NOT_SELECTED),
        (collecting(), "x", 1, None, Reason.NOT_SELECTED),
    ],
)
def test_an_update_is_refused_for_its_round_its_base_or_its_device(
    state: RoundState, device: str, round_: int, base: str | None, reason: Reason
) -> None:
    with pytest.raises(Refused) as refused:
        check_acceptable(state, device, round_, base)
    assert refused.value.reason is reason


def test_of_updates_that_arrive_together_the_same_one_again_is_counted_once_and_another_is_refused() -> None:
    one = ReceivedUpdate(header("a", 1, BASE), "1" * 64, 10)
    other = ReceivedUpdate(header("a", 1, BASE), "2" * 64, 10)
    found = accept_batch(rules(), collecting(), [one, one, other], {}, 120.0)
    assert found.event == UpdatesAccepted(round=1, devices=("a",))
    assert found.counted == (one,)
    assert found.answers[:2] == (None, None)
    assert found.answers[2] is not None
    assert found.answers[2].reason is Reason.DUPLICATE
    before = accept_batch(rules(), collecting(delivered=("a",)), [one], {("x", 1): "1" * 64}, 120.0)
    assert before.answers[0] is not None, "counted, and its digest is not known: never a receipt"
    assert (before.event, before.counted) == (None, ())


# An operator ends the rounds.


END = EndRounds(why="ann ended the rounds: enough")


def test_an_open_round_that_an_operator_ends_closes_with_who_is_here() -> None:
    ended, commands = apply(rules(), collecting(delivered=("a", "b")), END, 120.0)
    assert (ended.phase, ended.ended) == (RoundPhase.AGGREGATING, END.why)
    assert commands == (
        RecordAttempt(round=1, attempt=1, outcome="deadline"),
        Aggregate(round=1, devices=("a", "b")),
    )
    made, commands = apply(rules(), ended, VersionMade(version=1, manifest=BASE), 130.0)
    assert (made.phase, made.version, made.ended) == (RoundPhase.DONE, 1, END.why)
    assert commands == (Finish(),)


def test_an_open_round_with_too_few_is_given_up_and_the_newest_version_is_the_last() -> None:
    ended, commands = apply(rules(), collecting(delivered=("a",)), END, 120.0)
    assert (ended.phase, ended.version, ended.ended) == (RoundPhase.DONE, 0, END.why)
    assert commands == (RecordAttempt(round=1, attempt=1, outcome="given_up"), Finish())
    assert not ended.asks("a"), "nobody is asked any more"


def test_the_last_version_of_ended_rounds_is_exported_unless_it_was() -> None:
    each = rules(export=True, export_every=1)
    at_two = waiting(round=3, version=2)
    ended, commands = apply(rules(export=True), at_two, END, 120.0)
    assert (ended.phase, commands) == (RoundPhase.EXPORTING, (Export(version=2),))
    over, commands = apply(rules(export=True), ended, ExportDone(version=2), 121.0)
    assert (over.phase, commands) == (RoundPhase.DONE, (Finish(),))
    assert apply(each, at_two, END, 120.0)[0].phase is RoundPhase.DONE


@pytest.mark.parametrize("phase", [RoundPhase.AGGREGATING, RoundPhase.EVALUATING, RoundPhase.EXPORTING])
def test_work_that_goes_on_is_finished_first(phase) -> None:
    working = aggregating(phase=phase, round=1, version=0 if phase is RoundPhase.AGGREGATING else 1)
    ended, commands = apply(rules(), working, END, 120.0)
    assert (ended.phase, ended.ended, commands) == (phase, END.why, ())
    again, _ = apply(rules(), ended, EndRounds(why="again"), 121.0)
    assert again is ended


def test_ended_rounds_do_not_open_again_when_the_fold_loses_too_many() -> None:
    ended, _ = apply(rules(), aggregating(), END, 120.0)
    lost, commands = apply(rules(), ended, UpdatesLost(round=1, devices=("a", "b")), 121.0)
    assert (lost.phase, lost.version) == (RoundPhase.DONE, 0)
    assert commands == (RecordAttempt(round=1, attempt=1, outcome="given_up"), Finish())


def test_rounds_that_are_over_cannot_be_ended() -> None:
    over = waiting(phase=RoundPhase.DONE)
    assert apply(rules(), over, END, 120.0) == (over, ())


def test_the_end_of_version_0_is_the_end() -> None:
    ended, _ = apply(rules(), RoundState(), END, 1.0)
    assert (ended.phase, ended.ended) == (RoundPhase.INITIALISING, END.why)
    made, _ = apply(rules(), ended, VersionMade(version=0, manifest=BASE), 2.0)
    assert (made.phase, made.version) == (RoundPhase.DONE, 0)
