"""The machine of a device's rollout, cell by cell: which pointer counts, and what outlives a restart."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.deployment.events import (
    Action,
    BundleRefused,
    Crashed,
    Damaged,
    DeploymentPhase,
    DeploymentStatus,
    DeploymentTick,
    Event,
    FetchBundle,
    Fetched,
    Loaded,
    NothingToDo,
    Outcome,
    Pointed,
    PointerRejected,
    Started,
    Stopped,
    Swap,
    TooOld,
    Withdrawn,
)
from edge_agent.deployment.pointer_rules import select_pointer
from edge_agent.deployment.record import DeploymentRecord, InstalledBundle, reported
from edge_agent.deployment.state_machine import TABLE, apply
from edge_agent.inference.onnx_models.observation import BatchObservation
from protocol.bundle import unpack
from protocol.messages import BlobRef, ModelPointer
from protocol.rollout import Trial
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_task
from tests.support.coordinator.trial_runner import MODEL, classes

MANIFEST = unpack(bundle(toy_task()))[0]
RULES = Trial(windows=4)
A, B, C = "a" * 64, "b" * 64, "c" * 64


def kept(digest: str, version: int = 1, serial: int = 0, epoch: int | None = None) -> InstalledBundle:
    return InstalledBundle(task="toy", version=version, digest=digest, serial=serial, epoch=epoch)


def pointer(digest: str, version: int = 1, serial: int = 0, trial: Trial | None = None) -> ModelPointer:
    return ModelPointer(
        task="toy", version=version, bundle=BlobRef(digest=digest, size=1), serial=serial, trial=trial
    )


def batch(digest: str, count: int = 1, error: str = "") -> BatchObservation:
    return BatchObservation(digest, MANIFEST, count, 0.001, error=error, answers=classes(*[0] * count))


def after(*events: Event, record: DeploymentRecord | None = None) -> Outcome:
    """The last step of several."""
    status, commands = DeploymentStatus(record or DeploymentRecord()), ()
    for event in events:
        status, commands = apply(status, event)
    return status, commands


def words(commands: Sequence[object]) -> str:
    return " ".join(command.words for command in commands if isinstance(command, NothingToDo))


ON_A = DeploymentRecord(committed=kept(A))
TRY_B: tuple[Event, ...] = (Fetched(kept(B, 2, 5), RULES), Loaded(MODEL))


def test_the_book_names_a_model_before_it_is_loaded_and_loads_it_before_it_answers() -> None:
    one, commands = after(Fetched(kept(B, 2), RULES), record=ON_A)
    assert one.phase is DeploymentPhase.FETCHED
    assert commands == (Action.WRITE, Action.LOAD)
    assert one.record.committed == kept(A)
    two, commands = apply(one, Loaded(MODEL))
    assert (two.phase, commands) == (DeploymentPhase.ON_TRIAL, (Swap(MODEL),))


def test_a_healthy_model_is_committed_in_one_write_and_the_one_before_is_kept() -> None:
    status, commands = after(*TRY_B, batch(B, 3), batch(B, 1), record=ON_A)
    assert status.phase is DeploymentPhase.COMMITTED
    assert commands == (Action.WRITE, Action.KEEP, Action.TIDY)
    record = status.record
    assert (record.committed, record.before, record.trial) == (kept(B, 2, 5), kept(A), None)
    assert record.report is not None
    assert (record.report.phase, record.report.serial, record.report.measures["windows"]) == (
        "committed",
        5,
        4,
    )


def test_a_bad_model_goes_before_anything_is_written_and_is_not_tried_again() -> None:
    status, commands = after(*TRY_B, batch(B, 2), batch(B, 1, "it died"), record=ON_A)
    assert commands == (Action.BACK, Action.WRITE, Action.TIDY), "a full disk keeps no bad model active"
    record = status.record
    assert (record.committed, record.trial) == (kept(A), None)
    assert record.report is not None
    assert (record.report.phase, record.report.bundle) == ("rolled_back", B)
    assert "no answer to 1 of 3" in record.report.why
    _, again = apply(status, Pointed(pointer(B, 2, 5)))
    assert "was rolled back: no answer" in words(again)
    _, without_serial = apply(status, Pointed(pointer(B, 2)))
    assert "was rolled back" in words(without_serial)
    _, later = apply(status, Pointed(pointer(B, 2, 6)))
    assert later == (FetchBundle(pointer(B, 2, 6)),), "a later decision tries it again"


def test_the_first_model_of_all_is_on_trial_too_and_there_is_nothing_to_go_back_to() -> None:
    status, commands = after(Fetched(kept(A), RULES), Loaded(MODEL), batch(A, error="no"))
    assert (status.phase, commands) == (DeploymentPhase.NONE, (Action.BACK, Action.WRITE, Action.TIDY))
    status, _ = after(Fetched(kept(A), RULES), Loaded(MODEL), batch(A, 4))
    assert (status.record.committed, status.record.before) == (kept(A), None)


def test_batches_of_another_model_do_not_count() -> None:
    status, commands = after(*TRY_B, batch(A, 100), record=ON_A)
    assert (status.phase, commands) == (DeploymentPhase.ON_TRIAL, ())
    assert status.record.trial is not None
    assert status.record.trial.measures.windows == 0


def test_the_deadline_counts_running_time_from_the_first_window_on() -> None:
    late = DeploymentTick(2 * RULES.deadline_s)
    status, _ = after(*TRY_B, late, late, record=ON_A)
    assert status.phase is DeploymentPhase.ON_TRIAL, "a device without windows shows nothing"
    status, commands = after(*TRY_B, late, batch(B), DeploymentTick(1), late, record=ON_A)
    assert (status.phase, Action.KEEP in commands) == (DeploymentPhase.COMMITTED, True)


def test_starts_are_counted_before_it_is_loaded_and_three_are_enough() -> None:
    record = after(*TRY_B, batch(B, 1), record=ON_A)[0].record
    for start in (1, 2, 3):
        status, commands = after(Started(3), record=record)
        assert (status.phase, commands) == (DeploymentPhase.FETCHED, (Action.WRITE, Action.LOAD))
        record = status.record
        assert record.trial is not None
        assert (record.trial.starts, record.trial.measures.windows) == (start, 1)
    status, commands = after(Started(3), record=record)
    assert (status.phase, commands) == (DeploymentPhase.COMMITTED, (Action.WRITE, Action.TIDY))
    assert status.record.report is not None
    assert "start 4 of the agent" in status.record.report.why


def test_an_orderly_end_is_no_sign_of_a_bad_model() -> None:
    record = after(*TRY_B, record=ON_A)[0].record
    for _ in range(9):
        record = after(Started(3), Loaded(MODEL), Stopped(), record=record)[0].record
    assert after(Started(3), record=record)[0].phase is DeploymentPhase.FETCHED


def test_one_that_never_ran_is_refused_and_one_that_ran_before_is_rolled_back() -> None:
    first, _ = after(Fetched(kept(B, 2, 5), RULES), BundleRefused("it dies"), record=ON_A)
    assert first.record.report is not None
    assert (first.record.report.phase, first.record.report.why, first.record.bad) == (
        "refused",
        "it dies",
        (),
    )
    record = after(*TRY_B, record=ON_A)[0].record
    again, _ = after(Started(3), BundleRefused("it dies"), record=record)
    assert again.record.report is not None
    assert (again.record.report.phase, len(again.record.bad)) == ("rolled_back", 1)
    assert again.record.committed == kept(A)


def test_a_model_that_inference_gave_up_goes() -> None:
    status, commands = after(*TRY_B, Crashed("it died three times"), record=ON_A)
    assert (status.phase, commands[0]) == (DeploymentPhase.COMMITTED, Action.BACK)


def test_a_pointer_back_to_the_committed_model_ends_the_trial() -> None:
    status, commands = after(*TRY_B, Pointed(pointer(A, 1, 6)), record=ON_A)
    assert status.phase is DeploymentPhase.COMMITTED
    assert commands[:3] == (Action.BACK, Action.WRITE, Action.TIDY)
    assert status.record.bad == (), "nobody's fault"
    assert status.record.report is not None
    assert (status.record.report.phase, status.record.report.bundle) == ("committed", A)
    assert status.record.report.serial == 6


def test_what_is_newer_ends_the_wait_for_more_windows() -> None:
    newer, rules = pointer(C, 3), Trial(windows=9, min_agreement=1.0)
    for others, stays in ((classes(0), kept(B, 2)), (classes(1), kept(A))):
        one = replace(batch(B), before=others, before_latency_s=0.001)
        events = (Fetched(kept(B, 2), rules), Loaded(MODEL), one)
        status, commands = after(*events, Pointed(newer), record=ON_A)
        assert (status.phase, commands[-1]) == (DeploymentPhase.COMMITTED, FetchBundle(newer))
        assert status.record.committed == stays
    restarted, _ = after(Fetched(kept(B, 2), RULES), Loaded(MODEL), batch(B), record=ON_A)
    _, commands = apply(DeploymentStatus(restarted.record), Pointed(newer))
    assert "waits" in words(commands), "it is loaded first"


def test_a_rollout_s_trial_is_not_cut_short_by_what_is_merely_newer() -> None:
    fresh, _ = after(Fetched(kept(B, 2, 5), RULES, rollout=True), Loaded(MODEL), record=ON_A)
    newer = pointer(C, 3, 6)
    assert apply(fresh, Pointed(newer))[1] == (FetchBundle(newer),), "no window came yet: nothing is lost"
    assert isinstance(apply(fresh, Pointed(pointer(C, 1)))[1][0], TooOld)
    trying, _ = apply(fresh, batch(B))
    assert "waits: version 2 is on trial" in words(apply(trying, Pointed(newer))[1])
    assert "waits" in words(apply(trying, Pointed(pointer(C, 3)))[1])
    later = pointer(C, 3, 6, RULES)
    assert apply(trying, Pointed(later))[1] == (FetchBundle(later),)
    status, commands = apply(trying, Fetched(kept(C, 3, 6), RULES))
    assert commands == (Action.BACK, Action.WRITE, Action.LOAD), "the one before answers until it is loaded"
    assert status.record.committed == kept(A)


def test_an_older_decision_is_out_of_date_and_says_nothing() -> None:
    committed, _ = after(*TRY_B, batch(B, 4), record=ON_A)
    same, commands = apply(committed, Pointed(pointer(A, 1, 4)))
    assert same is committed
    assert "decision 4 is out of date: this device follows decision 5" in words(commands)
    back = pointer(A, 1, 6)
    assert apply(committed, Pointed(back))[1] == (FetchBundle(back),), (
        "a later one goes back to an older version"
    )


def test_without_serials_versions_count() -> None:
    committed, _ = after(Fetched(kept(B, 2), RULES), Loaded(MODEL), batch(B, 4), record=ON_A)
    (refused,) = apply(committed, Pointed(pointer(A, 1)))[1]
    assert isinstance(refused, TooOld)
    assert "older than version 2, which runs" in refused.why
    other_route = pointer(C, 2)
    assert apply(committed, Pointed(other_route))[1] == (FetchBundle(other_route),)


def test_who_signs_anew_is_not_bound_by_versions_and_decisions_of_those_before() -> None:
    record = DeploymentRecord(committed=kept(A, 7, 9, epoch=1), serial=9)
    for one in (pointer(B, 3), pointer(B, 3, 2)):
        assert apply(DeploymentStatus(record), Pointed(one, 2))[1] == (FetchBundle(one),)
        assert apply(DeploymentStatus(record), Pointed(one, 1))[1] != (FetchBundle(one),)


def test_a_later_decision_on_the_same_bundle_is_remembered_and_nothing_starts_anew() -> None:
    trying, _ = after(*TRY_B, batch(B), record=ON_A)
    status, commands = apply(trying, Pointed(pointer(B, 2, 8)))
    assert (status.phase, commands[0]) == (DeploymentPhase.ON_TRIAL, Action.WRITE)
    told = reported(status.record)
    assert told is not None
    assert (told.phase, told.serial, told.measures["windows"]) == ("trial", 8, 1)
    committed, _ = apply(status, batch(B, 3))
    again, commands = apply(committed, Pointed(pointer(B, 2, 9)))
    assert again.record.report is not None
    assert (again.record.report.serial, again.record.report.measures["windows"]) == (9, 4)
    assert Action.WRITE in commands
    assert Action.WRITE not in apply(again, Pointed(pointer(B, 2, 9)))[1], "nothing new: nothing is written"


def test_the_number_of_a_decision_never_falls_but_where_another_signs() -> None:
    committed, _ = after(*TRY_B, batch(B, 4), record=ON_A)
    same, commands = apply(committed, Pointed(pointer(B, 2)))
    assert same.record == committed.record, "a pointer without a number leaves that of the decision"
    assert Action.WRITE not in commands
    signed = DeploymentRecord(committed=kept(A, 7, 9, epoch=1), serial=9, epoch=1)
    anew, commands = apply(DeploymentStatus(signed), Pointed(pointer(A, 7, 2), 2))
    assert (anew.record.committed, anew.record.serial, anew.record.epoch) == (kept(A, 7, 2, epoch=2), 2, 2)
    assert Action.WRITE in commands


def test_a_bundle_that_failed_is_reported_once_more_where_another_was_reported_since() -> None:
    failed, _ = after(*TRY_B, Crashed("it died"), record=ON_A)
    same, commands = apply(failed, Pointed(pointer(B, 2, 5)))
    assert same is failed
    assert Action.WRITE not in commands
    since, _ = apply(failed, Pointed(pointer(A, 1, 5)))
    again, commands = apply(since, Pointed(pointer(B, 2, 5)))
    assert again.record.report is not None
    assert (again.record.report.phase, again.record.report.bundle, commands[0]) == (
        "rolled_back",
        B,
        Action.WRITE,
    )
    assert "it died" in again.record.report.why
    trying, _ = apply(since, Fetched(kept(C, 3, 5), RULES))
    assert apply(trying, Pointed(pointer(B, 2, 5)))[0] is trying, "the trial is what is reported"


def test_marks_of_failed_bundles_begin_anew_where_another_signs() -> None:
    record = after(*TRY_B, Crashed("it died"), record=ON_A)[0].record.model_copy(update={"epoch": 1})
    assert [one.digest for one in record.bad] == [B]
    same, _ = apply(DeploymentStatus(record), Pointed(pointer(A, 1, 6), 1))
    assert [one.digest for one in same.record.bad] == [B]
    other, _ = apply(DeploymentStatus(record), Pointed(pointer(A, 1, 6), 2))
    assert other.record.bad == ()


def test_a_damaged_folder_is_forgotten_and_pulled_again_when_it_is_pointed_to() -> None:
    committed, _ = after(*TRY_B, batch(B, 4), record=ON_A)
    assert apply(committed, Damaged(C)) == (committed, ()), "none of ours"
    alone, commands = apply(committed, Damaged(A))
    assert (alone.record.committed, alone.record.before) == (kept(B, 2, 5), None)
    assert commands == (Action.WRITE, Action.TIDY)
    one, _ = apply(committed, Damaged(B))
    assert (one.record.committed, one.record.before) == (kept(A), None)
    wanted = pointer(B, 2, 5)
    assert apply(one, Pointed(wanted))[1] == (FetchBundle(wanted),)
    stays, _ = apply(one, Pointed(pointer(A, 1, 6)))
    assert stays.record.report is not None
    assert (stays.record.report.bundle, stays.record.report.phase) == (A, "committed"), "and no longer of B"
    two, _ = apply(one, Damaged(A))
    assert two.phase is DeploymentPhase.NONE
    trying, commands = after(*TRY_B, Damaged(B), record=ON_A)
    assert (trying.record.committed, trying.record.bad, commands[0]) == (kept(A), (), Action.BACK)
    lost, _ = after(*TRY_B, Damaged(A), record=ON_A)
    assert (lost.phase, lost.record.committed) == (DeploymentPhase.ON_TRIAL, None)


def test_a_task_that_the_trial_does_not_fit_ends_it_and_the_bundle_may_come_again() -> None:
    status, commands = after(*TRY_B, Withdrawn(), record=ON_A)
    assert (status.phase, status.record.bad) == (DeploymentPhase.COMMITTED, ())
    assert commands == (Action.BACK, Action.WRITE, Action.TIDY)


def test_what_was_refused_before_its_trial_is_reported_and_wears_out_no_disk() -> None:
    status, commands = after(PointerRejected(kept(C, 9, 7), "unsigned"), record=ON_A)
    assert commands == ()
    told = reported(status.record)
    assert told is not None
    assert (told.phase, told.why, told.serial) == ("refused", "unsigned", 7)


def test_the_words_of_a_report_are_bounded_and_plain() -> None:
    status, _ = after(*TRY_B, Crashed("x\n\x1b[2J" + 1000 * "y"), record=ON_A)
    assert status.record.report is not None
    assert len(status.record.report.why) == 240
    assert status.record.report.why.isprintable()


def test_marks_are_bounded() -> None:
    status = DeploymentStatus(ON_A)
    for number in range(100):
        digest = f"{number:064x}"
        for event in (Fetched(kept(digest, 2, number), RULES), Loaded(MODEL), Crashed("no")):
            status, _ = apply(status, event)
    assert len(status.record.bad) == 32
    assert status.record.failed(f"{99:064x}", 99) is not None


@pytest.mark.parametrize(
    ("fleet", "own", "wins"),
    [
        (pointer(A, 3), None, A),
        (None, pointer(B, 1), B),
        (pointer(A, 3, 4), pointer(B, 9, 3), A),
        (pointer(A, 9, 3), pointer(B, 1, 4), B),
        (pointer(A, 9, 4), pointer(B, 1, 4), B),
        (pointer(A, 3), pointer(B, 2), A),
        (pointer(A, 2), pointer(B, 2), B),
        (pointer(A, 2), pointer(B, 3), B),
        (pointer(A, 9), pointer(B, 1, 1), B),
    ],
)
def test_the_later_decision_counts_on_whichever_topic_it_came(
    fleet: ModelPointer | None, own: ModelPointer | None, wins: str
) -> None:
    found = select_pointer(fleet, own)
    assert found is not None
    assert found.bundle.digest == wins


def test_the_page_is_drawn_from_the_table() -> None:
    assert {phase for phase, _ in TABLE.rows} == set(DeploymentPhase)
    page = (Path(__file__).parents[4] / "docs" / "rollout-state.md").read_text()
    words = "write state_machine.TABLE.diagram() and TABLE.listing() into docs/rollout-state.md"
    assert f"```mermaid\n{TABLE.diagram()}\n```" in page, words
    assert TABLE.listing() in page, words
