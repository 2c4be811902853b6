"""Lists that are sorted, filtered and paged on the server, with an address that can be shared."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from console.ports import asks_for_region
from console.words import digest
from protocol.base import first_fault
from protocol.errors import Reason, Refused

PAGE_ROWS: Final = 100
_HELD: Final = 64
SHOWN: Final = "x-lichen-shown"
"""Header in which the live region says which content it has, see the macro ``live``."""
T = TypeVar("T")
Text = Annotated[str, Field(max_length=100)]


class ListQuery(BaseModel):
    """What the address of a list asks for; a list adds filters, and the columns of ``sort``."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_strip_whitespace=True)

    q: Text = ""
    """A text that a row contains."""
    sort: Text = ""
    order: Literal["asc", "desc"] = "asc"
    page: Annotated[int, Field(ge=1, le=1_000_000)] = 1

    def address(self, path: str, **changes: Any) -> str:
        """The address of the same list with other values; values as they are without a word are left out."""
        fields = type(self).model_fields
        values = {**self.model_dump(), **changes}
        asked = {
            name: 1 if value is True else value
            for name, value in values.items()
            if value != fields[name].default
        }
        return f"{path}?{urlencode(asked)}" if asked else path


Q = TypeVar("Q", bound=ListQuery)


def query_of(request: Request, model: type[Q]) -> Q:
    """What the address of a request asks for.

    Raises:
        Refused: MALFORMED: a value is not one of those that the list knows.
    """
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise Refused(
            Reason.MALFORMED, f"the address asks for what this list has not: {first_fault(error)}"
        ) from None


class Listing(Generic[T]):
    """One page of a list, for templates.

    Args:
        path: of the page.
        query: what was asked for; a page beyond the last one is the last one.
        rows: all that match, sorted.
        size: rows of a page.
    """

    def __init__(self, path: str, query: ListQuery, rows: Sequence[T], size: int = PAGE_ROWS) -> None:
        self.path = path
        self.query = query
        self.total = len(rows)
        self.pages = max(1, -(-self.total // size))
        self.number = min(query.page, self.pages)
        self.first = min(self.total, (self.number - 1) * size + 1)
        self.rows = rows[(self.number - 1) * size : self.number * size]
        self.last = self.first + max(0, len(self.rows) - 1)

    def address(self, **changes: Any) -> str:
        """The address with other values."""
        return self.query.address(self.path, **{"page": self.number, **changes})

    def sorted_by(self, column: str, first: str = "asc") -> str:
        """The address sorted by a column; again the other way round."""
        order = first
        if self.query.sort == column:
            order = "desc" if self.query.order == "asc" else "asc"
        return self.address(sort=column, order=order, page=1)


class LastUsed(Generic[T]):
    """What was made for a key, once for all viewers; the last used ones."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` gives, or gave for the same key."""
        if key not in self._made:
            self._made[key] = make()
            while len(self._made) > _HELD:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]


class SharedRegions:
    """Live regions that are the same for all viewers, rendered once for each content."""

    def __init__(self) -> None:
        self._bodies = LastUsed[bytes]()

    def answer(self, request: Request, shown: str, page: Callable[[], Response]) -> Response:
        """The answer to a request of a page, or of its live region alone.

        Args:
            request: of either.
            shown: digest of the content of the region, and of nothing that only one viewer sees.
            page: renders what the request asks for.
        """
        if not asks_for_region(request):
            return page()
        return HTMLResponse(self._bodies.get(shown, lambda: bytes(page().body)))


def replaced_address(request: Request, address: str) -> dict[str, str]:
    """Headers that give the browser the short address of what a form asked for."""
    return {"hx-replace-url": address} if request.headers.get("hx-trigger") == "filter" else {}


def content_of(request: Request, *values: object) -> str:
    """A digest of what a page shows to this viewer: others have other buttons."""
    return digest(request.state.viewer, *values)


def unchanged(request: Request, shown: str) -> Response | None:
    """The answer to a live region that has this content already; None: it has another one."""
    return Response(status_code=204) if request.headers.get(SHOWN) == shown else None
