"""Requests that another site's page made a browser send: refused before anything is done."""

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from console.ports import Viewer

HEADER: Final = "x-csrf-token"
FIELD: Final = "csrf"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})


def foreign(request: HTTPConnection) -> str:
    """Why a changing request is not from a page of ours; empty if it is, or if no browser sent it."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site.lower() not in _OWN_SITES:
        return "a page of another site sent this; nothing was done"
    origin = request.headers.get("origin")
    if origin is None:
        return ""
    try:
        found = urlsplit(origin)
    except ValueError:
        return "the page that sent this has no valid address; nothing was done"
    host = request.headers.get("host", "")
    is_ours = found.netloc.lower() == host.lower() and found.scheme in _schemes(request)
    return "" if is_ours else "a page of another site sent this; nothing was done"


def _schemes(request: HTTPConnection) -> frozenset[str]:
    """A proxy on this machine may speak TLS for us; nobody takes TLS away."""
    return frozenset({"https"}) if request.url.scheme == "https" else frozenset({"http", "https"})


def require_header(request: HTTPConnection, viewer: Viewer) -> None:
    """Check the token of a changing call of the API.

    Raises:
        HTTPException: 403: it is missing, or another session's.
    """
    _require(viewer, request.headers.get(HEADER, ""), f"the header {HEADER}: GET /api/v1/session gives it")


def require_field(form: Mapping[str, str], viewer: Viewer) -> None:
    """Check the token of a form.

    Raises:
        HTTPException: 403: it is missing, or another session's.
    """
    _require(viewer, form.get(FIELD, ""), "the form: load the page again")


def _require(viewer: Viewer, token: str, where: str) -> None:
    if not viewer.token or not hmac.compare_digest(viewer.token.encode(), token.encode()):
        raise HTTPException(403, f"the token of this session is missing in {where}; nothing was done")
