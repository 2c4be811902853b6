"""The pages of versions: metrics over versions, one version with its lineage, and its bundles to download."""

import re
from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from console.ports import ConsolePart, Endpoint, NavigationLink, base_of, render
from console.tables.bundle_files import BundleFiles
from console.tables.shared_readings import SharedReadings
from console.tables.watch import TableWatch
from console.views.paging import Listing, ListQuery, SharedRegions, query_of, unchanged
from console.words import digest, metric, size
from coordinator.status.versions import (
    BundleRow,
    Curves,
    VersionDetail,
    VersionRow,
    count_versions,
    list_versions,
    read_bundles,
    read_curves,
    read_version,
)
from coordinator.storage.database import Database
from protocol.bundle import BundleManifest, Variant

_PATH: Final = "/versions"
_ROWS: Final = 50
_MANIFESTS: Final = 16
_SHADES: Final = (0.005, 0.05, 0.2, 0.5, 0.8)
"""Shares of a row of the confusion matrix from which a cell is darker."""
_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")


class VersionsAnswer(BaseModel):
    """A page of the list, the newest version first, and the curves of all."""

    total: int
    page: int
    pages: int
    versions: tuple[VersionRow, ...]
    curves: Curves


class VariantAnswer(BaseModel):
    """A variant of a bundle's model. ``measured``: against the float32 model."""

    name: str
    precision: str
    file: str
    measured: dict[str, float]


class BundleAnswer(BaseModel):
    """A bundle. ``variants`` and ``parity``: as its manifest says; None: it cannot be read here now."""

    bundle: BundleRow
    path: str
    variants: tuple[VariantAnswer, ...] | None
    parity: dict[str, Any] | None


class VersionAnswer(BaseModel):
    """One version, and its bundles with what their manifests say."""

    version: VersionDetail
    bundles: tuple[BundleAnswer, ...]


