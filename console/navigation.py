"""What the head of a page leads to: the pages of its task, those of the fleet, and the other tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from starlette.requests import HTTPConnection

from console.ports import TASKS, NavigationLink, task_of


class TaskNames(Protocol):
    """Knows the further tasks of the fleet."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, as they are now."""


@dataclass(frozen=True, slots=True)
class HeaderLink:
    """A link; ``begins_fleet``: it is the first after those of a task."""

    path: str
    words: str
    is_current: bool
    begins_fleet: bool = False


@dataclass(frozen=True, slots=True)
class TaskMenu:
    """The tasks to choose from: the same page of each. ``is_of_task``: the page is one of a task."""

    tasks: tuple[HeaderLink, ...]
    is_of_task: bool


def header(
    request: HTTPConnection, links: Sequence[NavigationLink], names: tuple[str, ...]
) -> dict[str, Any]:
    """Values for ``console.html``: ``task``, ``base``, ``navigation``, and ``menu``; None: there is one task.

    Args:
        request: of the page.
        links: that its viewer may follow.
        names: of the further tasks.
    """
    asked = task_of(request)
    task = asked if asked in names else None
    base, path = _base(task), request.url.path
    below = path.removeprefix(base) or "/"
    current = next((one for one in links if _is_in(below, one.path)), None)
    if not names:
        shown = _shown((one for one in links if one.path != TASKS), "", current)
        return {"task": None, "base": base, "navigation": shown, "menu": None}
    is_of_task = current is not None and not current.of_fleet
    section = current.path if current is not None and is_of_task else "/"
    choices = tuple(
        HeaderLink(_at(_base(name), section), name or "", is_of_task and name == task)
        for name in (None, *names)
    )
    of_task = _shown((one for one in links if is_of_task and not one.of_fleet), base, current)
    of_fleet = _shown((one for one in links if one.of_fleet), "", current, begins_fleet=is_of_task)
    menu = TaskMenu(choices, is_of_task)
    return {"task": task, "base": base, "navigation": [*of_task, *of_fleet], "menu": menu}


def _shown(
    links: Iterable[NavigationLink], base: str, current: NavigationLink | None, *, begins_fleet: bool = False
) -> list[HeaderLink]:
    return [
        HeaderLink(_at(base, one.path), one.words, one is current, begins_fleet and number == 0)
        for number, one in enumerate(links)
    ]


def _base(task: str | None) -> str:
    return "" if task is None else f"{TASKS}/{quote(task, safe='')}"


def _at(base: str, path: str) -> str:
    return base + path if path != "/" else base or "/"


def _is_in(below: str, path: str) -> bool:
    return below == path or (path != "/" and below.startswith(f"{path}/"))
