"""QQR's demo: six watches whose sensors fail, one model for all, and a seventh that only observes."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lichen.demo import course
from lichen.demo.checks import checks
from lichen.demo.fleet import Fleet
from lichen.demo.kind import Demo
from lichen.demo.plan import Options
from lichen.demo.prepare import Stage, prepare
from lichen.demo.story import Check, Story
from lichen.demo.study import FEDERATED, summarise


class QqrDemo:
    """See :class:`lichen.demo.kind.Demo`."""

    def prepare(self, options: Options, version: str) -> Stage:
        """Recordings with faults, the unseen people's windows, every process's configuration."""
        return prepare(options, version)

    async def live(self, fleet: Fleet[Stage]) -> None:
        """Learn, deploy, compare."""
        await course.live(fleet)

    def checks(self, story: Story, options: Options) -> list[Check]:
        """That it learned and predicts, and what sharing and prototypes were worth."""
        return checks(story, options)

    def write(self, stage: Stage) -> Path:
        """The story and its page."""
        return course.finish(stage)

    def tables(self, story: Story) -> Sequence[Table]:
        """The simulated alternatives; none where they were not simulated."""
        rows = summarise(story.study)
        if not rows:
            return ()
        table = Table("the same people and kinds of faults, simulated", box=None, padding=(0, 2, 0, 0))
        for column in ("accuracy %", "± sd", "prototypes minus this", "± sd", "seeds"):
            table.add_column(column, justify="right")
        for row in rows:
            own = row.variant == FEDERATED
            table.add_row(
                row.variant,
                f"{100 * row.mean:.1f}",
                f"{100 * row.sd:.1f}",
                "" if own else f"{100 * row.margin:+.1f}",
                "" if own else f"{100 * row.margin_sd:.1f}",
                str(row.seeds),
            )
        return (table,)


DEMO: Demo = QqrDemo()
