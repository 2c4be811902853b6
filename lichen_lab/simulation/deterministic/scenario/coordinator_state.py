"""Reads the coordinator's database from outside, for ``scenario.invariants``."""

from pathlib import Path
from typing import Any

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


def read_state(blobs: Path, manifest: str) -> Blobs:
    """The exact values of a global state, read beside the coordinator; its differences are applied, too."""

    def blob(digest: str) -> bytes:
        data = (blobs / digest[:2] / digest).read_bytes()
        if digest_of(data) != digest:
            raise Violation(f"blob {digest[:8]} of a new version is damaged")
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


def version_of(app: Coordinator, version: int) -> dict[str, Any] | None:
    """A version's row."""
    rows = app.storage.store.rows(sa.select(schema.versions).where(schema.versions.c.version == version))
    return rows[0] if rows else None


def row_of(app: Coordinator, device: str, digest: str) -> dict[str, Any] | None:
    """An accepted update's row."""
    table = schema.updates
    rows = app.storage.store.rows(sa.select(table).where(table.c.digest == digest, table.c.device == device))
    return rows[0] if rows else None


def updates_of(app: Coordinator, round_: int) -> list[dict[str, Any]]:
    """The rows of a round's accepted updates, by device."""
    table = schema.updates
    return app.storage.store.rows(sa.select(table).where(table.c.round == round_).order_by(table.c.device))
