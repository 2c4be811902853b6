"""Reads the coordinator's tables and files from outside, for ``scenario.invariants``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from coordinator.daemon import Coordinator
from coordinator.storage import schema
from models.contract import Blobs
from protocol.errors import Refused
from protocol.frames.differences import unpacked
from protocol.frames.frame import decode_frame
from protocol.frames.frame import digest as digest_of
from protocol.frames.headers import BlobHeader, BlobIndex, Manifest


class Violation(AssertionError):  # noqa: N818 - reads as what happened
    """A promise is broken."""


class Outside(Protocol):
    """What an observer sees of a coordinator's storage, whatever process writes it."""

    def rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        """Committed rows."""

    def blob(self, digest: str) -> bytes | None:
        """A blob of a version or a bundle; None: it is not there."""

    def is_durable(self, round_: int, file: str) -> bool:
        """Whether a file of accepted updates would survive a power cut now."""


class OneCoordinator:
    """The state folder of a coordinator that is one process.

    Args:
        app: it.
        durable: whether a file of its disk would survive a power cut now.
    """

    def __init__(self, app: Coordinator, durable: Callable[[Path], bool]) -> None:
        self._store = app.storage.store
        self._root = app.settings.state_dir
        self._durable = durable

    def rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        """See :class:`Outside`."""
        return self._store.rows(query)

    def blob(self, digest: str) -> bytes | None:
        """See :class:`Outside`."""
        path = self._root / "blobs" / digest[:2] / digest
        return path.read_bytes() if path.is_file() else None

    def is_durable(self, round_: int, file: str) -> bool:
        """See :class:`Outside`."""
        return self._durable(self._root / "updates" / str(round_) / file)


def read_state(outside: Outside, manifest: str) -> Blobs:
    """The exact values of a global state, read beside the coordinator; its differences are applied, too."""

    def blob(digest: str) -> bytes:
        data = outside.blob(digest)
        if data is None or digest_of(data) != digest:
            raise Violation(f"blob {digest[:8]} of a new version is {'gone' if data is None else 'damaged'}")
        return data

    version = Manifest.model_validate_json(blob(manifest))
    for name, way in version.differences.items():
        try:
            unpacked(blob(way.blob.digest), blob(way.parent), name, version.blobs[name])
        except Refused as error:
            raise Violation(f"version {version.version}: no device gets {name!r}: {error}") from error
    refs = dict(version.blobs)
    if version.exact is not None:
        refs |= BlobIndex.model_validate_json(blob(version.exact.digest)).blobs
    return {name: decode_frame(blob(ref.digest), BlobHeader)[1] for name, ref in refs.items()}


def version_of(outside: Outside, version: int) -> dict[str, Any] | None:
    """A version's row."""
    rows = outside.rows(sa.select(schema.versions).where(schema.versions.c.version == version))
    return rows[0] if rows else None


def row_of(outside: Outside, device: str, digest: str) -> dict[str, Any] | None:
    """An accepted update's row."""
    table = schema.updates
    rows = outside.rows(sa.select(table).where(table.c.digest == digest, table.c.device == device))
    return rows[0] if rows else None


def updates_of(outside: Outside, round_: int) -> list[dict[str, Any]]:
    """The rows of a round's accepted updates, by device."""
    table = schema.updates
    return outside.rows(sa.select(table).where(table.c.round == round_).order_by(table.c.device))


def arrives(outside: Outside, round_: int, device: str) -> bool:
    """Whether the round machine will count an update that another process has accepted."""
    table = schema.arrivals
    here = (table.c.round == round_) & (table.c.device == device) & (table.c.reason == "")
    return bool(outside.rows(sa.select(table).where(here)))
