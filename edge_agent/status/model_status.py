"""Why a device runs no model, or not the one that it is pointed to: for ``up/state`` and ``status``."""

import re
from typing import TYPE_CHECKING, Final

from edge_agent.deployment.record import shortened
from protocol.errors import Refused
from protocol.rollout import Hindrance, TrialReport

if TYPE_CHECKING:
    from edge_agent.agent import Agent

_OFF: Final = "nothing runs models here: "
_DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")
"""In the paths of what is unpacked; beside it the reason would be cut off."""


def hindrance(agent: "Agent") -> Hindrance | None:
    """For ``up/state``; None: nothing is in the way of what it is pointed to."""
    inference, trouble = agent.inference, agent.deployment.trouble
    if not inference.available:
        observes = "observe" in agent.settings.roles
        return Hindrance(why=shortened(_OFF + inference.off_because)) if observes else None
    if trouble is None:
        return None
    pointer, error = trouble
    words = error.words if isinstance(error, Refused) else str(error)
    why = shortened(_DIGEST.sub(lambda found: found[0][:12], words)) or "it does not say why"
    if pointer is None:
        return Hindrance(why=why)
    return Hindrance(why=why, version=pointer.version, bundle=pointer.bundle.digest, serial=pointer.serial)


def no_model(agent: "Agent") -> str:
    """Why a device with the role ``observe`` has no model that answers; empty where it has one."""
    inference, deployment = agent.inference, agent.deployment
    if inference.model is not None or "observe" not in agent.settings.roles:
        return ""
    if not inference.available:
        return str(inference.off_because)
    report, lost = deployment.report(), inference.off_because
    words = deployment.why if report is None or report.phase == "committed" else _told(report)
    return words if lost in {"", "no model yet"} else f"{words}; {lost}"


def _told(report: TrialReport) -> str:
    if report.phase == "trial":
        return f"version {report.version} is being loaded"
    done = {"rolled_back": "was rolled back", "refused": "was refused"}.get(report.phase, report.phase)
    return f"version {report.version} {done}: {report.why or 'no reason is known'}"
