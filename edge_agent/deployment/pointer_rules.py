"""What a device does about a pointer: pure.

A coordinator counts its decisions (``ModelPointer.serial``). The later one counts, on whichever topic it came
and also where its version is lower: that is how a fleet goes back. Without a serial, versions count; but who
signs decisions, and has counted one, goes on counting.
"""

from edge_agent.deployment.events import (
    Action,
    DeploymentPhase,
    DeploymentStatus,
    FetchBundle,
    NothingToDo,
    Outcome,
    Pointed,
    TooOld,
)
from edge_agent.deployment.record import (
    DeploymentRecord,
    InstalledBundle,
    RejectedBundle,
    TrialBundle,
    report_of,
)
from edge_agent.deployment.transitions import another_signer, counted, judge_now
from protocol.messages import ModelPointer


def select_pointer(fleet: ModelPointer | None, own: ModelPointer | None) -> ModelPointer | None:
    """Of what is on ``b/model`` and on the device's ``down/model``: the later decision.

    Of the same decision the device's own; without serials the higher version, of the same the device's own.
    """
    if fleet is None or own is None:
        return own if fleet is None else fleet
    if fleet.serial != own.serial:
        return max(fleet, own, key=lambda pointer: pointer.serial)
    if fleet.serial == 0 and fleet.task == own.task and fleet.version > own.version:
        return fleet
    return own


def on_pointer(standing: DeploymentStatus, event: Pointed) -> Outcome:
    """What follows from a pointer, in each phase."""
    book, pointer, digest = standing.book, event.pointer, event.pointer.bundle.digest
    trial, committed = book.trial, book.committed
    anew = another_signer(book, event.epoch)
    # Who signs decisions does not stop counting them: 0 is an old one. Where nothing is signed, it may be a
    # coordinator of an older release.
    if (pointer.serial or event.epoch is not None) and pointer.serial < book.serial and not anew:
        words = f"decision {pointer.serial} is out of date: this device went by decision {book.serial}"
        return standing, (NothingToDo(words),)
    if trial is not None and trial.digest == digest:
        return _same_trial(standing, trial, event)
    if committed is not None and committed.digest == digest:
        return _same_model(standing, committed, event)
    bad = None if anew else book.failed(digest, pointer.serial)
    return _another(standing, event) if bad is None else _failed_before(standing, pointer, bad)


def _another(standing: DeploymentStatus, event: Pointed) -> Outcome:
    """A bundle that is not here."""
    book, pointer = standing.book, event.pointer
    trial, running = book.trial, book.trial or book.committed
    if running is not None and _is_older(pointer, running) and not another_signer(book, event.epoch):
        words = f"version {pointer.version} is older than version {running.version}, which runs"
        return standing, (TooOld(words),)
    if trial is None or _supersedes(pointer, trial):
        return standing, (FetchBundle(pointer),)
    if trial.rollout or not standing.answers:
        return standing, (
            NothingToDo(f"version {pointer.version} waits: version {trial.version} is on trial"),
        )
    # A fleet that exports faster than a trial lasts commits all the same, and a device is not left behind.
    after, commands = judge_now(standing)
    return after, (*commands, FetchBundle(pointer))


def _supersedes(pointer: ModelPointer, trial: TrialBundle) -> bool:
    """Whether it ends a trial: a later rollout does, and any pointer where no window came yet."""
    shown = trial.measures.windows + trial.measures.errors
    return not shown or (pointer.trial is not None and pointer.serial > trial.serial)


def _same_trial(standing: DeploymentStatus, trial: TrialBundle, event: Pointed) -> Outcome:
    book, words = standing.book, NothingToDo(f"version {event.pointer.version} is on trial")
    trial = trial.model_copy(update=_vouched(book, trial, event))
    after = book.model_copy(update={"trial": trial, **counted(book, trial.serial, event.epoch)})
    return (
        (standing, (words,))
        if after == book
        else (DeploymentStatus(after, standing.answers), (Action.WRITE, words))
    )


def _same_model(standing: DeploymentStatus, committed: InstalledBundle, event: Pointed) -> Outcome:
    """It stays; what is on trial beside it was withdrawn."""
    book, words = standing.book, NothingToDo(f"version {event.pointer.version} runs")
    kept = committed.model_copy(update=_vouched(book, committed, event))
    report = book.report
    if report is None or report.bundle != kept.digest or report.phase != "committed":
        report = report_of(kept, "committed")
    report = report.model_copy(update={"serial": kept.serial})
    now = {"committed": kept, "report": report, "trial": None}
    after = book.model_copy(update=now | counted(book, event.pointer.serial, event.epoch))
    if after == book:
        return standing, (words,)
    back = (Action.BACK,) if standing.answers else ()
    tidy = () if book.trial is None else (Action.TIDY,)
    return DeploymentStatus(after), (*back, Action.WRITE, *tidy, words)


def _vouched(book: DeploymentRecord, kept: InstalledBundle, event: Pointed) -> dict[str, int | None]:
    """A later decision on the same bundle, or others who sign it now."""
    serial, epoch = event.pointer.serial, event.epoch
    if not another_signer(book, epoch):
        serial = max(serial, kept.serial)
    return {"serial": serial, "epoch": kept.epoch if epoch is None else epoch}


def _failed_before(standing: DeploymentStatus, pointer: ModelPointer, bad: RejectedBundle) -> Outcome:
    """It is not tried again; the coordinator hears so once more."""
    book, words = standing.book, NothingToDo(f"version {pointer.version} was rolled back: {bad.why}")
    known = book.report is not None and book.report.bundle == bad.digest
    if known or standing.phase in {DeploymentPhase.FETCHED, DeploymentPhase.ON_TRIAL}:
        return standing, (words,)
    kept = InstalledBundle(
        task=pointer.task, version=pointer.version, digest=bad.digest, serial=pointer.serial
    )
    after = book.model_copy(update={"report": report_of(kept, "rolled_back", bad.why)})
    return DeploymentStatus(after, standing.answers), (Action.WRITE, words)


def _is_older(pointer: ModelPointer, running: InstalledBundle) -> bool:
    return not pointer.serial and pointer.task == running.task and pointer.version < running.version
