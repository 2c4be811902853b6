"""Versions for pages: a part of the list, curves of metrics, and one version, from bounded queries."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import sqlalchemy as sa
from pydantic import Field

from coordinator.aggregation.secure.reports import newest_words
from coordinator.fleet.serving_routes import served
from coordinator.privacy.account_store import accounts
from coordinator.status.round_records import Shown
from coordinator.storage import schema
from coordinator.storage.database import Database
from protocol.tasks.task import Task

MAX_POINTS: Final = 400
"""Versions of a curve; of more, every so many."""
_FIRST: Final = ("accuracy", "macro_f1")
_UNDRAWN: Final = frozenset({"windows", "triples"})
_MOST_SCORES: Final = 6


class VersionRow(Shown):
    """One version.

    ``bytes_up`` and ``bytes_down``: since the version before. ``trouble``: of its evaluation or export.
    ``bundles``: how many are stored of it.
    """

    version: int
    wall: float
    devices: int
    metrics: dict[str, float]
    bytes_up: int | None
    bytes_down: int | None
    bundles: int
    trouble: str


class Curves(Shown):
    """Metrics over versions; None where a version has none. ``scores`` are shares, the best known first."""

    versions: tuple[int, ...]
    scores: dict[str, tuple[float | None, ...]]
    losses: dict[str, tuple[float | None, ...]]
    bytes_up: tuple[int | None, ...]
    bytes_down: tuple[int | None, ...]


class BundleRow(Shown):
    """A bundle; ``route``: what its devices read and predict, empty if there is one for all."""

    digest: str
    size: int
    wall: float | None
    route: str
    devices: int | None
    metrics: dict[str, float]


class Confusion(Shown):
    """Counts of windows; row: true class, column: predicted. ``recall``: of each class; None: no window."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[float, ...], ...]
    recall: tuple[float | None, ...]
    windows: int


class VersionDetail(Shown):
    """One version and its lineage.

    Attributes:
        manifest: digest of its manifest; ``parent``: of the version before.
        parent_version: its number; None: there is none, or it is not in the history.
        by: metrics of parts of the windows, by the part's kind and name.
        privacy: the account up to it in words; empty: the task has no table ``[privacy]``.
        secure: how the sum of its secure round was opened, in words; empty: its updates were plain.
        made_of: devices whose updates are in it, the first ones; ``row.devices`` counts all.
        first: the oldest version of the history; ``last``: the newest.
    """

    row: VersionRow
    manifest: str
    parent: str | None
    parent_version: int | None
    task: str
    method: str
    confusion: Confusion | None
    by: dict[str, dict[str, dict[str, float]]]
    privacy: str = ""
    secure: str = ""
    made_of: tuple[str, ...]
    bundles: tuple[BundleRow, ...]
    before: dict[str, float] = Field(default_factory=dict)
    """Metrics of the parent."""
    first: int
    last: int


_NAMED: Final = 256


def count_versions(store: Database) -> int:
    """How many versions the registry has."""
    return int(store.rows(sa.select(sa.func.count().label("count")).select_from(schema.versions))[0]["count"])


def known_versions(store: Database, numbers: Iterable[int]) -> frozenset[int]:
    """Which of these versions the registry has."""
    table = schema.versions.c.version
    return frozenset(row["version"] for row in store.rows(sa.select(table).where(table.in_(list(numbers)))))


def list_versions(store: Database, skip: int, count: int) -> list[VersionRow]:
    """Versions, the newest first, without the ``skip`` newest."""
    table = schema.versions
    query = sa.select(table.c.version).order_by(table.c.version.desc()).offset(skip).limit(count)
    return _rows(store, [row["version"] for row in store.rows(query)])


def _rows(store: Database, numbers: Sequence[int]) -> list[VersionRow]:
    table = schema.versions
    wanted = {*numbers, *(number - 1 for number in numbers)}
    length = sa.func.json_array_length(table.c.devices).label("devices")
    told = (table.c.wall, table.c.metrics, table.c.trouble, table.c.bytes_up, table.c.bytes_down, length)
    found = {
        row["version"]: row
        for row in store.rows(sa.select(table.c.version, *told).where(table.c.version.in_(wanted)))
    }
    bundles: dict[int, int] = {}
    for one in (schema.exports, schema.bundles):
        count = sa.select(one.c.version, sa.func.count().label("count")).where(one.c.version.in_(numbers))
        for row in store.rows(count.group_by(one.c.version)):
            bundles[row["version"]] = bundles.get(row["version"], 0) + row["count"]
    return [_row(found[number], found.get(number - 1), bundles.get(number, 0)) for number in numbers]


def _row(row: Mapping[str, Any], before: Mapping[str, Any] | None, bundles: int) -> VersionRow:
    traffic = {key: None if before is None else row[key] - before[key] for key in ("bytes_up", "bytes_down")}
    return VersionRow(**{**row, **traffic, "bundles": bundles})


