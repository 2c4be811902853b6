"""A demo from the modules of its plan: what the plans do alike."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lichen.demo.kind import Stage
from lichen.demo.plan import Options
from lichen.demo.story import Check

if TYPE_CHECKING:
    from rich.table import Table

    from lichen.demo.fleet import Fleet


@dataclass(frozen=True)
class Assembled:
    """See :class:`lichen.demo.kind.Demo`.

    Attributes:
        setting: writes all files, and sets the stage.
        course: from the first process to the last.
        checking: what must hold, and what was found besides.
        table: what the terminal shows.
        page: the module whose ``write(story, path)`` makes the page; imported at the end, because matplotlib
            takes a second.
    """

    setting: Callable[[Options, str], Stage]
    course: Callable[["Fleet[Any]"], Awaitable[None]]
    checking: Callable[[Any, Options], list[Check]]
    table: Callable[[Any], "Table"]
    page: str

    def prepare(self, options: Options, version: str) -> Stage:
        """All files; nothing runs yet."""
        return self.setting(options, version)

    async def live(self, fleet: "Fleet[Any]") -> None:
        """The course."""
        await self.course(fleet)

    def checks(self, story: Any, options: Options) -> list[Check]:
        """The most important first."""
        return self.checking(story, options)

    def write(self, stage: Stage) -> Path:
        """The story and its page."""
        root = stage.layout.root
        stage.story.save(root / "report.json")
        import_module(self.page).write(stage.story, root / "report.html")
        return root / "report.html"

    def tables(self, story: Any) -> Sequence["Table"]:
        """One."""
        return (self.table(story),)