class VersionPages:
    """Their pages and operations.

    Args:
        watch: reads the tables.
        readings: shared by all viewers.
        files: the bundles.
        fleet: its name, for names of downloads.
    """

    def __init__(self, watch: TableWatch, readings: SharedReadings, files: BundleFiles, fleet: str) -> None:
        self._watch = watch
        self._readings = readings
        self._files = files
        self._fleet = fleet
        self._regions = SharedRegions()

    def part(self) -> ConsolePart:
        """For the application."""
        return ConsolePart(
            routes=[
                Route(_PATH, self._list_page, methods=["GET"]),
                Route(_PATH + "/{version:int}", self._page, methods=["GET"]),
                Route("/versions/{version:int}/bundles/{digest}", self._download, methods=["GET"]),
            ],
            endpoints=[
                Endpoint(
                    "GET",
                    "/versions",
                    "Versions, the newest first, and their metrics",
                    VersionsAnswer,
                    self._list,
                    query=ListQuery,
                ),
                Endpoint(
                    "GET",
                    "/versions/{version:int}",
                    "One version, its lineage and its bundles",
                    VersionAnswer,
                    self._one,
                ),
            ],
            navigation=[NavigationLink(_PATH, "Versions")],
        )

    async def _list_page(self, request: Request) -> Response:
        query = query_of(request, ListQuery)
        read = partial(_listed, path=base_of(request) + _PATH, page=query.page)
        reading = await self._readings.get("versions", ("list", query.page), read)
        picture = self._watch.picture
        seen = picture.revisions.get("versions"), bool(picture.status.get("running"))
        shown = digest(seen, query, reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same

        def page() -> Response:
            values: dict[str, Any] = {"found": reading.value, "trouble": reading.trouble}
            if reading.value is not None:
                values["plots"] = plots(reading.value[2])
            return render(request, "versions.html", picture=picture, shown=shown, **values)

        return self._regions.answer(request, shown, page)

    async def _list(self, request: Request) -> VersionsAnswer:
        query = query_of(request, ListQuery)
        read = partial(_listed, path=base_of(request) + _PATH, page=query.page)
        reading = await self._readings.get("versions", ("list", query.page), read)
        listing, rows, curves = reading.require()
        return VersionsAnswer(
            total=listing.total, page=listing.number, pages=listing.pages, versions=tuple(rows), curves=curves
        )

    async def _page(self, request: Request) -> Response:
        number = request.path_params["version"]
        reading = await self._readings.get("versions", number, partial(read_version, number=number))
        picture = self._watch.picture
        seen = picture.revisions.get("versions"), bool(picture.status.get("running"))
        shown = digest(seen, number, reading.trouble)
        if (same := unchanged(request, shown)) is not None:
            return same
        one = reading.value
        if one is None and not reading.trouble:
            raise HTTPException(404, f"version {number} is not in the history")
        manifests = {} if one is None else await self._manifests(one)
        values = {"one": one, "number": number, "manifests": manifests, "trouble": reading.trouble}
        return render(
            request,
            "version.html",
            picture=picture,
            shown=shown,
            shade=_shade,
            parity=_parity,
            measured=_measured,
            **values,
        )

    async def _one(self, request: Request) -> VersionAnswer:
        number = request.path_params["version"]
        reading = await self._readings.get("versions", number, partial(read_version, number=number))
        one = reading.require()
        if one is None:
            raise HTTPException(404, f"version {number} is not in the history")
        manifests = await self._manifests(one)
        return VersionAnswer(
            version=one,
            bundles=tuple(
                _answer(f"{base_of(request)}{_PATH}/{number}/bundles", row, manifests.get(row.digest))
                for row in one.bundles
            ),
        )

    async def _manifests(self, one: VersionDetail) -> dict[str, BundleManifest]:
        found = {row.digest: await self._files.manifest(row.digest) for row in one.bundles[:_MANIFESTS]}
        return {name: manifest for name, manifest in found.items() if manifest is not None}

    async def _download(self, request: Request) -> Response:
        number, wanted = request.path_params["version"], request.path_params["digest"]
        reading = await self._readings.get(
            "versions", ("bundles", number), partial(read_bundles, number=number)
        )
        rows = [row for row in reading.require() or () if row.digest == wanted]
        if not rows:
            raise HTTPException(404, f"version {number} has no such bundle")
        parts = await self._files.open(wanted, rows[0].size)
        name = f"{_PLAIN.sub('-', self._fleet)}-version-{number}-{wanted[:12]}.bundle"
        headers = {
            "content-disposition": f'attachment; filename="{name}"',
            "content-length": str(rows[0].size),
            "etag": f'"{wanted}"',
        }
        return StreamingResponse(parts, headers=headers, media_type="application/zip")


def _listed(store: Database, path: str, page: int) -> tuple[Listing[int], list[VersionRow], Curves]:
    listing = Listing(path, ListQuery(page=page), range(count_versions(store)), _ROWS)
    rows = list_versions(store, max(0, listing.first - 1), len(listing.rows))
    return listing, rows, read_curves(store)


def _answer(folder: str, row: BundleRow, manifest: BundleManifest | None) -> BundleAnswer:
    path = f"{folder}/{row.digest}"
    if manifest is None:
        return BundleAnswer(bundle=row, path=path, variants=None, parity=None)
    variants = tuple(
        VariantAnswer(name=name, precision=one.precision, file=one.file, measured=one.measured)
        for name, one in (manifest.variants or {}).items()
    )
    return BundleAnswer(bundle=row, path=path, variants=variants, parity=dict(manifest.parity))


def _shade(share: float) -> int:
    """How dark a cell is, 0 to 5."""
    return sum(share >= least for least in _SHADES)


def _parity(manifest: BundleManifest) -> str:
    """The parity gate's numbers; lists of what was tried are left out."""
    given = {key: value for key, value in manifest.parity.items() if isinstance(value, int | float)}
    return (
        ", ".join(f"{key.replace('_', ' ')} {_short(value)}" for key, value in given.items()) or "not stated"
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def _measured(variant: Variant) -> str:
    """A variant against the float32 model."""
    one, words = dict(variant.measured), []
    if "bytes" in one:
        words.append(size(one.pop("bytes")))
    if "agreement" in one:
        worst = one.pop("agreement_missing", None)
        missing = "" if worst is None else f" (at least {worst:.1%} with a modality missing)"
        words.append(f"same answer on {one.pop('agreement'):.1%} of windows{missing}")
    if "accuracy" in one and "accuracy_float32" in one:
        words.append(f"accuracy {one.pop('accuracy'):.3f} (float32 {one.pop('accuracy_float32'):.3f})")
    words += [f"{key.replace('_', ' ')} {_short(value)}" for key, value in one.items()]
    return ", ".join(words) or "not measured"


def plots(curves: Curves) -> list[dict[str, Any]]:
    """``title``, ``words`` and ``plot`` of the scores, the losses and the bytes."""
    if len(curves.versions) < 2:  # noqa: PLR2004 - one version is no curve
        return []
    found = []

    def add(title: str, series: list[dict[str, Any]], **more: Any) -> None:
        drawn = [one for one in series if any(value is not None for value in one["values"])]
        if drawn:
            last = [(one["name"], next(v for v in reversed(one["values"]) if v is not None)) for one in drawn]
            words = f"{title} over versions; last: {', '.join(f'{name} {value:.4g}' for name, value in last)}"
            plot = {"x": curves.versions, "series": drawn, "label": "version", **more}
            found.append({"title": title, "words": words, "plot": plot})

    add("Scores", _series(curves.scores), min=0, max=1)
    add("Loss", _series(curves.losses))
    traffic = [("received", curves.bytes_up), ("sent", curves.bytes_down)]
    add(
        "Bytes of a version, kB",
        [
            {"name": name, "values": [None if v is None else round(v / 1000, 1) for v in values]}
            for name, values in traffic
        ],
    )
    return found


def _series(curves: dict[str, tuple[float | None, ...]]) -> list[dict[str, Any]]:
    return [
        {
            "name": metric(name),
            "values": [None if value is None else float(f"{value:.4g}") for value in values],
        }
        for name, values in curves.items()
    ]
