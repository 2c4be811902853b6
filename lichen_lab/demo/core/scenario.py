"""What the processes of any demo need before the first of them starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lichen_lab.demo.core.results import Results
from lichen_lab.simulation.data.spar_fleet import Layout
from protocol.tasks.task import Task

ResultsT = TypeVar("ResultsT", bound=Results)


@dataclass(frozen=True)
class Stage(Generic[ResultsT]):
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
