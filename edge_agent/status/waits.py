"""What an agent waits for, from its services (``lichen agent status --why``)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from edge_agent.status.model_status import no_model
from edge_agent.tasks.roles import learns_by
from protocol.tasks.task import LABEL
from runtime.waits import Wait, stamp

if TYPE_CHECKING:
    from edge_agent.agent import Agent

_PATIENCE: Final = 2.5
"""Times ``resend_s``, to the next sending: so long without an answer, somebody should look."""


def waits(agent: "Agent") -> list[Wait]:
    """All of it, the most pressing first."""
    return [
        *_broker(agent),
        *_certificate(agent),
        *_task(agent),
        *_signatures(agent),
        *_trouble(agent),
        *_learner(agent),
        *_receipts(agent),
        *_model(agent),
        *(() if agent.publishing is None else agent.publishing.waits()),
    ]


def _broker(agent: "Agent") -> Iterator[Wait]:
    link = agent.link
    if not link.connected:
        yield Wait("broker", link.why, link.since, link.until, "it is tried again")


def _certificate(agent: "Agent") -> Iterator[Wait]:
    renewal = agent.renewal
    if renewal.since is not None:
        yield Wait("certificate", renewal.why, renewal.since, renewal.until, "it is tried again")


def _task(agent: "Agent") -> Iterator[Wait]:
    work, misfit = agent.workspace(), agent.session.misfit
    if misfit:
        kept = "" if work is None else f" (task {work.task.name!r} before it is kept)"
        words = f"the task that is announced cannot be done here: {misfit}{kept}"
    elif work is None:
        words = "no task is announced, and no task_file is set"
    else:
        return
    yield Wait("task", words, agent.started, None, "until a coordinator announces one")


def _signatures(agent: "Agent") -> Iterator[Wait]:
    verifier = agent.verifier
    if verifier.why:
        yield Wait("signatures", verifier.why, verifier.since, None, "until one comes that is signed")


def _trouble(agent: "Agent") -> Iterator[Wait]:
    work = agent.workspace()
    trouble = None if work is None else work.trouble()
    if trouble is not None:
        yield Wait(trouble.kind, trouble.words, trouble.since, None, trouble.then)


def _learner(agent: "Agent") -> Iterator[Wait]:
    learner = agent.learner
    if learner.until is None and not {"train", "prototype"} & {*agent.settings.roles}:
        return  # a device that only observes is offered no round
    if agent.outbox.waiting and learner.until is None:
        return  # what is learnt waits for its receipt; that is said below
    then = "it is given up, or tried again"
    if learner.until is None:
        ready = " (in role prototype: when it has made the feature graphs, and a device trains)"
        role = ready if learns_by(agent.settings) == "prototype" else ""
        then = f"until the coordinator offers a round{role}; {_last_heard(agent)}"
    yield Wait("round", learner.why, learner.since, learner.until, then)


def _last_heard(agent: "Agent") -> str:
    if agent.router.heard is None:
        return f"nothing was heard of it since the agent started, {stamp(agent.started)}"
    return f"it was last heard {stamp(agent.router.heard)}"


def _silence(agent: "Agent") -> str:
    """What to do where the broker is there and the coordinator answers nothing."""
    again, heard = agent.outbox.again_at, max(agent.router.heard or agent.started, agent.outbox.oldest or 0.0)
    if not agent.link.connected or again is None:
        return ""
    if again - heard < _PATIENCE * agent.settings.outbox.resend_s:
        return ""
    return f"; is the coordinator running? (lichen status) {_last_heard(agent)}"


def _receipts(agent: "Agent") -> Iterator[Wait]:
    outbox = agent.outbox
    if outbox.waiting:
        words = (
            f"{outbox.waiting} updates have no receipt" if outbox.waiting > 1 else "an update has no receipt"
        )
        refused = f"; the last one was refused: {outbox.last_refusal}" if outbox.last_refusal else ""
        words += refused + _silence(agent)
        yield Wait("receipt", words, outbox.oldest, outbox.again_at, "it is sent again")


def _model(agent: "Agent") -> Iterator[Wait]:
    deployment = agent.deployment
    trial, none = deployment.trial_wait(), no_model(agent)
    if deployment.until is not None:
        words = f"{deployment.why}; no model runs meanwhile" if none else deployment.why
        yield Wait("model", words, deployment.since, deployment.until, "it is tried again")
    elif none and trial is None:
        yield Wait("model", f"no model runs here: {none}", deployment.since, None, _until_there_is_one(agent))
    if trial is not None:
        yield trial


def _until_there_is_one(agent: "Agent") -> str:
    if not agent.settings.infer.enabled:
        return "until infer.enabled is true, or observe is left out of roles, and the agent is restarted"
    if not agent.inference.available:
        return "until that is mended, and the agent is restarted"
    state = agent.session.state()
    if not state.modalities:
        return "until a coordinator announces one that runs here"
    reads, predicts = ", ".join(state.modalities), ", ".join(state.targets or (LABEL,))
    return f"until a coordinator announces one that reads {reads} and predicts {predicts}"