def read_curves(store: Database) -> Curves:
    """Metrics of all versions, thinned beyond :data:`MAX_POINTS`; the newest is always there."""
    table = schema.versions
    total = count_versions(store)
    step = max(1, -(-total // MAX_POINTS))
    newest = sa.select(sa.func.max(table.c.version)).scalar_subquery()
    told = sa.select(table.c.version, table.c.metrics, table.c.bytes_up, table.c.bytes_down)
    thinned = (table.c.version % step == 0) | (table.c.version == newest)
    rows = store.rows(told.where(thinned).order_by(table.c.version))
    scores, losses = _kinds(row["metrics"] for row in rows)

    def curve(name: str) -> tuple[float | None, ...]:
        return tuple(row["metrics"].get(name) for row in rows)

    def traffic(key: str) -> tuple[int | None, ...]:
        return (None, *(now[key] - old[key] for old, now in pairwise(rows)))[: len(rows)]

    return Curves(
        versions=tuple(row["version"] for row in rows),
        scores={name: curve(name) for name in scores},
        losses={name: curve(name) for name in losses},
        bytes_up=traffic("bytes_up"),
        bytes_down=traffic("bytes_down"),
    )


def _kinds(metrics: Iterable[Mapping[str, float]]) -> tuple[list[str], list[str]]:
    """Names of scores (from 0 to 1), the known ones first, and names of losses."""
    spans: dict[str, tuple[float, float]] = {}
    for one in metrics:
        for name, value in one.items():
            low, high = spans.get(name, (value, value))
            spans[name] = min(low, value), max(high, value)
    losses = [name for name in spans if name.rpartition("/")[2] == "loss"]
    scores = [
        name
        for name, (low, high) in spans.items()
        if name not in losses and name not in _UNDRAWN and low >= 0 and high <= 1
    ]
    scores.sort(key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
    return scores[:_MOST_SCORES], sorted(losses)[:_MOST_SCORES]


def read_version(store: Database, number: int) -> VersionDetail | None:
    """One version; None: the registry does not have it."""
    table, parts = schema.versions, schema.parts
    found = store.rows(sa.select(table).where(table.c.version == number))
    if not found:
        return None
    whole = found[0]
    known = store.get_meta("task")
    task = None if known is None else Task.model_validate_json(known)
    older = sa.select(table.c.version, table.c.metrics).where(table.c.manifest == (whole["parent"] or ""))
    parent = store.rows(older.where(table.c.version < number).order_by(table.c.version.desc()).limit(1))
    by = store.rows(sa.select(parts.c.by).where(parts.c.version == number))
    edges = sa.select(sa.func.min(table.c.version).label("first"), sa.func.max(table.c.version).label("last"))
    labels = () if task is None else task.labels
    return VersionDetail(
        row=_rows(store, [number])[0],
        manifest=whole["manifest"],
        parent=whole["parent"],
        parent_version=parent[0]["version"] if parent else None,
        before=parent[0]["metrics"] if parent else {},
        task="" if task is None else task.name,
        method="" if task is None else task.method,
        confusion=_confusion(labels, whole["confusion"]),
        by=by[0]["by"] if by else {},
        privacy=accounts(store, [number]).get(number, {}).get("words", ""),
        secure=newest_words(store, number),
        made_of=tuple(whole["devices"][:_NAMED]),
        bundles=read_bundles(store, number),
        **store.rows(edges)[0],
    )


def read_bundles(store: Database, number: int) -> tuple[BundleRow, ...]:
    """The bundles of a version: one for all devices, or of each route."""
    table = schema.exports
    whole = [
        BundleRow(route="", devices=None, **{key: row[key] for key in ("digest", "size", "wall", "metrics")})
        for row in store.rows(sa.select(table).where(table.c.version == number))
    ]
    routed = [
        BundleRow(
            digest=one.bundle.digest,
            size=one.bundle.size,
            wall=None,
            route=one.need.words,
            devices=one.devices,
            metrics=one.metrics,
        )
        for one in served(store)
        if one.version == number
    ]
    return (*whole, *routed)


def _confusion(labels: Sequence[str], counts: Sequence[Sequence[int]] | None) -> Confusion | None:
    if counts is None or len(labels) != len(counts) or any(len(row) != len(labels) for row in counts):
        return None
    sums = [sum(row) for row in counts]
    return Confusion(
        labels=tuple(labels),
        counts=tuple(tuple(row) for row in counts),
        shares=tuple(
            tuple(count / total if total else 0.0 for count in row)
            for row, total in zip(counts, sums, strict=True)
        ),
        recall=tuple(
            row[n] / total if total else None for n, (row, total) in enumerate(zip(counts, sums, strict=True))
        ),
        windows=sum(sums),
    )
