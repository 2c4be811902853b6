"""Files that pages load, all of packages; each has a path with its digest, which a browser keeps for good."""

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX: Final = "/static"
_TYPES: Final = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "png": "image/png"}
_YEAR_S: Final = 365 * 24 * 3600


@dataclass(frozen=True, slots=True)
class _Asset:
    content: bytes
    packed: bytes
    kind: str
    digest: str

    @classmethod
    def of(cls, name: str, content: bytes) -> Self:
        kind = _TYPES[name.rpartition(".")[2]]
        return cls(content, gzip.compress(content, mtime=0), kind, hashlib.sha256(content).hexdigest()[:16])


class Assets:
    """The files ``assets/*`` of some packages, read once.

    Args:
        packages: their names; a later one replaces a file of an earlier one with the same name.
    """

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self._files = {
            file.name: _Asset.of(file.name, file.read_bytes())
            for package in (__package__, *packages)
            for file in (files(package) / "assets").iterdir()
            if file.name.rpartition(".")[2] in _TYPES
        }
        self.route = Route(PREFIX + "/{digest}/{name}", self._serve, methods=["GET"])

    def url(self, name: str) -> str:
        """The path of a file.

        Raises:
            KeyError: there is no such file.
        """
        return f"{PREFIX}/{self._files[name].digest}/{name}"

    async def _serve(self, request: Request) -> Response:
        asset = self._files.get(request.path_params["name"])
        if asset is None or request.path_params["digest"] != asset.digest:
            return Response("there is no such file\n", 404, media_type="text/plain")
        headers = {"cache-control": f"public, max-age={_YEAR_S}, immutable", "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                asset.packed, headers=headers | {"content-encoding": "gzip"}, media_type=asset.kind
            )
        return Response(asset.content, headers=headers, media_type=asset.kind)
