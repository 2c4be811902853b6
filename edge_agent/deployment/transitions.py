"""One function for each cell of the table in ``state_machine``. Pure."""

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


def begin(status: DeploymentStatus, event: Started) -> Outcome:
    """A model was on trial when the agent ended: load it again, up to ``max_starts``; counted first."""
    trial = _trial(status)
    starts = trial.starts + 1
    if starts > event.max_starts:
        why = f"still on trial at start {starts} of the agent, none of which ended normally"
        return _back(status, why)
    return _with(status, trial=trial.model_copy(update={"starts": starts})), (Action.WRITE, Action.LOAD)


def start_trial(status: DeploymentStatus, event: Fetched) -> Outcome:
    """Start a new trial, and end the present one, if any. It is recorded before the bundle is loaded."""
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
    back = (Action.BACK,) if status.answers else ()
    after = _with(status, trial=trial, **with_serial(status.record, said.serial, said.epoch))
    return replace(after, answers=False), (*back, Action.WRITE, Action.LOAD)


def with_serial(record: DeploymentRecord, serial: int, epoch: int | None) -> dict[str, Any]:
    """Fields of the record after following a decision; a new signer resets serial and rejections."""
    if signer_changed(record, epoch):
        return {"serial": serial, "epoch": epoch, "bad": ()}
    return {"serial": max(record.serial, serial), "epoch": record.epoch if epoch is None else epoch}


def signer_changed(record: DeploymentRecord, epoch: int | None) -> bool:
    """Whether the signer has changed: versions and serials of the former one no longer apply."""
    if epoch is not None and record.epoch is not None:
        return epoch != record.epoch
    here = [one.epoch for one in (record.trial, record.committed) if one is not None]
    return epoch is not None and epoch not in here


def swap(status: DeploymentStatus, event: Loaded) -> Outcome:
    """Activate it from the next batch on."""
    return replace(status, answers=True), (Swap(event.model),)


def refuse(status: DeploymentStatus, event: BundleRefused) -> Outcome:
    """The model cannot be loaded. If it was loaded before a restart, it is rolled back."""
    if _trial(status).starts:
        return _back(status, event.why)
    return _end(status, "refused", event.why)


def decline(status: DeploymentStatus, event: PointerRejected) -> Outcome:
    """Report why. Not written to disk: anybody who can publish could wear out the disk."""
    report = report_of(event.model, "refused", event.why)
    return _with(status, report=report), ()


def judge(status: DeploymentStatus, event: BatchObservation) -> Outcome:
    """Count one more batch, and judge if there are enough."""
    trial = _trial(status)
    if event.digest != trial.digest:
        return status, ()
    return _judged(status, trial.model_copy(update={"measures": added(trial.measures, event)}))


def wait(status: DeploymentStatus, event: DeploymentTick) -> Outcome:
    """Count running time from the first window on: without windows there is no evidence."""
    trial = _trial(status)
    if not trial.measures.windows and not trial.measures.errors:
        return status, ()
    return _judged(status, trial.model_copy(update={"ran_s": trial.ran_s + event.seconds}))


def judge_now(status: DeploymentStatus) -> Outcome:
    """Judge by the answers so far."""
    trial = _trial(status)
    return _judged(status, trial.model_copy(update={"ran_s": max(trial.ran_s, trial.rules.deadline_s)}))


def give_up(status: DeploymentStatus, event: Crashed) -> Outcome:
    """Roll back a model that crashed too often."""
    return _back(status, event.why)


def withdraw(status: DeploymentStatus, event: Withdrawn) -> Outcome:
    """End the trial without a verdict: the same bundle may be announced again."""
    del event
    back = (Action.BACK,) if status.answers else ()
    return _with(status, trial=None, answers=False), (*back, Action.WRITE, Action.TIDY)


def forget_damaged(status: DeploymentStatus, event: Damaged) -> Outcome:
    """Forget a bundle whose folder is damaged: it is fetched again when it is announced."""
    record = status.record
    if record.trial is not None and record.trial.digest == event.digest:
        return withdraw(status, Withdrawn())
    if record.committed is not None and record.committed.digest == event.digest:
        return _with(status, committed=record.before, before=None), (Action.WRITE, Action.TIDY)
    if record.before is not None and record.before.digest == event.digest:
        return _with(status, before=None), (Action.WRITE, Action.TIDY)
    return status, ()


def stop(status: DeploymentStatus, event: Stopped) -> Outcome:
    """Do not count this start: the agent ends normally."""
    del event
    trial = _trial(status)
    return _with(status, trial=trial.model_copy(update={"starts": max(0, trial.starts - 1)})), (Action.WRITE,)


def _judged(status: DeploymentStatus, trial: TrialBundle) -> Outcome:
    status = _with(status, trial=trial)
    found = verdict(trial.rules, trial.measures, trial.ran_s)
    if found.says == "wait":
        return status, ()
    return _back(status, found.words) if found.says == "back" else _commit(status)


def _commit(status: DeploymentStatus) -> Outcome:
    record, trial = status.record, _trial(status)
    kept = InstalledBundle(
        task=trial.task,
        version=trial.version,
        digest=trial.digest,
        serial=trial.serial,
        epoch=trial.epoch,
    )
    before = (
        record.committed if record.committed is not None and record.committed.digest != kept.digest else None
    )
    report = report_of(trial, "committed", measures=trial.measures)
    after = _with(status, answers=False, trial=None, committed=kept, before=before, report=report)
    return after, (Action.WRITE, Action.KEEP, Action.TIDY)


def _back(status: DeploymentStatus, why: str) -> Outcome:
    """Roll back, and do not try the bundle again for the same decision."""
    trial, others = _trial(status), status.record.bad
    bad = RejectedBundle(digest=trial.digest, serial=trial.serial, why=shortened(why))
    kept = tuple(one for one in others if one.digest != bad.digest)
    after = _with(status, bad=(*kept, bad)[-MAX_BAD:])
    return _end(after, "rolled_back", why)


def _end(status: DeploymentStatus, phase: Literal["rolled_back", "refused"], why: str) -> Outcome:
    """Roll back first, then write: a full disk must not keep a bad model active."""
    trial = _trial(status)
    report = report_of(trial, phase, why, trial.measures)
    back = (Action.BACK,) if status.answers else ()
    after = _with(status, answers=False, trial=None, report=report)
    return after, (*back, Action.WRITE, Action.TIDY)


def _trial(status: DeploymentStatus) -> TrialBundle:
    trial = status.record.trial
    if trial is None:
        raise RuntimeError("no model is on trial")  # the table allows these in two phases only
    return trial


def _with(status: DeploymentStatus, *, answers: bool | None = None, **changes: Any) -> DeploymentStatus:
    record = status.record.model_copy(update=changes)
    return DeploymentStatus(record, status.answers if answers is None else answers)
