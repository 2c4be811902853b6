"""The rollout's machine, step by step."""

from pathlib import Path

import pytest

from coordinator.config.rollout import Gates, planned
from coordinator.rollout.device_record import DeviceReport
from coordinator.rollout.model import (
    Abort,
    Begun,
    Cleared,
    Create,
    Exported,
    Pause,
    Promote,
    Resume,
    RolloutPhase,
    RolloutState,
)
from coordinator.rollout.stage_devices import Fact, chosen, rank
from coordinator.rollout.stage_gate import StageCounts, evaluate_stage
from coordinator.rollout.table import TABLE
from coordinator.rollout.transitions import BACK
from coordinator.rollout.view import waits
from protocol.errors import Misconfigured, Refused
from protocol.rollout import Trial
from tests.support.coordinator.rollouts import Fleet, plan, release, report

OLD, NEW, NEWER = release(1), release(2), release(3)


def begun(*names: str, **changes) -> Fleet:
    """Version 1 runs everywhere; version 2 is rolled out."""
    fleet = Fleet(*(names or ("a", "b", "c")), labels=changes.pop("labels", None))
    fleet.play(Begun(mode="manual", release=OLD))
    fleet.play(Create(release=NEW, plan=plan(**changes)))
    fleet.tick()
    return fleet


def test_a_rollout_goes_from_the_canary_by_waves_to_all():
    fleet = begun("a", "b", "c", "d", waves=(0.5, 1.0), trial=Trial(windows=7))
    serials = [fleet.course.stable.serial]
    assert fleet.members(0) == ["a"]
    assert fleet.course.stable.release == OLD, "the others run what they ran"
    fleet.says("a", "committed", agreement=0.9)
    fleet.tick()
    fleet.tick(9.0)
    assert fleet.course.rollout.stage == 0, "it soaks"
    fleet.tick(1.0)
    fleet.tick()
    assert (fleet.course.rollout.stage, len(fleet.members(1))) == (1, 1), "half of four, the canary in it"
    for stage in (1, 2):
        for name in fleet.members(stage):
            fleet.says(name, "committed")
        fleet.tick()
        assert fleet.phase() == "open"
        fleet.tick(10.0)
        fleet.tick()
    assert fleet.phase() == "complete"
    assert fleet.course.stable.release == NEW
    assert fleet.course.stable.trial == Trial(windows=7), "who comes later tries it as the others did"
    assert isinstance(fleet.commands[-2], Promote)
    serials += sorted({one.serial for one in fleet.course.rollout.members.values()})
    serials.append(fleet.course.stable.serial)
    assert serials == sorted(set(serials)), "each decision counts on"
    assert len(serials) == 5
    assert fleet.course.rollout.members["a"].measures == {"agreement": 0.9}


def test_one_device_that_rolls_back_ends_it_and_the_others_never_see_it():
    fleet = begun()
    fleet.says("a", "trial")
    fleet.tick()
    before = fleet.course.stable.serial
    fleet.says("a", "rolled_back", "agreement 0.2, at least 0.5")
    fleet.tick()
    assert fleet.phase() == "failed"
    assert fleet.course.rollout.why == (
        "1 of the 1 devices of canary (device:a) failed, and 0.9 of them must commit: "
        "a rolled back: agreement 0.2, at least 0.5"
    )
    assert list(fleet.course.rollout.members) == ["a"]
    assert fleet.course.stable.release == OLD
    assert fleet.course.stable.serial > max(before, fleet.course.rollout.members["a"].serial)
    assert fleet.course.stable.trial == BACK, "what ran before is asked only whether it answers"
    assert [mark.version for mark in fleet.course.failed] == [2]
    assert [one.what for one in fleet.course.rollout.story] == ["began", "pointed", "rolled_back", "failed"]


def test_a_version_that_failed_is_not_rolled_out_again_by_itself_but_the_operator_may():
    fleet = begun()
    fleet.says("a", "refused", "not signed")
    fleet.tick()
    fleet.play(Exported(release=NEWER, mode="manual", plan=plan()))
    fleet.play(Exported(release=NEW, mode="staged", plan=plan()))
    fleet.tick()
    assert fleet.phase() == "failed"
    serial = fleet.course.rollout.members["a"].serial
    fleet.play(Create(release=NEW, plan=plan()))
    fleet.tick()
    assert fleet.phase() == "open", "what was said of an older pointer does not count for this one"
    assert fleet.course.rollout.members["a"].serial > serial
    assert fleet.course.rollout.members["a"].phase == "waiting"
    fleet.says("a", "committed")
    for _ in range(30):
        fleet.tick()
        for name in fleet.members(1):
            fleet.says(name, "committed")
    assert fleet.phase() == "complete"
    assert fleet.course.failed == (), "it is good after all"


