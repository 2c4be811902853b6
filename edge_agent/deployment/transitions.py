"""One function for each cell of the table in ``machine``. Pure."""

from dataclasses import replace
from typing import Any, Literal

from edge_agent.deployment.events import (
    Action,
    BundleRefused,
    Crashed,
    Damaged,
    DeploymentStatus,
    DeploymentTick,
    Fetched,
    Loaded,
    Outcome,
    PointerRejected,
    Started,
    Stopped,
    Swap,
    Withdrawn,
)
from edge_agent.deployment.health import verdict
from edge_agent.deployment.record import (
    MAX_BAD,
    DeploymentRecord,
    InstalledBundle,
    RejectedBundle,
    TrialBundle,
    report_of,
    shortened,
)
from edge_agent.deployment.trial_metrics import TrialMetrics, added
from edge_agent.inference.onnx_models.observation import BatchObservation


def begin(standing: DeploymentStatus, event: Started) -> Outcome:
    """A model was on trial when the agent ended: it is tried again, but not for ever; counted first."""
    trial = _trial(standing)
    starts = trial.starts + 1
    if starts > event.max_starts:
        why = f"still on trial at start {starts} of the agent, of which none ended in order"
        return _back(standing, why)
    return _with(standing, trial=trial.model_copy(update={"starts": starts})), (Action.WRITE, Action.LOAD)


def start_trial(standing: DeploymentStatus, event: Fetched) -> Outcome:
    """A new trial, instead of the one that lasted, if any. The book names it before it is loaded."""
    said = event.model
    trial = TrialBundle(
        task=said.task,
        version=said.version,
        digest=said.digest,
        serial=said.serial,
        epoch=said.epoch,
        rules=event.rules,
        rollout=event.rollout,
        measures=TrialMetrics(),
    )
    back = (Action.BACK,) if standing.answers else ()
    after = _with(standing, trial=trial, **counted(standing.book, said.serial, said.epoch))
    return replace(after, answers=False), (*back, Action.WRITE, Action.LOAD)


def counted(book: DeploymentRecord, serial: int, epoch: int | None) -> dict[str, Any]:
    """Of the book, now that a device goes by this decision; decisions and marks begin anew with who signs."""
    if another_signer(book, epoch):
        return {"serial": serial, "epoch": epoch, "bad": ()}
    return {"serial": max(book.serial, serial), "epoch": book.epoch if epoch is None else epoch}


def another_signer(book: DeploymentRecord, epoch: int | None) -> bool:
    """Who signed what is here, if anybody, speaks no more: neither versions nor decisions go on."""
    if epoch is not None and book.epoch is not None:
        return epoch != book.epoch
    here = [one.epoch for one in (book.trial, book.committed) if one is not None]
    return epoch is not None and epoch not in here


def swap(standing: DeploymentStatus, event: Loaded) -> Outcome:
    """It answers from the next batch on."""
    return replace(standing, answers=True), (Swap(event.model),)


def refuse(standing: DeploymentStatus, event: BundleRefused) -> Outcome:
    """It does not run here. One that ran before, and does not after a start, is a bad one."""
    if _trial(standing).starts:
        return _back(standing, event.why)
    return _end(standing, "refused", event.why)


def decline(standing: DeploymentStatus, event: PointerRejected) -> Outcome:
    """The coordinator hears why. Not written: anybody who can publish could wear out the disk with it."""
    report = report_of(event.model, "refused", event.why)
    return _with(standing, report=report), ()


def judge(standing: DeploymentStatus, event: BatchObservation) -> Outcome:
    """One more batch: it may be enough."""
    trial = _trial(standing)
    if event.digest != trial.digest:
        return standing, ()
    return _judged(standing, trial.model_copy(update={"measures": added(trial.measures, event)}))


def wait(standing: DeploymentStatus, event: DeploymentTick) -> Outcome:
    """The deadline is of running, from the first window on: a device without windows shows nothing."""
    trial = _trial(standing)
    if not trial.measures.windows and not trial.measures.errors:
        return standing, ()
    return _judged(standing, trial.model_copy(update={"ran_s": trial.ran_s + event.seconds}))


