"""Whether models' processes can give up rights that a model does not need.

See ``edge_agent.inference.serving.confinement``.
"""

from edge_agent.config.agent import AgentSettings
from edge_agent.doctor.findings import Finding, ok, warn
from runtime.process import landlock

_CHECK = "models.landlock"


def probe() -> int:
    """The kernel's version of Landlock; 0: none."""
    return landlock.version()


def judge(version: int, settings: AgentSettings) -> list[Finding]:
    """One finding, if models run at all."""
    if not settings.infer.enabled and "prototype" not in settings.roles:
        return []
    if not version:
        return [
            warn(
                _CHECK,
                "this kernel has no Landlock: models' processes may read what the agent may read",
                "take a kernel that has it; where its command line has lsm=, add landlock there",
            )
        ]
    if settings.infer.enabled and settings.infer.isolation == "none":
        words = "the model is in the agent's process and may read what the agent may (infer.isolation)"
        return [ok(_CHECK, words)]
    return [ok(_CHECK, f"models' processes cannot open the device's key (Landlock {version})")]