def test_a_decision_counts_the_minutes_since_2020_and_one_more_where_that_is_no_more():
    two_minutes = 1_577_836_800.0 + 120
    assert RolloutState().next_serial(two_minutes) == 2
    assert RolloutState().next_serial(two_minutes - 1) == 1
    assert RolloutState(serial=7).next_serial(two_minutes) == 8


def test_a_device_that_is_here_when_its_stage_is_filled_is_waited_for_from_then_on():
    fleet = Fleet("a", "b")
    fleet.said["b"] = DeviceReport(online=False)
    fleet.play(Create(release=NEW, plan=plan(canary="share:1")))
    fleet.tick()
    assert {name: one.seen for name, one in fleet.course.rollout.members.items()} == {"a": True, "b": False}


def test_the_story_names_a_device_that_failed_once_whatever_it_does_later():
    fleet = begun("a", "b", "c", "d", canary="share:1", gates={"min_committed_share": 0.7})
    fleet.says("a", "rolled_back", "slow")
    fleet.tick()
    fleet.said["a"] = DeviceReport(online=True, barred=True)
    fleet.tick()
    assert fleet.course.rollout.members["a"].barred
    assert [one.what for one in fleet.course.rollout.story].count("rolled_back") == 1


def test_of_no_devices_there_are_none_of_any_kind():
    assert StageCounts.of(()) == StageCounts()


def test_all_that_are_here_and_did_not_fail_may_still_commit():
    assert StageCounts(committed=1, trial=2, waiting=3, speechless=4, failed=9, silent=9).may_commit == 10


def test_who_failed_once_has_failed_for_this_pointer_whatever_it_says_next():
    fleet = begun("a", "b", "c", "d", canary="share:1", gates={"min_committed_share": 0.7})
    fleet.says("a", "rolled_back", "slow")
    fleet.tick()
    fleet.says("a", "committed")
    fleet.tick()
    member = fleet.course.rollout.members["a"]
    assert (member.phase, member.why) == ("rolled_back", "slow")


def test_each_release_that_failed_is_remembered_once():
    fleet = begun()
    for one in (NEW, NEWER, NEW):
        if fleet.course.open is None:
            fleet.play(Create(release=one, plan=plan()))
            fleet.tick()
        fleet.says("a", "rolled_back", "bad")
        fleet.tick()
        assert fleet.phase() == "failed"
    assert [mark.version for mark in fleet.course.failed] == [3, 2], "the one that failed last comes last"


def test_as_many_failures_as_the_gate_allows_do_not_end_it():
    fleet = begun("a", "b", "c", "d", canary="share:1", gates={"min_committed_share": 0.7})
    assert fleet.members(0) == ["a", "b", "c", "d"]
    fleet.says("a", "rolled_back", "slow")
    for name in "bcd":
        fleet.says(name, "committed")
    fleet.tick()
    fleet.tick(10.0)
    fleet.tick()
    assert fleet.phase() == "complete"


def test_a_stage_that_can_no_longer_pass_fails_at_once():
    fleet = begun("a", "b", canary="share:1")
    fleet.says("a", "rolled_back", "slow")
    fleet.tick()
    assert fleet.phase() == "failed"
    assert "0.9 of them must commit: a rolled back: slow" in fleet.course.rollout.why


def test_silence_is_never_a_promotion_but_a_pause_in_words():
    fleet = begun()
    fleet.tick(99.0)
    assert fleet.phase() == "open"
    fleet.tick()
    assert fleet.phase() == "paused"
    assert fleet.course.rollout.why == (
        "canary (device:a) did not pass within 100 s: 0 of 1 that are here committed, 1 not yet on trial; "
        "0.9 of those that are here must commit"
    )
    fleet.tick(1000.0)
    assert fleet.phase() == "paused"
    fleet.play(Resume())
    fleet.tick(99.0)
    assert fleet.phase() == "open", "the whole time once more"
    fleet.tick(2.0)
    assert fleet.phase() == "paused"


