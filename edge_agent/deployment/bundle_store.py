"""``state_dir/models``: a folder for each bundle, named by its digest, and ``current.json``.

A folder appears whole or not at all; only then does ``current.json`` name it.
"""

import asyncio
import contextlib
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from edge_agent.deployment.record import DeploymentRecord, InstalledBundle
from edge_agent.inference.onnx_models.compatibility import require_compatible
from edge_agent.inference.onnx_models.window_model import MANIFEST_FILE, read_manifest
from edge_agent.tasks.workspace import TrainingData
from protocol.bundle import BundleManifest, unpack
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.messages import ModelPointer
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.files import disk_errors, make_folder, remove_tree, rename, sweep, write_atomic

_log = structlog.get_logger(__name__)
CURRENT: Final = "current.json"
_DAMAGE: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EIO})


class BundleStore:
    """The bundles of one device.

    Args:
        folder: ``state_dir/models``.
        fetcher: fetches missing bundles.
        timeout_s: of a fetch.
    """

    def __init__(self, folder: Path, fetcher: Fetcher, timeout_s: float) -> None:
        self.folder = folder
        self._fetcher = fetcher
        self._timeout_s = timeout_s
        self._pulling: str | None = None

    async def fetch(self, pointer: ModelPointer, work: TrainingData) -> BundleManifest:
        """Fetch the announced bundle unless it is here, and check that it is whole and fits.

        Raises:
            Refused: it is not whole, or does not fit.
            Transient: it is not here yet, or the disk is full.
        """
        folder = self.folder / pointer.bundle.digest
        if not await asyncio.to_thread(_is_whole, folder):
            await self._pull(pointer, folder, work)
        manifest = await asyncio.to_thread(read_manifest, folder)
        _require_announced(manifest, pointer)
        require_compatible(manifest, work.task, work.modalities)
        return manifest

    async def _pull(self, pointer: ModelPointer, folder: Path, work: TrainingData) -> None:
        """Fetch and unpack. Removes the fetched file, and the partial fetch of another bundle."""
        digest = pointer.bundle.digest
        if self._pulling not in {None, digest}:
            await asyncio.to_thread(self._fetcher.forget, self._pulling)
        self._pulling = digest
        path = await self._fetcher.fetch(pointer.bundle, self._timeout_s)
        try:
            await asyncio.to_thread(_unpack, path, folder, pointer, work)
        finally:
            await asyncio.to_thread(self._fetcher.forget, digest)

    def write(self, record: DeploymentRecord) -> None:
        """Write the record durably and whole. Raises Transient."""
        with disk_errors_as_transient(self.folder):
            make_folder(self.folder)
            write_atomic(self.folder / CURRENT, record.model_dump_json(exclude_none=True).encode())

    def tidy(self, record: DeploymentRecord) -> None:
        """Remove the folders of bundles that the record does not name."""
        keep = {CURRENT, *record.digests}
        try:
            sweep(self.folder)
            for entry in self.folder.iterdir():
                if entry.name not in keep and entry.is_dir():
                    remove_tree(entry)
        except OSError as error:  # they only take room
            _log.warning("old_models_not_removed", folder=str(self.folder), error=str(error))

    def remove(self, digest: str) -> None:
        """Remove a damaged bundle, so that it is fetched again."""
        remove_tree(self.folder / digest)


def _unpack(bundle: Path, folder: Path, pointer: ModelPointer, work: TrainingData) -> None:
    """Check a bundle and write its folder, whole or not at all (in a thread)."""
    manifest, files = unpack(bundle.read_bytes())
    require_compatible(manifest, work.task, work.modalities)
    _require_announced(manifest, pointer)
    part = folder.with_name(f"{folder.name}.part")
    remove_tree(part)
    try:
        make_folder(part)
        for name, content in files.items():
            write_atomic(part / name, content)
        write_atomic(part / MANIFEST_FILE, manifest.model_dump_json().encode())
        remove_tree(folder)
        rename(part, folder)
    except (LichenError, OSError):  # a full disk: other files may need the room meanwhile
        with contextlib.suppress(OSError):
            remove_tree(part)
        raise


def _require_announced(manifest: BundleManifest, pointer: ModelPointer) -> None:
    """Raises Refused: versions are compared by what the pointer announced."""
    if manifest.version != pointer.version:
        raise Refused(
            Reason.WRONG_BASE, f"the bundle is version {manifest.version}, announced as {pointer.version}"
        )


def _is_whole(folder: Path) -> bool:
    """Whether the bundle is unpacked here already, and undamaged."""
    try:
        read_manifest(folder)
    except Refused:
        return False
    return True


@contextlib.contextmanager
def disk_errors_as_transient(folder: Path) -> Iterator[None]:
    """Raise disk errors as Transient: the old model stays, and the new one is tried again."""
    try:
        with disk_errors(folder):
            try:
                yield
            except (
                NotADirectoryError,
                FileExistsError,
            ) as error:  # what blocks the path may be removed
                raise Transient(f"{folder}: {error}") from None
    except OSError as error:
        raise Transient(f"{folder}: {error}") from None


def read_current(folder: Path) -> InstalledBundle | None:
    """The installed bundle: the committed one, else the one on trial; None if there is neither."""
    record = read_record(folder)
    return record.committed or record.trial


def read_record(folder: Path) -> DeploymentRecord:
    """Read ``current.json``; an empty record if it is missing or nothing in it is valid.

    Raises:
        Transient: it exists and cannot be read now.
    """
    path, found = folder / CURRENT, None
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict) and "format" not in found:
            return _without_trials(folder, found)
        return DeploymentRecord.model_validate(found)
    except FileNotFoundError:
        return DeploymentRecord()
    except OSError as error:
        if error.errno not in _DAMAGE:  # an empty record would overwrite it
            raise Transient(f"{path}: {error}") from None
        why = str(error)
    except ValueError as error:  # ValidationError, too
        why = str(error)
    record = _what_runs(found)
    lost = "the installed model" if record.committed is None else "the trials"
    _log.error("deployment_record_damaged", lost=lost, file=str(path), error=why)
    return record


def _what_runs(found: Any) -> DeploymentRecord:
    """The active model from a file that another release wrote, or that was changed by hand."""
    known = ("serial", "committed", "before")
    try:
        return DeploymentRecord.model_validate({name: found[name] for name in known if name in found})
    except (TypeError, KeyError, ValidationError):
        return DeploymentRecord()


def _without_trials(folder: Path, found: dict[str, Any]) -> DeploymentRecord:
    """Read a file of a release without trials: its model counts as committed."""
    before = found.pop("previous", None)
    return DeploymentRecord(
        committed=InstalledBundle.model_validate(found),
        before=None if before is None else _from_folder(folder / str(before)),
    )


def _from_folder(folder: Path) -> InstalledBundle | None:
    """An installed bundle, known only by its folder."""
    try:
        manifest = read_manifest(folder)
    except Refused:
        return None
    return InstalledBundle(task=manifest.task, version=manifest.version, digest=folder.name)
