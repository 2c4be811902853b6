"""What every demo is made of: a stage that is set first, a course, and the story that is told of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lichen.demo.plan import Layout, Options
from lichen.demo.story import Check
from protocol.task import Task

if TYPE_CHECKING:
    from rich.table import Table

    from lichen.demo.fleet import Fleet


class Told(Protocol):
    """A story, whatever else it says: what happened, what was looked at, and whether it worked."""

    events: list[tuple[float, str]]
    checks: list[Check]
    seconds: float

    @property
    def worked(self) -> bool:
        """Everything that must hold holds."""


@dataclass(frozen=True)
class Stage:
    """What the processes of any demo need."""

    layout: Layout
    task: Task
    story: Any
    """A :class:`Told`, to be filled in."""
    people: dict[str, str]
    """Training device -> whose wrist it is on, in words; in the order in which they start."""
    agent: Callable[[str], dict[str, Any]]
    """Training device -> its configuration, from where its recording is now."""
    lengths_s: dict[str, float]
    """Device -> the length of its recording."""


class Demo(Protocol):
    """One method's demo; a module of ``lichen.demo.plans`` has it as ``DEMO``."""

    def prepare(self, options: Options, version: str) -> Any:
        """Write everything that the processes read, and set the :class:`Stage`.

        Raises:
            Misconfigured: the data is not here, or the output folder is somebody else's.
            ModuleNotFoundError: something that the demo needs later is not installed.
        """

    async def live(self, fleet: "Fleet[Any]") -> None:
        """The course, from the first process to the last; the stage's story is told on the way."""

    def checks(self, story: Any, options: Options) -> list[Check]:
        """What must hold, and what was found besides; the most important first."""

    def write(self, stage: Any) -> Path:
        """Write ``report.json`` and ``report.html``; returns the page's path."""

    def tables(self, story: Any) -> Sequence["Table"]:
        """What the terminal shows above the checks."""
