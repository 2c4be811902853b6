"""Options, paths and configurations of a demo, before its first process starts."""

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
    """Options of the command line."""

    out: Path
    rounds: int = ROUNDS
    speed: float = 20.0
    seed: int = 0
    chaos: bool = False
    study: bool = True
    study_seeds: int = 3
    observer_python: Path | None = None
    timeout_s: float = 1200.0
    stay: bool = False


@dataclass(frozen=True)
class Layout(FleetFiles):
    """Paths of a demo's files.

    Attributes:
        start_s: device -> second of its recording at which a restart continues.
    """

    fleet: str = FLEET
    start_s: dict[str, float] = field(default_factory=dict)

    @property
    def unseen(self) -> Path:
        """The evaluation windows."""
        return self.root / "unseen.npz"

    def predictions(self, name: str) -> Path:
        """A device's predictions: a line for each window."""
        return self.root / f"predictions-{name}.jsonl"

    def replay(self, name: str, speed: float, **more: Any) -> dict[str, Any]:
        """A ``[[source]]``: its recording, from the present second on."""
        return super().replay(name, speed, **{"start_s": self.start_s.get(name, 0.0), **more})


def agent_config(layout: Layout, name: str, speed: float, **tables: Any) -> dict[str, Any]:
    """Configuration of an agent that replays its recording and trains."""
    base = {
        "roles": ["observe", "train"],
        "state_every_s": 2.0,
        "store": {"commit_every_s": 1.0},
        "infer": {"enabled": False},
        "source": [layout.replay(name, speed)],
    }
    return layout.agent(name, tables, **base)


def observer_config(layout: Layout, name: str, speed: float, **tables: Any) -> dict[str, Any]:
    """Configuration of an agent that replays its recording and only observes."""
    infer = {"enabled": True, "output": str(layout.predictions(name))}
    return agent_config(layout, name, speed, **{"roles": ["observe"], "infer": infer, **tables})


def coordinator_config(layout: Layout, **tables: Any) -> dict[str, Any]:
    """Configuration of the demo's coordinator."""
    base = {
        "evaluation": {"data": str(layout.unseen), "every_rounds": 1},
        "export": {"enabled": True, "every_rounds": 0},
        "offer_every_s": 2.0,
        "spread_s": 0.5,
        "away_grace_s": 60.0,  # long enough for kills and restarts, on slow machines too
    }
    return layout.coordinator(tables, **base)


@dataclass(frozen=True)
class PreparedDemo(Generic[ResultsT]):
    """A demo that is ready to start.

    Attributes:
        layout: paths.
        task: what the fleet learns.
        results: to be filled in.
        people: training device -> whose wrist it is on, in words; in the order in which they start.
        agent: training device -> its configuration, from the present second of its recording on.
        lengths_s: device -> the length of its recording.
        fault: when the observing device's gyroscope is silent, in seconds of its recording; None: never.
    """

    layout: Layout
    task: Task
    results: ResultsT
    people: dict[str, str]
    agent: Callable[[str], dict[str, Any]]
    lengths_s: dict[str, float]
    fault: tuple[float, float] | None = None
