"""DisentAFL's demo: watches with different sensors, that learn different things, share one supernet."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lichen.demo.kind import Demo
from lichen.demo.plan import Options
from lichen.demo.plans.disentafl import checks, course
from lichen.demo.plans.disentafl.prepare import Stage, prepare
from lichen.demo.plans.disentafl.story import RoutedStory
from lichen.demo.plans.disentafl.summary import table
from lichen.demo.story import Check

if TYPE_CHECKING:
    from rich.table import Table

    from lichen.demo.fleet import Fleet


class RoutedDemo:
    """See :class:`lichen.demo.kind.Demo`."""

    def prepare(self, options: Options, version: str) -> Stage:
        """Recordings of each kind of watch, the unseen people's windows, every process's configuration."""
        return prepare(options, version)

    async def live(self, fleet: "Fleet[Stage]") -> None:
        """Learn, plug a sensor in, learn on, run each device's own model, compare."""
        await course.live(fleet)

    def checks(self, story: RoutedStory, options: Options) -> list[Check]:
        """That routes were kept to, what they cost, and what sharing was worth to each kind of device."""
        return checks.checks(story, options)

    def write(self, stage: Stage) -> Path:
        """The story and its page."""
        from lichen.demo.plans.disentafl.report import write  # noqa: PLC0415 - matplotlib takes a second to import

        root = stage.layout.root
        stage.story.save(root / "report.json")
        write(stage.story, root / "report.html")
        return root / "report.html"

    def tables(self, story: RoutedStory) -> Sequence["Table"]:
        """What each kind of device moved and reached."""
        return (table(story),)


DEMO: Demo = RoutedDemo()
