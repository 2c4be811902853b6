"""Opens the stores that the settings name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.storage import StorageSettings
from coordinator.objects.blobs import BlobStorage, DownloadLinks, SharedBlobs, key_of
from coordinator.objects.cache import BlobCache, folder_of_process
from coordinator.objects.chunks import ChunkStore
from coordinator.objects.contract import ObjectStore
from coordinator.objects.folder import FolderObjects
from coordinator.objects.frames import FolderFrames, FrameStore, SharedFrames
from coordinator.objects.s3_url import credentials_of, parse
from runtime.storage.blob_store import BlobStore
from runtime.storage.folder_lock import FolderLock


@dataclass(frozen=True)
class Stores:
    """Where blobs, accepted updates and uploads are.

    Attributes:
        chunks: uploads in progress.
        blobs: versions and bundles.
        frames: accepted updates.
        bucket: the shared store; None: all are folders of this machine.
        links: URLs of blobs for devices; None: there are none.
    """

    chunks: ChunkStore
    blobs: BlobStorage
    frames: FrameStore
    bucket: ObjectStore | None
    links: DownloadLinks | None = None
    lock: FolderLock | None = None
    """Of this process's cache."""


def open_bucket(settings: StorageSettings) -> ObjectStore | None:
    """The bucket of these settings, not tried yet; None: they name none.

    Raises:
        Misconfigured: the URL, the credentials' file or the client; the message names the setting.
    """
    if not settings.blobs:
        return None
    location = parse(settings.blobs)
    # Only with a bucket: the client is an extra.
    from coordinator.objects.s3 import S3Objects  # noqa: PLC0415

    key = credentials_of(settings.credentials)
    return S3Objects(location, key, settings.timeout_s, settings.ca_file)


def open_stores(settings: StorageSettings, root: Path, *, alone: bool = True, folds: bool = True) -> Stores:
    """Open the stores; a bucket is tried.

    Args:
        settings: ``[storage]``.
        root: the state folder.
        alone: no other process takes chunks of uploads: they stay on this machine.
        folds: this process folds, so it copies accepted updates to this machine.

    Raises:
        Misconfigured: as :func:`open_bucket`, or there is no such bucket, or it may not be written.
        Transient: it does not answer now, or the disk is full.
    """
    bucket = open_bucket(settings)
    if bucket is None:
        folder = FolderFrames(root / "updates")
        return Stores(ChunkStore(FolderObjects(root)), BlobStore(root / "blobs"), folder, None)
    bucket.check()
    own, lock = folder_of_process(root / "cache")
    cache = BlobCache(own / "blobs", settings.cache_bytes)
    blobs = SharedBlobs(bucket, cache, settings.blob_grace_s)
    frames = SharedFrames(bucket, own / "updates", copies=folds)
    chunks = ChunkStore(FolderObjects(root) if alone else bucket)
    links = None
    if settings.download_above_bytes:
        links = DownloadLinks(blobs, settings.download_above_bytes, settings.download_s)
    return Stores(chunks, blobs, frames, bucket, links, lock)


def has_blob(settings: CoordinatorSettings) -> Callable[[str], bool]:
    """For commands beside a running coordinator: whether its store has a blob.

    Raises:
        Misconfigured: as :func:`open_bucket`.
    """
    bucket = open_bucket(settings.storage)
    if bucket is not None:
        return lambda digest: bucket.head(key_of(digest)) is not None
    # Not through a BlobStore: only the daemon writes there, and opening one tidies up.
    folder = settings.state_dir / "blobs"
    return lambda digest: (folder / digest[:2] / digest).is_file()
