"""Uploads in a folder."""

from pathlib import Path

from coordinator.objects.chunks import ChunkStore
from coordinator.objects.folder import FolderObjects


def chunks(folder: Path) -> ChunkStore:
    """Chunks below a folder."""
    return ChunkStore(FolderObjects(folder))
