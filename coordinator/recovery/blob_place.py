"""The place of a coordinator's blobs: a start in another place is refused, and a command moves them."""

import contextlib
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.storage import StorageSettings
from coordinator.objects.s3_url import parse
from coordinator.recovery.open_stores import Stores, open_stores
from coordinator.storage.database import Database
from protocol.errors import Misconfigured, Refused

log = structlog.get_logger(__name__)

META: Final = "blobs_at"
FOLDER: Final = "folder"
"""The place of blobs in ``state_dir``; also the word of the command."""


@dataclass(frozen=True)
class MovedBlobs:
    """What was copied. ``damaged``: digests of blobs that were left out."""

    place: str
    blobs: int
    frames: int
    bytes: int
    damaged: tuple[str, ...]


def place_of(settings: StorageSettings) -> str:
    """The bucket and prefix, or :data:`FOLDER`.

    Raises:
        Misconfigured: the URL is wrong.
    """
    if not settings.blobs:
        return FOLDER
    location = parse(settings.blobs)
    return f"s3://{location.bucket}/{location.prefix}"


def check_place(store: Database, settings: CoordinatorSettings) -> None:
    """Compare the place with that of the last start; the first start decides it.

    Raises:
        Misconfigured: the blobs are elsewhere: versions and accepted updates would be missing.
    """
    here = place_of(settings.storage)
    known = store.get_meta(META)
    if known is None:
        blobs = settings.state_dir / "blobs"
        known = FOLDER if blobs.is_dir() and any(blobs.glob("??/*")) else here
        store.put_meta({META: known})
    if known != here:
        there = 'no "blobs"' if known == FOLDER else f'blobs = "{known}?..."'
        raise Misconfigured(
            f"storage.blobs: the blobs of this coordinator are in {known}, not in {here}: set {there}, or "
            "move them before you change it: lichen coordinator move-blobs"
        )


def move_blobs(settings: CoordinatorSettings, to: str) -> MovedBlobs:
    """Copy all blobs and accepted updates to another place, and note it; the old ones stay.

    The coordinator must not run. An interrupted copy can be started again.

    Args:
        settings: with the present place.
        to: the URL of a bucket, or :data:`FOLDER`.

    Raises:
        Misconfigured: a coordinator runs, a place cannot be used, or it is the same.
        Transient: a place does not answer; what is copied stays.
    """
    storage = settings.storage.model_copy(update={"blobs": "" if to == FOLDER else to})
    place = place_of(storage)
    if place == place_of(settings.storage):
        raise Misconfigured(f"the blobs are in {place} by storage.blobs already; nothing was moved")
    with contextlib.closing(settings.location.database()) as store:
        check_place(store, settings)
        root = settings.state_dir
        made = _copied(open_stores(settings.storage, root), open_stores(storage, root), place)
        store.put_meta({META: place})
    return made


def _copied(old: Stores, new: Stores, place: str) -> MovedBlobs:
    blobs = frames = size = 0
    damaged = []
    for digest in old.blobs.names():
        try:
            data = old.blobs.get(digest)
        except Refused as error:
            log.warning("blob_not_moved", digest=digest, why=str(error))
            damaged.append(digest)
            continue
        new.blobs.put(data)
        blobs, size = blobs + 1, size + len(data)
    for round_ in old.frames.rounds():
        old.frames.fetch_round(round_)
        for file in sorted((old.frames.root / str(round_)).iterdir()):
            if not file.name.startswith("."):
                data = file.read_bytes()
                new.frames.write(round_, file.name, data)
                frames, size = frames + 1, size + len(data)
    return MovedBlobs(place, blobs, frames, size, tuple(damaged))
