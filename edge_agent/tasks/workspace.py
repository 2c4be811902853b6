"""What belongs to the present task, whatever its material: windows of streams, or a knowledge graph.

Services ask a workspace, and know windows or knowledge graphs nowhere: ``WindowWorkspace``
(:mod:`window_space`) and ``KnowledgeGraphWorkspace`` (:mod:`graph_space`) answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from models.contract import Profile
from models.materials import Material
from protocol.messages import ModalityState, Role
from protocol.tasks.task import Task


@dataclass(frozen=True)
class Readiness:
    """What is there to learn from, now.

    Attributes:
        profile: what the device reads and predicts.
        samples: windows or triples to learn from; what ``rounds.min_windows`` counts.
        modalities: those of the profile, for the state message.
        fleet_secret: the print of the secret that names entities; None where there is none.
    """

    profile: Profile
    samples: int
    modalities: Mapping[str, ModalityState]
    fleet_secret: str | None = None


@dataclass(frozen=True)
class Problem:
    """What somebody should look at.

    Attributes:
        kind: one word, as of a wait in ``lichen agent status --why``.
        words: what is wrong.
        since: Unix seconds.
        then: until what.
    """

    kind: str
    words: str
    since: float
    then: str


class HasWorkspace(Protocol):
    """Whoever knows the present task."""

    @property
    def workspace(self) -> "TrainingData | None":
        """What belongs to it; None while no task is known."""


class TrainingData(Protocol):
    """What belongs to one task."""

    task: Task
    modalities: tuple[str, ...]
    """Those that this device may read, in the task's order."""
    by: Role | None
    """The role in which it takes offers; None: it only observes."""

    def readiness(self) -> Readiness:
        """What is there. Touches no disk."""

    def load(self, limit: int) -> tuple[Profile, Material]:
        """What one local round learns from, and what it shows of the device's profile. Touches the disk.

        Args:
            limit: at most so many windows; a knowledge graph is given as a whole.

        Raises:
            Transient: there is nothing, or it cannot be read now.
        """

    def problem(self) -> Problem | None:
        """What keeps samples from coming in; None: nothing."""

    def status(self) -> dict[str, Any]:
        """For ``status.json``, as JSON values."""

    def close(self) -> None:
        """What is not written yet is written, and files are closed."""
