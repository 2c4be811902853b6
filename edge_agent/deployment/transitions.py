"""One function for each cell of the table in ``machine``. Pure."""

from dataclasses import replace
from typing import Any, Literal

from edge_agent.deployment.events import (
    Damaged,
    Declined,
    Do,
    Fetched,
    GivenUp,
    Loaded,
    Outcome,
    Refused,
    Standing,
    Started,
    Stopped,
    Swap,
    Tick,
    Withdrawn,
)
from edge_agent.deployment.health import verdict
from edge_agent.deployment.record import MAX_BAD, Bad, Book, Kept, OnTrial, report_of, shortened
from edge_agent.deployment.trial_metrics import Measures, added
from edge_agent.inference.onnx_models.observation import Seen


def begin(standing: Standing, event: Started) -> Outcome:
    """A model was on trial when the agent ended: it is tried again, but not for ever; counted first."""
    trial = _trial(standing)
    starts = trial.starts + 1
    if starts > event.max_starts:
        why = f"still on trial at start {starts} of the agent, of which none ended in order"
        return _back(standing, why)
    return _with(standing, trial=trial.model_copy(update={"starts": starts})), (Do.WRITE, Do.LOAD)


def take(standing: Standing, event: Fetched) -> Outcome:
    """A new trial, instead of the one that lasted, if any. The book names it before it is loaded."""
    said = event.model
    trial = OnTrial(
        task=said.task,
        version=said.version,
        digest=said.digest,
        serial=said.serial,
        epoch=said.epoch,
        rules=event.rules,
        rollout=event.rollout,
        measures=Measures(),
    )
    back = (Do.BACK,) if standing.answers else ()
    after = _with(standing, trial=trial, **counted(standing.book, said.serial, said.epoch))
    return replace(after, answers=False), (*back, Do.WRITE, Do.LOAD)


def counted(book: Book, serial: int, epoch: int | None) -> dict[str, Any]:
    """Of the book, now that a device goes by this decision; decisions and marks begin anew with who signs."""
    if another_signer(book, epoch):
        return {"serial": serial, "epoch": epoch, "bad": ()}
    return {"serial": max(book.serial, serial), "epoch": book.epoch if epoch is None else epoch}


def another_signer(book: Book, epoch: int | None) -> bool:
    """Who signed what is here, if anybody, speaks no more: neither versions nor decisions go on."""
    if epoch is not None and book.epoch is not None:
        return epoch != book.epoch
    here = [one.epoch for one in (book.trial, book.committed) if one is not None]
    return epoch is not None and epoch not in here


def swap(standing: Standing, event: Loaded) -> Outcome:
    """It answers from the next batch on."""
    return replace(standing, answers=True), (Swap(event.model),)


def refuse(standing: Standing, event: Refused) -> Outcome:
    """It does not run here. One that ran before, and does not after a start, is a bad one."""
    if _trial(standing).starts:
        return _back(standing, event.why)
    return _end(standing, "refused", event.why)


def decline(standing: Standing, event: Declined) -> Outcome:
    """The coordinator hears why. Not written: anybody who can publish could wear out the disk with it."""
    report = report_of(event.model, "refused", event.why)
    return _with(standing, report=report), ()


def judge(standing: Standing, event: Seen) -> Outcome:
    """One more batch: it may be enough."""
    trial = _trial(standing)
    if event.digest != trial.digest:
        return standing, ()
    return _judged(standing, trial.model_copy(update={"measures": added(trial.measures, event)}))


def wait(standing: Standing, event: Tick) -> Outcome:
    """The deadline is of running, from the first window on: a device without windows shows nothing."""
    trial = _trial(standing)
    if not trial.measures.windows and not trial.measures.errors:
        return standing, ()
    return _judged(standing, trial.model_copy(update={"ran_s": trial.ran_s + event.seconds}))


def judge_now(standing: Standing) -> Outcome:
    """By those that came."""
    trial = _trial(standing)
    return _judged(standing, trial.model_copy(update={"ran_s": max(trial.ran_s, trial.rules.deadline_s)}))


def give_up(standing: Standing, event: GivenUp) -> Outcome:
    """It died once too often."""
    return _back(standing, event.why)


def withdraw(standing: Standing, event: Withdrawn) -> Outcome:
    """Nobody's fault: the same bundle may come again."""
    del event
    back = (Do.BACK,) if standing.answers else ()
    return _with(standing, trial=None, answers=False), (*back, Do.WRITE, Do.TIDY)


def lose(standing: Standing, event: Damaged) -> Outcome:
    """A folder is damaged: what it held is pulled again when it is pointed to."""
    book = standing.book
    if book.trial is not None and book.trial.digest == event.digest:
        return withdraw(standing, Withdrawn())
    if book.committed is not None and book.committed.digest == event.digest:
        return _with(standing, committed=book.before, before=None), (Do.WRITE, Do.TIDY)
    if book.before is not None and book.before.digest == event.digest:
        return _with(standing, before=None), (Do.WRITE, Do.TIDY)
    return standing, ()


def stop(standing: Standing, event: Stopped) -> Outcome:
    """This start ended in order, and does not count."""
    del event
    trial = _trial(standing)
    return _with(standing, trial=trial.model_copy(update={"starts": max(0, trial.starts - 1)})), (Do.WRITE,)


def _judged(standing: Standing, trial: OnTrial) -> Outcome:
    standing = _with(standing, trial=trial)
    found = verdict(trial.rules, trial.measures, trial.ran_s)
    if found.says == "wait":
        return standing, ()
    return _back(standing, found.words) if found.says == "back" else _commit(standing)


def _commit(standing: Standing) -> Outcome:
    book, trial = standing.book, _trial(standing)
    kept = Kept(
        task=trial.task,
        version=trial.version,
        digest=trial.digest,
        serial=trial.serial,
        epoch=trial.epoch,
    )
    before = book.committed if book.committed is not None and book.committed.digest != kept.digest else None
    report = report_of(trial, "committed", measures=trial.measures)
    after = _with(standing, answers=False, trial=None, committed=kept, before=before, report=report)
    return after, (Do.WRITE, Do.KEEP, Do.TIDY)


def _back(standing: Standing, why: str) -> Outcome:
    """Rolled back, and not tried again for the same decision."""
    trial, others = _trial(standing), standing.book.bad
    bad = Bad(digest=trial.digest, serial=trial.serial, why=shortened(why))
    kept = tuple(one for one in others if one.digest != bad.digest)
    after = _with(standing, bad=(*kept, bad)[-MAX_BAD:])
    return _end(after, "rolled_back", why)


def _end(standing: Standing, phase: Literal["rolled_back", "refused"], why: str) -> Outcome:
    """Back first, then the write: a full disk keeps no bad model active."""
    trial = _trial(standing)
    report = report_of(trial, phase, why, trial.measures)
    back = (Do.BACK,) if standing.answers else ()
    after = _with(standing, answers=False, trial=None, report=report)
    return after, (*back, Do.WRITE, Do.TIDY)


def _trial(standing: Standing) -> OnTrial:
    trial = standing.book.trial
    if trial is None:
        raise RuntimeError("no model is on trial")  # the table asks for these in two phases only
    return trial


def _with(standing: Standing, *, answers: bool | None = None, **changes: Any) -> Standing:
    book = standing.book.model_copy(update=changes)
    return Standing(book, standing.answers if answers is None else answers)
