"""``lichen rollout`` as the demo uses it: words of the command, and its status."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.rollout.devices import DemoPlan
from lichen_lab.demo.rollout.results import COMPLETE, FAILED, PAUSED

_OVER: Final = frozenset({COMPLETE, FAILED, PAUSED, "aborted"})


@dataclass(frozen=True)
class DemoRolloutStatus:
    """Status of the last rollout."""

    phase: str
    why: str
    words: str

    @property
    def over(self) -> bool:
        """Whether it has ended or waits for an operator."""
        return self.phase in _OVER


def create_words(config: Path, plan: DemoPlan, which: Sequence[str]) -> tuple[str, ...]:
    """``rollout create`` and its options.

    Args:
        config: the coordinator's.
        plan: of the rollout.
        which: the version to roll out: ``--version N`` or ``--bundle FILE``.
    """
    trial = plan.trial.model_dump(exclude_defaults=True)
    options = [word for key, value in trial.items() for word in (f"--{key.replace('_', '-')}", f"{value:g}")]
    going = ("--canary", plan.canary, "--waves", plan.waves)
    return ("rollout", "create", "--config", str(config), *which, *going, *options)


def status_of(answer: dict[str, Any]) -> DemoRolloutStatus:
    """The last rollout in the output of ``rollout status --format json``."""
    rollout = answer["rollout"]
    if rollout is None:
        return DemoRolloutStatus("none", "", "no rollout has begun")
    phase, why = str(rollout["phase"]), str(rollout["why"])
    waits = "; ".join(str(wait["why"]) for wait in answer["waits"])
    return DemoRolloutStatus(phase, why, waits or f"the rollout of version {rollout['version']} is {phase}")