def test_devices_that_were_never_here_are_not_waited_for_but_one_must_be():
    fleet = Fleet("a", "b", "c")
    fleet.said["b"] = fleet.said["c"] = DeviceReport(online=False)
    fleet.play(Create(release=NEW, plan=plan(canary="share:1")))
    fleet.tick()
    assert fleet.members(0) == ["a", "b", "c"]
    fleet.says("a", "committed")
    fleet.tick()
    fleet.tick(10.0)
    fleet.tick()
    assert fleet.phase() == "complete"
    silent = Fleet("a")
    silent.said["a"] = DeviceReport(online=False)
    silent.play(Create(release=NEW, plan=plan()))
    silent.tick()
    silent.tick(100.0)
    assert silent.phase() == "paused"
    assert "1 not here since" in silent.course.rollout.why


def test_an_older_agent_that_runs_it_and_knows_no_trial_is_named_and_not_counted():
    fleet = begun()
    fleet.said["a"] = DeviceReport(online=True, model=NEW.digests[0])
    fleet.tick(101.0)
    assert "1 run it and know no trial (an older agent)" in fleet.course.rollout.why


def test_what_is_committed_counts_whenever_it_was_and_other_reports_only_for_their_pointer():
    fleet = begun("a", "b", canary="share:1")
    fleet.said["a"] = DeviceReport(online=True, trial=report(NEW, 1, "committed"))
    fleet.said["b"] = DeviceReport(online=True, trial=report(NEW, 1, "rolled_back", "long ago"))
    fleet.tick()
    phases = {name: one.phase for name, one in fleet.course.rollout.members.items()}
    assert (fleet.phase(), phases) == ("open", {"a": "committed", "b": "waiting"})


def test_the_soak_begins_anew_when_a_device_comes_that_has_not_committed():
    fleet = Fleet("a", "b")
    fleet.said["b"] = DeviceReport(online=False)
    fleet.play(Create(release=NEW, plan=plan(canary="share:1")))
    fleet.tick()
    fleet.says("a", "committed")
    fleet.tick()
    fleet.said["b"] = DeviceReport(online=True)
    fleet.tick(9.0)
    assert fleet.course.rollout.good_since is None
    fleet.says("b", "committed")
    fleet.tick(5.0)
    assert fleet.course.rollout.good_since == fleet.now


def test_a_newer_export_waits_and_the_newest_one_wins():
    fleet = begun()
    fleet.play(Exported(release=NEWER, mode="staged", plan=plan()))
    fleet.play(Exported(release=release(4), mode="staged", plan=plan()))
    assert fleet.course.waiting.release.version == 4
    assert fleet.course.rollout.release == NEW
    assert [one.version for one in fleet.course.named] == [1, 2, 4, 4], "stable, candidate, newest, waiting"
    fleet.says("a", "rolled_back", "bad")
    fleet.tick()
    assert fleet.phase() == "failed"
    fleet.tick()
    assert fleet.phase() == "failed", "first the pointers of the one before are taken back"
    fleet.play(Cleared(number=1))
    fleet.tick()
    assert (fleet.phase(), fleet.course.rollout.release.version, fleet.course.number) == ("open", 4, 2)
    assert fleet.course.waiting is None


def test_each_export_goes_out_as_the_mode_says():
    fleet = Fleet("a")
    fleet.play(Begun(mode="newest", release=OLD))
    first = fleet.course.stable.serial
    fleet.play(Exported(release=NEW, mode="newest", plan=plan()))
    assert (fleet.course.stable.release, fleet.phase()) == (NEW, "none")
    assert fleet.course.stable.serial > first
    fleet.play(Exported(release=NEWER, mode="manual", plan=plan()))
    assert (fleet.course.stable.release, fleet.course.newest, fleet.phase()) == (NEW, NEWER, "none")
    again = fleet.course
    fleet.play(Exported(release=NEWER, mode="manual", plan=plan()))
    assert fleet.course is again, "an export that is made again decides nothing"
    fleet.play(Exported(release=release(4), mode="staged", plan=plan()))
    assert fleet.phase() == "open"


def test_the_first_version_of_all_goes_in_stages_too_and_without_one_before_nobody_goes_back():
    fleet = Fleet("a", "b")
    fleet.play(Begun(mode="staged"))
    fleet.play(Exported(release=NEW, mode="staged", plan=plan()))
    fleet.tick()
    assert (fleet.course.stable, fleet.members(0)) == (None, ["a"])
    fleet.says("a", "rolled_back", "bad")
    fleet.tick()
    assert (fleet.phase(), fleet.course.stable) == ("failed", None)


