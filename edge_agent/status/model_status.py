"""Why a device runs no model, or not the announced one: for ``up/state`` and ``status``."""

import re
from collections.abc import Iterator
from typing import Any, Final

from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.ports import Runner
from edge_agent.deployment.record import shortened
from edge_agent.deployment.service import DeploymentService
from edge_agent.tasks.current_task import CurrentTask
from protocol.errors import Refused
from protocol.rollout import Hindrance, TrialReport
from protocol.tasks.task import LABEL
from runtime.waits import StatusPart, Wait

_OFF: Final = "nothing runs models here: "
_DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")
"""A digest in the path of an unpacked bundle; it is shortened, so that the reason is not cut off."""


class ModelStatus(StatusPart):
    """The part of the state message and ``status`` about models.

    Args:
        settings: of the agent.
        tasks: knows the inputs and targets of a model here.
        inference: runs models.
        deployment: installs them.
    """

    def __init__(
        self, settings: AgentSettings, tasks: CurrentTask, inference: Runner, deployment: DeploymentService
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._inference = inference
        self._deployment = deployment

    @property
    def digest(self) -> str | None:
        """Of the bundle whose model is active."""
        model = self._inference.model
        return None if model is None else str(model.digest)

    @property
    def trial(self) -> TrialReport | None:
        """Progress of the present trial, or the result of the last one."""
        return self._deployment.report()

    @property
    def blocked(self) -> Hindrance | None:
        """Why the device does not run the announced model; None: it does."""
        inference, trouble = self._inference, self._deployment.trouble
        if not inference.available:
            observes = "observe" in self._settings.roles
            return Hindrance(why=shortened(_OFF + inference.disabled_reason)) if observes else None
        if trouble is None:
            return None
        pointer, error = trouble
        words = error.words if isinstance(error, Refused) else str(error)
        why = shortened(_DIGEST.sub(lambda found: found[0][:12], words)) or "it does not say why"
        if pointer is None:
            return Hindrance(why=why)
        return Hindrance(
            why=why, version=pointer.version, bundle=pointer.bundle.digest, serial=pointer.serial
        )

    @property
    def missing(self) -> str:
        """Why a device with the role ``observe`` has no active model; empty if it has one."""
        inference, deployment = self._inference, self._deployment
        if inference.model is not None or "observe" not in self._settings.roles:
            return ""
        if not inference.available:
            return str(inference.disabled_reason)
        report, lost = deployment.report(), inference.disabled_reason
        words = deployment.why if report is None or report.phase == "committed" else _told(report)
        return words if lost in {"", "no model yet"} else f"{words}; {lost}"

    def status(self) -> dict[str, Any]:
        """The active model, the last refusal, the committed model, and the trial."""
        model, record, trial = self._inference.model, self._deployment.record, self.trial
        return {
            "inference": self._inference.disabled_reason or "running",
            "model_version": None if model is None else model.manifest.version,
            "model_personal": model is not None and bool(model.own),
            "model_refused": self._deployment.last_refusal,
            "model_committed": record.committed and record.committed.version,
            "model_trial": None if trial is None else trial.model_dump(mode="json"),
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for a missing model, or for a trial."""
        deployment, missing = self._deployment, self.missing
        trial = deployment.trial_wait()
        if deployment.until is not None:
            words = f"{deployment.why}; no model runs meanwhile" if missing else deployment.why
            yield Wait("model", words, deployment.since, deployment.until, "the agent tries again")
        elif missing and trial is None:
            yield Wait(
                "model", f"no model runs here: {missing}", deployment.since, None, self._until_one_runs()
            )
        if trial is not None:
            yield trial

    def _until_one_runs(self) -> str:
        if not self._settings.infer.enabled:
            return "until infer.enabled is true, or observe is left out of roles, and the agent is restarted"
        if not self._inference.available:
            return "until that is mended, and the agent is restarted"
        now = self._tasks.readiness()
        if not now.modalities:
            return "until a coordinator announces one that runs here"
        reads, predicts = ", ".join(now.modalities), ", ".join(now.profile.targets or (LABEL,))
        return f"until a coordinator announces one that reads {reads} and predicts {predicts}"


def _told(report: TrialReport) -> str:
    if report.phase == "trial":
        return f"version {report.version} is being loaded"
    done = {"rolled_back": "was rolled back", "refused": "was refused"}.get(report.phase, report.phase)
    return f"version {report.version} {done}: {report.why or 'no reason is known'}"