def judge_now(standing: DeploymentStatus) -> Outcome:
    """By those that came."""
    trial = _trial(standing)
    return _judged(standing, trial.model_copy(update={"ran_s": max(trial.ran_s, trial.rules.deadline_s)}))


def give_up(standing: DeploymentStatus, event: Crashed) -> Outcome:
    """It died once too often."""
    return _back(standing, event.why)


def withdraw(standing: DeploymentStatus, event: Withdrawn) -> Outcome:
    """Nobody's fault: the same bundle may come again."""
    del event
    back = (Action.BACK,) if standing.answers else ()
    return _with(standing, trial=None, answers=False), (*back, Action.WRITE, Action.TIDY)


def forget_damaged(standing: DeploymentStatus, event: Damaged) -> Outcome:
    """A folder is damaged: what it held is pulled again when it is pointed to."""
    book = standing.book
    if book.trial is not None and book.trial.digest == event.digest:
        return withdraw(standing, Withdrawn())
    if book.committed is not None and book.committed.digest == event.digest:
        return _with(standing, committed=book.before, before=None), (Action.WRITE, Action.TIDY)
    if book.before is not None and book.before.digest == event.digest:
        return _with(standing, before=None), (Action.WRITE, Action.TIDY)
    return standing, ()


def stop(standing: DeploymentStatus, event: Stopped) -> Outcome:
    """This start ended in order, and does not count."""
    del event
    trial = _trial(standing)
    return _with(standing, trial=trial.model_copy(update={"starts": max(0, trial.starts - 1)})), (
        Action.WRITE,
    )


def _judged(standing: DeploymentStatus, trial: TrialBundle) -> Outcome:
    standing = _with(standing, trial=trial)
    found = verdict(trial.rules, trial.measures, trial.ran_s)
    if found.says == "wait":
        return standing, ()
    return _back(standing, found.words) if found.says == "back" else _commit(standing)


def _commit(standing: DeploymentStatus) -> Outcome:
    book, trial = standing.book, _trial(standing)
    kept = InstalledBundle(
        task=trial.task,
        version=trial.version,
        digest=trial.digest,
        serial=trial.serial,
        epoch=trial.epoch,
    )
    before = book.committed if book.committed is not None and book.committed.digest != kept.digest else None
    report = report_of(trial, "committed", measures=trial.measures)
    after = _with(standing, answers=False, trial=None, committed=kept, before=before, report=report)
    return after, (Action.WRITE, Action.KEEP, Action.TIDY)


def _back(standing: DeploymentStatus, why: str) -> Outcome:
    """Rolled back, and not tried again for the same decision."""
    trial, others = _trial(standing), standing.book.bad
    bad = RejectedBundle(digest=trial.digest, serial=trial.serial, why=shortened(why))
    kept = tuple(one for one in others if one.digest != bad.digest)
    after = _with(standing, bad=(*kept, bad)[-MAX_BAD:])
    return _end(after, "rolled_back", why)


def _end(standing: DeploymentStatus, phase: Literal["rolled_back", "refused"], why: str) -> Outcome:
    """Back first, then the write: a full disk keeps no bad model active."""
    trial = _trial(standing)
    report = report_of(trial, phase, why, trial.measures)
    back = (Action.BACK,) if standing.answers else ()
    after = _with(standing, answers=False, trial=None, report=report)
    return after, (*back, Action.WRITE, Action.TIDY)


def _trial(standing: DeploymentStatus) -> TrialBundle:
    trial = standing.book.trial
    if trial is None:
        raise RuntimeError("no model is on trial")  # the table asks for these in two phases only
    return trial


def _with(standing: DeploymentStatus, *, answers: bool | None = None, **changes: Any) -> DeploymentStatus:
    book = standing.book.model_copy(update=changes)
    return DeploymentStatus(book, standing.answers if answers is None else answers)