def test_the_operator_pauses_resumes_and_aborts():
    fleet = begun()
    fleet.says("a", "committed")
    fleet.play(Pause())
    fleet.tick(1000.0)
    assert (fleet.phase(), fleet.course.rollout.stage) == ("paused", 0)
    with pytest.raises(Refused, match="is paused; wait for its end, or end it: lichen rollout abort"):
        fleet.play(Create(release=NEWER, plan=plan()))
    fleet.play(Resume())
    fleet.tick()
    fleet.tick(10.0)
    assert fleet.course.rollout.stage == 1
    fleet.play(Abort())
    assert (fleet.phase(), fleet.course.stable.release) == ("aborted", OLD)
    for event in (Abort(), Pause(), Resume()):
        with pytest.raises(Refused, match="the last one is aborted"):
            fleet.play(event)
    with pytest.raises(Refused, match="all devices are pointed at version 1"):
        fleet.play(Create(release=OLD, plan=plan()))


def test_who_fails_while_it_is_paused_ends_it():
    fleet = begun()
    fleet.play(Pause())
    fleet.says("a", "rolled_back", "bad")
    fleet.tick()
    assert fleet.phase() == "failed"


def test_who_commits_while_it_is_paused_is_noted_and_nothing_else_is():
    fleet = begun()
    fleet.play(Pause())
    fleet.says("a", "committed")
    fleet.tick()
    assert fleet.phase() == "paused"
    assert fleet.course.rollout.members["a"].phase == "committed"
    before = fleet.course
    fleet.tick()
    assert fleet.course is before, "what has not changed is not written"


def test_a_report_shows_that_its_device_was_here_also_when_it_has_left():
    fleet = Fleet("a")
    fleet.said["a"] = DeviceReport(online=False)
    fleet.play(Create(release=NEW, plan=plan()))
    fleet.tick()
    member = fleet.course.rollout.members["a"]
    assert not member.seen
    fleet.said["a"] = DeviceReport(online=False, trial=report(NEW, member.serial, "trial"))
    fleet.tick()
    assert fleet.course.rollout.members["a"].seen


def test_a_stage_of_which_the_only_device_is_left_out_is_enough():
    rollout = begun().course.rollout
    members = {"a": rollout.members["a"].model_copy(update={"left_out": True})}
    assert evaluate_stage(rollout.model_copy(update={"members": members})).enough
    assert not evaluate_stage(rollout.model_copy(update={"members": {}})).enough


def test_as_many_may_fail_as_fail_anyway_and_the_gates_share_besides():
    gates = Gates(max_failed_share=0.1)
    assert [gates.allowed(100, share) for share in (0.0, 0.05)] == [10, 15]
    assert gates.allowed(3, 0.0) == 1
    assert Gates(max_failed_share=0).allowed(100, 0.5) == 0


def test_a_canary_that_nobody_matches_is_waited_for_and_then_paused():
    fleet = begun("b", "c", canary="label:site=barn", labels={"c": {"site": "yard"}})
    assert fleet.course.rollout.members == {}
    fleet.names.append("d")
    fleet.said["d"] = DeviceReport(online=True)
    fleet.labels["d"] = {"site": "barn"}
    fleet.tick()
    assert fleet.members(0) == ["d"]
    nobody = begun("b", canary="device:nobody")
    nobody.tick(101.0)
    assert nobody.course.rollout.why == "no device for canary (device:nobody) came within 100 s"


def test_a_clock_that_is_set_back_moves_no_deadline_into_the_far_future():
    fleet = begun()
    fleet.now -= 1e6
    fleet.tick()
    assert fleet.course.rollout.since == fleet.now
    fleet.tick(100.0)
    assert fleet.phase() == "paused"


def test_a_command_whose_clock_was_set_back_gives_a_stage_its_whole_time_too():
    fleet = begun()
    fleet.tick(101)
    assert fleet.phase() == "paused"
    daemon, fleet.now = fleet.now, fleet.now - 10 * 86400
    fleet.play(Resume())
    fleet.now = daemon
    fleet.tick(99)
    assert fleet.phase() == "open"
    fleet.tick(101)
    assert fleet.phase() == "paused"


def test_a_book_that_was_lost_goes_on_above_the_serials_that_devices_know():
    fleet = begun()
    fleet.says("a", "rolled_back", "bad")
    fleet.tick()
    lost = Fleet("a")
    lost.now = fleet.now + 3600.0
    lost.play(Begun(mode="manual", release=OLD))
    assert lost.course.serial > fleet.course.serial


def test_pointers_are_noted_as_taken_back_once():
    fleet = begun()
    fleet.play(Abort())
    fleet.play(Cleared(number=7))
    assert not fleet.course.rollout.cleared
    fleet.play(Cleared(number=1))
    assert fleet.course.rollout.cleared


