"""What the processes of any demo need before the first of them starts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from lichen_lab.demo.core.results import Results
from lichen_lab.simulation.data.spar_fleet import ROUNDS
from lichen_lab.simulation.processes.fleet_files import FleetFiles
from protocol.tasks.task import Task

FLEET: Final = "demo"
ResultsT = TypeVar("ResultsT", bound=Results)


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    out: Path
    rounds: int = ROUNDS
    speed: float = 20.0
    seed: int = 0
    chaos: bool = False
    study: bool = True
    study_seeds: int = 3
    observer_python: Path | None = None
    timeout_s: float = 1200.0


@dataclass(frozen=True)
class Layout(FleetFiles):
    """Where a demo's files lie.

    Attributes:
        start_s: device -> where its recording begins when it is started again, in seconds.
    """

    fleet: str = FLEET
    start_s: dict[str, float] = field(default_factory=dict)

    @property
    def unseen(self) -> Path:
        """The evaluation windows."""
        return self.root / "unseen.npz"

    def predictions(self, name: str) -> Path:
        """What a device says: a line for each window."""
        return self.root / f"predictions-{name}.jsonl"

    def replay(self, name: str, speed: float, **more: Any) -> dict[str, Any]:
        """Its recording, from where it is now."""
        return super().replay(name, speed, **{"start_s": self.start_s.get(name, 0.0), **more})


def agent_config(layout: Layout, name: str, speed: float, **tables: Any) -> dict[str, Any]:
    """An agent that plays its recording against the demo's broker, and trains."""
    base = {
        "roles": ["observe", "train"],
        "state_every_s": 2.0,
        "store": {"commit_every_s": 1.0},
        "infer": {"enabled": False},
        "source": [layout.replay(name, speed)],
    }
    return layout.agent(name, tables, **base)


def observer_config(layout: Layout, name: str, speed: float, **tables: Any) -> dict[str, Any]:
    """An agent that plays its recording, and only observes."""
    infer = {"enabled": True, "output": str(layout.predictions(name))}
    return agent_config(layout, name, speed, **{"roles": ["observe"], "infer": infer, **tables})


def coordinator_config(layout: Layout, **tables: Any) -> dict[str, Any]:
    """The demo's coordinator."""
    base = {
        "evaluation": {"data": str(layout.unseen), "every_rounds": 1},
        "export": {"enabled": True, "every_rounds": 0},
        "offer_every_s": 2.0,
        "spread_s": 0.5,
        "away_grace_s": 60.0,  # the story's kills and restarts fit in, on slow machines too
    }
    return layout.coordinator(tables, **base)


@dataclass(frozen=True)
class PreparedDemo(Generic[ResultsT]):
    """All that is ready.

    Attributes:
        layout: where things lie.
        task: what the fleet learns.
        story: the demo's results, to be filled in.
        people: training device -> whose wrist it is on, in words; in the order in which they start.
        agent: training device -> its configuration, from where its recording is now.
        lengths_s: device -> the length of its recording.
        fault: when the observing device's gyroscope is silent, in seconds of its recording; None: never.
    """

    layout: Layout
    task: Task
    story: ResultsT
    people: dict[str, str]
    agent: Callable[[str], dict[str, Any]]
    lengths_s: dict[str, float]
    fault: tuple[float, float] | None = None
