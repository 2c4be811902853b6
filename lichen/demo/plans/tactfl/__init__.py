"""TACTFL's demo: watches that know no label, one of them broken, and a coordinator that has a few labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lichen.demo.kind import Demo
from lichen.demo.plan import Options
from lichen.demo.plans.tactfl import checks, course
from lichen.demo.plans.tactfl.prepare import Stage, prepare
from lichen.demo.plans.tactfl.story import UnlabelledStory
from lichen.demo.plans.tactfl.summary import table
from lichen.demo.story import Check

if TYPE_CHECKING:
    from rich.table import Table

    from lichen.demo.fleet import Fleet


class UnlabelledDemo:
    """See :class:`lichen.demo.kind.Demo`."""

    def prepare(self, options: Options, version: str) -> Stage:
        """Recordings without labels, the coordinator's labelled windows, every process's configuration."""
        return prepare(options, version)

    async def live(self, fleet: "Fleet[Stage]") -> None:
        """Learn, deploy, compare."""
        await course.live(fleet)

    def checks(self, story: UnlabelledStory, options: Options) -> list[Check]:
        """That nobody had a label, what the broken device weighed, and what the fleet was worth."""
        return checks.checks(story, options)

    def write(self, stage: Stage) -> Path:
        """The story and its page."""
        from lichen.demo.plans.tactfl.report import write  # noqa: PLC0415 - matplotlib takes a second to import

        root = stage.layout.root
        stage.story.save(root / "report.json")
        write(stage.story, root / "report.html")
        return root / "report.html"

    def tables(self, story: UnlabelledStory) -> Sequence["Table"]:
        """What each device weighed in the end."""
        return (table(story),)


DEMO: Demo = UnlabelledDemo()
