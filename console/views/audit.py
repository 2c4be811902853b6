"""The audit log: who did what, the newest first, and whether its chain is sound."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, render
from console.tables.audit import MOST_CHECKED, AuditCheck
from console.tables.reader import SharedReader
from console.tables.watch import TableWatch
from console.views.paging import Listing, ListQuery, Text, content_of, query_of, replaced_address, unchanged
from coordinator.audit.chain import AuditEntry
from coordinator.audit.log import MAX_LISTED

PATH: Final = "/audit"
_AGAIN_S: Final = 60.0
"""A check that is asked for is not repeated within this time, whoever asks."""
_CHOICES: Final = 30


class AuditQuery(ListQuery):
    """Filters of the log. The newest row is first."""

    person: Text = ""
    """A part of who acted."""
    action: Text = ""
    """Its name, or the first word of it: ``device`` or ``device.revoke``."""
    device: Text = ""
    """A part of what was acted on."""
    task: Text = ""
    """The further task that it was about."""


class AuditEntryAnswer(BaseModel):
    """See :class:`coordinator.audit.chain.AuditEntry`."""

    seq: int
    wall: float
    who: str
    role: str
    how: str
    action: str
    target: str
    outcome: str
    of: int | None
    task: str | None

    @classmethod
    def of_entry(cls, one: AuditEntry) -> "AuditEntryAnswer":
        """A row of the log."""
        return cls.model_validate(one.model_dump(exclude={"before"}))


class AuditAnswer(BaseModel):
    """One page of the rows that match; ``known``: rows that are searched, the newest ones."""

    read_wall: float
    trouble_of_tables: str
    known: int
    total: int
    page: int
    pages: int
    rows: tuple[AuditEntryAnswer, ...]


class AuditCheckAnswer(BaseModel):
    """The newest check of the chain; ``sound``: None: it could not be checked yet.

    ``row``: the first one that was changed or removed, and ``why``. ``whole``: False: only the first rows
    were checked. ``head``: number and digest of the last sound row.
    """

    checked_wall: float
    trouble_of_tables: str
    sound: bool | None
    row: int | None
    why: str
    whole: bool
    head: str | None


class AuditView:
    """Its page and its operations.

    Args:
        watch: whether the coordinator runs.
        rows: the newest ones, the newest first.
        checks: the check of the chain.
    """

    def __init__(
        self,
        watch: TableWatch,
        rows: SharedReader[Sequence[AuditEntry]],
        checks: SharedReader[AuditCheck],
    ) -> None:
        self._watch = watch
        self._rows = rows
        self._checks = checks

    def part(self) -> ConsolePart:
        """For the application."""
        checked = "Whether the audit log is sound; asks for a check that is less than a minute old"
        return ConsolePart(
            routes=[
                Route(PATH, self._page, methods=["GET"]),
                Route(PATH + "/check", self._check, methods=["GET"]),
            ],
            endpoints=[
                Endpoint("GET", PATH, "Rows of the audit log", AuditAnswer, self._answer, query=AuditQuery),
                Endpoint("GET", PATH + "/check", checked, AuditCheckAnswer, self._checked),
            ],
            navigation=[NavigationLink(PATH, "Audit", of_fleet=True)],
        )

    async def _page(self, request: Request) -> Response:
        query = query_of(request, AuditQuery)
        reading, check = await self._rows.newest(), self._checks.reading
        found = Listing(PATH, query, _matching(reading.value, query))
        known = reading.value or ()
        shown = content_of(
            request, query, found.total, found.rows, reading.trouble, check.wall, check.revision
        )
        if (same := unchanged(request, shown)) is not None:
            return same
        actions = [name for name, _ in Counter(one.action for one in known).most_common(_CHOICES)]
        page = render(
            request,
            "audit.html",
            picture=self._watch.picture,
            reading=reading,
            check=check,
            list=found,
            actions=sorted(actions),
            limits=(MAX_LISTED, MOST_CHECKED),
            shown=shown,
        )
        page.headers.update(replaced_address(request, found.address()))
        return page

    async def _check(self, request: Request) -> Response:  # noqa: ARG002 - a route is called with its request
        await self._checks.again(_AGAIN_S)
        return RedirectResponse(PATH, 303)

    async def _answer(self, request: Request) -> AuditAnswer:
        query = query_of(request, AuditQuery)
        reading = await self._rows.newest()
        found = Listing(PATH, query, _matching(reading.value, query))
        return AuditAnswer(
            read_wall=reading.wall,
            trouble_of_tables=reading.trouble,
            known=len(reading.value or ()),
            total=found.total,
            page=found.number,
            pages=found.pages,
            rows=tuple(AuditEntryAnswer.of_entry(one) for one in found.rows),
        )

    async def _checked(self, request: Request) -> AuditCheckAnswer:  # noqa: ARG002 - as above
        await self._checks.again(_AGAIN_S)
        check = self._checks.reading
        found = None if check.value is None else check.value.found
        return AuditCheckAnswer(
            checked_wall=check.wall,
            trouble_of_tables=check.trouble,
            sound=None if found is None else found.row is None,
            row=None if found is None else found.row,
            why="" if found is None else found.why,
            whole=check.value is not None and check.value.whole,
            head=None if found is None or found.head is None else str(found.head),
        )


def _matching(rows: Sequence[AuditEntry] | None, query: AuditQuery) -> Sequence[AuditEntry]:
    person, device, words = query.person.lower(), query.device.lower(), query.q.lower()
    return [
        one
        for one in rows or ()
        if (not person or person in one.who.lower())
        and (not query.action or one.action == query.action or one.action.startswith(query.action + "."))
        and (not device or device in one.target.lower())
        and (not query.task or query.task == one.task)
        and (
            not words
            or words in f"{one.who}\n{one.action}\n{one.target}\n{one.task or ''}\n{one.outcome}".lower()
        )
    ]
