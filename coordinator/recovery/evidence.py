"""What blobs and frames on disk prove without the database."""

from pathlib import Path

from coordinator.objects.blobs import BlobStorage
from coordinator.round_machine.batch import ReceivedUpdate
from coordinator.storage.frame_files import SUFFIX, scan
from coordinator.storage.update_journal import VOID_SUFFIX
from models.tensors import blobs_of
from protocol.errors import Refused
from protocol.frames.frame import digest, open_frame
from protocol.frames.headers import Manifest, UpdateHeader
from protocol.messages import MAX_MANIFEST_BYTES
from protocol.tasks.task import Task


def newest_manifest(blobs: BlobStorage, task: Task) -> tuple[str, Manifest] | None:
    """The newest version of a task whose blobs are all here and undamaged: digest and manifest."""
    found: list[tuple[int, str, Manifest]] = []
    for name in blobs.names():
        manifest = _manifest(blobs, name)
        if manifest is not None and (manifest.task, manifest.method) == (task.name, task.method):
            found.append((manifest.version, name, manifest))
    for _, name, manifest in sorted(found, key=lambda one: one[:2], reverse=True):
        if all(_is_sound(blobs, ref.digest) for ref in manifest.blobs.values()):
            return name, manifest
    return None


def _manifest(blobs: BlobStorage, name: str) -> Manifest | None:
    if blobs.size(name) > MAX_MANIFEST_BYTES:
        return None
    try:
        return Manifest.model_validate_json(blobs.get(name))
    except (ValueError, Refused, KeyError):  # another kind of blob, or a damaged one
        return None


def _is_sound(blobs: BlobStorage, name: str) -> bool:
    try:
        blobs.get(name)
    except (KeyError, Refused):
        return False
    return True


def frames_of(folder: Path, task: Task, round_: int) -> list[ReceivedUpdate]:
    """Undamaged updates of a round that were written to be counted, one a device, sorted by device.

    Updates whose loss was reported are left out; of two of a device, the later one counts.
    """
    if not folder.is_dir():
        return []
    files = sorted((f for f in folder.iterdir() if f.is_file()), key=lambda f: (f.stat().st_mtime_ns, f.name))
    lost = {file.name.removesuffix(VOID_SUFFIX) for file in files if file.name.endswith(VOID_SUFFIX)}
    found: dict[str, ReceivedUpdate] = {}
    for file in files:
        for one in _read(file):
            header = one.header
            if one.digest not in lost and (header.task, header.round) == (task.name, round_):
                found[header.device] = one
    return [found[device] for device in sorted(found)]


def _read(file: Path) -> list[ReceivedUpdate]:
    """The updates in one file."""
    content = file.read_bytes()
    if file.name.endswith(SUFFIX):
        frames = [(name, frame, file.name, at) for at, name, frame in scan(content)]
    elif digest(content) == file.name:
        frames = [(file.name, content, "", 0)]
    else:  # half written, damaged, or a mark
        return []
    made = []
    for name, frame, where, at in frames:
        try:
            header, tensors = open_frame(frame, UpdateHeader)
        except Refused:
            continue
        made.append(ReceivedUpdate(header, name, len(frame), where, at, blobs_of(tensors)))
    return made
