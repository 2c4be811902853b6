"""Templates of pages (jinja2): everything is escaped, and an unknown name is an error."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from runtime.web.assets import Assets


class Pages:
    """Templates ``pages/*.html`` of some packages.

    Args:
        packages: their names; the first that has a template gives it. ``runtime.web`` is the last.
        assets: for ``asset(name)`` in templates.
        filters: further filters.
        given: further names of every template.
    """

    def __init__(
        self,
        packages: Sequence[str],
        assets: Assets,
        filters: Mapping[str, Callable[..., Any]] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._environment = Environment(
            loader=ChoiceLoader([PackageLoader(name, "pages") for name in (*packages, __package__)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(filters or {})
        self._environment.globals.update({"asset": assets.url, **(given or {})})

    def html(self, template: str, **values: Any) -> str:
        """A template with values, as text."""
        return self._environment.get_template(template).render(**values)

    def answer(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """The same as an answer."""
        return HTMLResponse(self.html(template, **values), status)
