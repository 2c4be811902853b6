"""How a device responds to a pointer: pure.

A coordinator numbers its decisions (``ModelPointer.serial``). The later decision wins, on either topic and
even with a lower version: that is how a fleet rolls back. Without a serial, versions count; but a signer that
has numbered one decision must number all later ones.
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
from edge_agent.deployment.transitions import judge_now, signer_changed, with_serial
from protocol.messages import ModelPointer


def select_pointer(fleet: ModelPointer | None, own: ModelPointer | None) -> ModelPointer | None:
    """The later decision of those on ``b/model`` and the device's ``down/model``.

    With equal serials the device's own; without serials the higher version, and the device's own if they are
    equal.
    """
    if fleet is None or own is None:
        return own if fleet is None else fleet
    if fleet.serial != own.serial:
        return max(fleet, own, key=lambda pointer: pointer.serial)
    if fleet.serial == 0 and fleet.task == own.task and fleet.version > own.version:
        return fleet
    return own


def on_pointer(status: DeploymentStatus, event: Pointed) -> Outcome:
    """Respond to a pointer, in any phase."""
    record, pointer, digest = status.record, event.pointer, event.pointer.bundle.digest
    trial, committed = record.trial, record.committed
    new_signer = signer_changed(record, event.epoch)
    # A signer that numbers its decisions keeps doing so: 0 is an old one. An unsigned one may be from a
    # coordinator of an older release.
    if (pointer.serial or event.epoch is not None) and pointer.serial < record.serial and not new_signer:
        words = f"decision {pointer.serial} is out of date: this device follows decision {record.serial}"
        return status, (NothingToDo(words),)
    if trial is not None and trial.digest == digest:
        return _same_trial(status, trial, event)
    if committed is not None and committed.digest == digest:
        return _same_model(status, committed, event)
    bad = None if new_signer else record.failed(digest, pointer.serial)
    return _another(status, event) if bad is None else _failed_before(status, pointer, bad)


def _another(status: DeploymentStatus, event: Pointed) -> Outcome:
    """Respond to a bundle that is neither on trial nor committed."""
    record, pointer = status.record, event.pointer
    trial, running = record.trial, record.trial or record.committed
    if running is not None and _is_older(pointer, running) and not signer_changed(record, event.epoch):
        words = f"version {pointer.version} is older than version {running.version}, which runs"
        return status, (TooOld(words),)
    if trial is None or _supersedes(pointer, trial):
        return status, (FetchBundle(pointer),)
    if trial.rollout or not status.answers:
        return status, (NothingToDo(f"version {pointer.version} waits: version {trial.version} is on trial"),)
    # A fleet that exports faster than a trial lasts still commits, and the device keeps up.
    after, commands = judge_now(status)
    return after, (*commands, FetchBundle(pointer))


def _supersedes(pointer: ModelPointer, trial: TrialBundle) -> bool:
    """Whether it ends a trial: a later rollout does, and any pointer before the trial's first window."""
    shown = trial.measures.windows + trial.measures.errors
    return not shown or (pointer.trial is not None and pointer.serial > trial.serial)


def _same_trial(status: DeploymentStatus, trial: TrialBundle, event: Pointed) -> Outcome:
    record, words = status.record, NothingToDo(f"version {event.pointer.version} is on trial")
    trial = trial.model_copy(update=_vouched(record, trial, event))
    after = record.model_copy(update={"trial": trial, **with_serial(record, trial.serial, event.epoch)})
    return (
        (status, (words,))
        if after == record
        else (DeploymentStatus(after, status.answers), (Action.WRITE, words))
    )


def _same_model(status: DeploymentStatus, committed: InstalledBundle, event: Pointed) -> Outcome:
    """Keep the committed model; the model on trial was withdrawn."""
    record, words = status.record, NothingToDo(f"version {event.pointer.version} runs")
    kept = committed.model_copy(update=_vouched(record, committed, event))
    report = record.report
    if report is None or report.bundle != kept.digest or report.phase != "committed":
        report = report_of(kept, "committed")
    report = report.model_copy(update={"serial": kept.serial})
    now = {"committed": kept, "report": report, "trial": None}
    after = record.model_copy(update=now | with_serial(record, event.pointer.serial, event.epoch))
    if after == record:
        return status, (words,)
    back = (Action.BACK,) if status.answers else ()
    tidy = () if record.trial is None else (Action.TIDY,)
    return DeploymentStatus(after), (*back, Action.WRITE, *tidy, words)


def _vouched(record: DeploymentRecord, kept: InstalledBundle, event: Pointed) -> dict[str, int | None]:
    """Serial and epoch of a later decision on the same bundle, or of its new signer."""
    serial, epoch = event.pointer.serial, event.epoch
    if not signer_changed(record, epoch):
        serial = max(serial, kept.serial)
    return {"serial": serial, "epoch": kept.epoch if epoch is None else epoch}


def _failed_before(status: DeploymentStatus, pointer: ModelPointer, bad: RejectedBundle) -> Outcome:
    """Do not try the bundle again; report that it failed."""
    record, words = status.record, NothingToDo(f"version {pointer.version} was rolled back: {bad.why}")
    known = record.report is not None and record.report.bundle == bad.digest
    if known or status.phase in {DeploymentPhase.FETCHED, DeploymentPhase.ON_TRIAL}:
        return status, (words,)
    kept = InstalledBundle(
        task=pointer.task, version=pointer.version, digest=bad.digest, serial=pointer.serial
    )
    after = record.model_copy(update={"report": report_of(kept, "rolled_back", bad.why)})
    return DeploymentStatus(after, status.answers), (Action.WRITE, words)


def _is_older(pointer: ModelPointer, running: InstalledBundle) -> bool:
    return not pointer.serial and pointer.task == running.task and pointer.version < running.version