def test_a_share_takes_those_that_are_here_first_and_the_same_ones_every_time():
    names = [f"d{n}" for n in range(40)]
    fleet = {name: Fact(online=True) for name in names}
    tenth = plan(canary="share:0.1", waves=(0.5, 1.0))
    first = chosen(tenth, 0, fleet, ())
    assert first == tuple(sorted(sorted(names, key=rank)[:4]))
    assert chosen(tenth, 0, dict(reversed(fleet.items())), ()) == first
    half = chosen(tenth, 1, fleet, first)
    assert len(half) == 16
    assert not set(half) & set(first)
    away = {name: Fact(online=name not in first) for name in names}
    assert not set(chosen(tenth, 0, away, ())) & set(first)
    assert len(chosen(plan(canary="share:0.01"), 0, {"x": Fact(online=False)}, ())) == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"canary": "share:0"}, "canary: 'share:0': write label:KEY=VALUE"),
        ({"canary": "barn"}, "canary: 'barn'"),
        ({"canary": "label:a b=barn"}, "canary: 'label:a b=barn'"),
        ({"canary": "device:a b"}, "canary: 'device:a b'"),
        ({"waves": (0.5, 0.25, 1)}, "waves: shares that grow, the last one 1"),
        ({"waves": (0.5,)}, "waves: shares that grow"),
        ({"soak_s": -1}, "soak_s"),
        ({"gates": {"max_failed_share": -1}}, "gates.max_failed_share"),
        ({"trial": {"windows": 0}}, "trial.windows"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_by_name(given, words):
    with pytest.raises(Misconfigured) as error:
        planned(given)
    assert words in str(error.value)


def test_the_soak_begins_anew_at_each_start_for_nobody_listened_and_the_clock_may_be_another():
    fleet = begun("a", "b")
    fleet.says("a", "committed")
    fleet.tick()
    assert fleet.course.rollout.good_since == fleet.now
    fleet.now += 50 * 365 * 86400  # a board without a clock of its own gets the time
    fleet.play(Begun(mode="manual"))
    fleet.tick(0.0)
    assert (fleet.phase(), fleet.course.rollout.stage) == ("open", 0), "not soaked while nobody listened"
    assert fleet.course.rollout.good_since == fleet.now


def test_who_is_quarantined_or_revoked_is_not_waited_for_and_nothing_of_it_counts():
    fleet = begun("a", "b", "c", canary="device:a,b", gates={"max_failed_share": 0.0})
    fleet.says("a", "committed")
    fleet.said["b"] = DeviceReport(online=True)
    fleet.tick()
    assert fleet.course.rollout.good_since is None, "b is here and has not committed"
    fleet.says("b", "rolled_back", "a lie")
    fleet.said["b"] = fleet.said["b"].model_copy(update={"barred": True})
    fleet.tick()
    assert fleet.phase() == "open"
    assert fleet.course.rollout.members["b"].barred
    counts = StageCounts.of(fleet.course.rollout.members.values())
    assert (counts.barred, counts.seen, counts.failed, counts.silent) == (1, 1, 0, 0)
    assert "1 quarantined or revoked" in counts.words
    assert "b" not in waits(fleet.course)[0].why.rsplit("waits for", 1)[-1].split()
    fleet.tick(11)
    assert fleet.course.rollout.stage == 1
    fleet.said["b"] = DeviceReport(online=True, trial=fleet.said["b"].trial)
    fleet.tick()
    assert fleet.phase() == "failed", "heard again, it counts again"


def test_what_a_device_says_is_one_line_without_what_a_terminal_would_obey():
    fleet = begun()
    fleet.says("a", "rolled_back", "\x1b[2Jbad\nrollout 1 is complete\x07")
    fleet.tick()
    shown = fleet.course.rollout.members["a"].why
    assert shown == "[2Jbad rollout 1 is complete"
    assert "\x1b" not in fleet.course.rollout.why + "".join(one.words for one in fleet.course.rollout.story)


def test_the_docs_diagram_is_the_table():
    page = (Path(__file__).resolve().parents[4] / "docs/rollout-state.md").read_text()
    words = "write coordinator.rollout.table.TABLE.diagram() and TABLE.listing() into docs/rollout-state.md"
    assert f"```mermaid\n{TABLE.diagram()}\n```" in page, words
    assert f"\n{TABLE.listing()}\n" in page, words


def test_every_phase_has_an_answer_to_all_that_the_operator_may_ask():
    for phase in RolloutPhase:
        for event in (Create, Pause, Resume, Abort):
            assert (phase, event) in TABLE.rows
