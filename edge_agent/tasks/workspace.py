"""The interface of a workspace, the data of the present task: windows of streams, or a knowledge graph.

Services use only this interface, which ``WindowWorkspace`` (:mod:`edge_agent.windows.workspace`) and
``KnowledgeGraphWorkspace`` (:mod:`edge_agent.knowledge_graph.workspace`) implement.
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
    """The training data that is available now.

    Attributes:
        profile: what the device reads and predicts.
        samples: windows or triples to learn from; ``rounds.min_windows`` counts them.
        modalities: those of the profile, for the state message.
        fleet_secret: the fingerprint of the secret that names entities; None if there is none.
    """

    profile: Profile
    samples: int
    modalities: Mapping[str, ModalityState]
    fleet_secret: str | None = None


@dataclass(frozen=True)
class Problem:
    """A problem that needs attention.

    Attributes:
        kind: one word, as of a wait in ``lichen agent status --why``.
        words: the problem.
        since: Unix seconds.
        then: until when it lasts.
    """

    kind: str
    words: str
    since: float
    then: str


class TrainingData(Protocol):
    """The training data of one task."""

    task: Task
    modalities: tuple[str, ...]
    """Those that this device may read, in the task's order."""
    by: Role | None
    """The role in which it takes offers; None: it only observes."""

    def readiness(self) -> Readiness:
        """The available training data. Does not touch the disk."""

    def load(self, limit: int) -> tuple[Profile, Material]:
        """The data of one local round, and the profile that it shows. Touches the disk.

        Args:
            limit: maximal number of windows; a knowledge graph is always complete.

        Raises:
            Transient: there is none, or it cannot be read now.
        """

    def problem(self) -> Problem | None:
        """Why no samples come in; None if they do."""

    def status(self) -> dict[str, Any]:
        """For ``status.json``, as JSON values."""

    def close(self) -> None:
        """Write all waiting data, and close the files."""
