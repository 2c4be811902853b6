"""A ``ModelPointer`` -> is it signed; pull, check, probe it, swap. The model before it stays on disk.

On disk, in ``state_dir/models``: one folder a bundle, named by its digest, and ``current.json`` that names
the one that runs and the one before. A folder appears whole or not at all; ``current.json`` changes last.
An older version of the same task than the one that runs is refused. Only the newest pointer is kept: an
older one that still waits is forgotten.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError

from edge_agent.fit import require_fit
from edge_agent.inference import Inference
from edge_agent.model import MANIFEST_FILE, read_manifest
from edge_agent.probe import why_not
from edge_agent.trusting import Trust
from edge_agent.workspace import Workspace
from protocol.base import Count, Digest, Frozen, Name
from protocol.bundle import BundleManifest, unpack
from protocol.errors import Reason, Refused, Transient
from protocol.messages import ModelPointer
from runtime.clock import Clock, SystemClock
from runtime.fetch import Fetcher
from runtime.files import disk_errors, make_folder, remove_tree, rename, write_atomic
from runtime.waits import Explained

_log = structlog.get_logger("edge_agent.deploy")
CURRENT: Final = "current.json"
_AGAIN_S: Final = 5.0
_AGAIN_MOST_S: Final = 300.0
_DAMAGED: Final = frozenset({Reason.MALFORMED, Reason.WRONG_DIGEST})


class Current(Frozen):
    """``current.json``."""

    task: Name
    version: Count
    digest: Digest
    previous: Digest | None = None
    epoch: Count | None = None
    """``edge_agent.trust.Trusted.epoch`` when it was taken; None: unsigned."""


class Deployment(Explained):
    """One service: takes pointers, keeps the newest, deploys it."""

    def __init__(
        self,
        folder: Path,
        fetcher: Fetcher,
        inference: Inference,
        workspace: Callable[[], Workspace | None],
        *,
        fetch_timeout_s: float,
        changed: Callable[[], None],
        clock: Clock | None = None,
        trust: Trust | None = None,
    ) -> None:
        super().__init__(clock or SystemClock(), "no model was announced")
        self._folder = folder
        self._fetcher = fetcher
        self._inference = inference
        self._workspace = workspace
        self._timeout_s = fetch_timeout_s
        self._changed = changed
        self._trust = trust
        self._pointer: ModelPointer | None = None
        self._news = asyncio.Event()
        self._refused: set[str] = set()
        self._pulling: str | None = None
        self.last_refusal = ""
        self.current = read_current(folder)

    def offer(self, pointer: ModelPointer) -> None:
        """A model to run; the newest pointer wins."""
        self._pointer = pointer
        self._news.set()

    def task_changed(self) -> None:
        """Another task: what did not fit before may fit now."""
        self._refused.clear()
        model, work = self._inference.model, self._workspace()
        if model is not None and work is not None:
            try:
                require_fit(model.manifest, work.task, work.modalities)
            except Refused as error:
                self._inference.install(None)
                self._inference.off_because = f"no model for the new task: {error.detail}"
        self._news.set()

    async def start(self) -> None:
        """Probe ONNX Runtime and load the last good model; needs no network."""
        if not self._inference.available:
            return
        if why := await why_not():
            self._inference.available, self._inference.off_because = False, why
            _log.error("inference is off", why=why)
            return
        await self._load_last_good()

    async def _load_last_good(self) -> None:
        """The current model, or the one before it when that is not good any more."""
        if self.current is None or self._workspace() is None:
            return
        for digest in filter(None, (self.current.digest, self.current.previous)):
            try:
                await self._install(self._folder / digest)
            except Refused as error:
                _log.error("a kept model is not used", model=digest, why=error.detail)
                if error.reason in _DAMAGED:  # so that it is pulled again
                    await asyncio.to_thread(remove_tree, self._folder / digest)
            else:
                return

    async def run(self) -> None:
        """Deploy what is pointed to, for ever."""
        await self.start()
        wait = _AGAIN_S
        while True:
            await self._news.wait()
            self._news.clear()
            pointer, work = self._pointer, self._workspace()
            if self._inference.model is None and self._inference.available:
                await self._load_last_good()
            if pointer is None or work is None or not self._possible(pointer):
                continue
            try:
                with disk_trouble(self._folder):
                    if self._trust is not None:  # also of what runs: that nothing is signed must be noticed
                        await self._trust.require(pointer)
                    if not self._wanted(pointer):
                        continue
                    self.say(f"fetching and checking version {pointer.version}", self._timeout_s)
                    await self._deploy(pointer, work)
                wait = _AGAIN_S
                self.why = f"version {pointer.version} runs"
            except (Refused, Transient) as error:
                if isinstance(error, Refused) and error.reason is not Reason.EXPIRED:
                    self._refused.add(_mark(pointer))
                    self.last_refusal = str(error)
                    self.why = f"version {pointer.version} was refused: {error}"
                    _log.error("model refused; the old one stays", version=pointer.version, why=str(error))
                    continue
                _log.warning("model not here yet", version=pointer.version, why=str(error), again_in_s=wait)
                self.say(f"version {pointer.version} is not here yet: {error}", wait)
                await self._pause(wait)
                wait = min(_AGAIN_MOST_S, 2 * wait)
                self._news.set()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    def _possible(self, pointer: ModelPointer) -> bool:
        return self._inference.available and _mark(pointer) not in self._refused

    def _wanted(self, pointer: ModelPointer) -> bool:
        running = self._inference.model
        return running is None or running.digest != pointer.bundle.digest

    async def _deploy(self, pointer: ModelPointer, work: Workspace) -> None:
        digest = pointer.bundle.digest
        self._require_newer(pointer)
        folder = self._folder / digest
        if not await asyncio.to_thread(_is_whole, folder):
            await self._pull(pointer, folder, work)
        why = await why_not(folder)
        if why:
            await asyncio.to_thread(remove_tree, folder)
            raise Refused(Reason.MALFORMED, f"the model does not run here: {why}")
        manifest = await self._install(folder)
        before, previous = self.current, None
        if before is not None:  # the same bundle again (its files were damaged) keeps the one before it
            previous = before.previous if before.digest == digest else before.digest
        now = Current(
            task=manifest.task,
            version=manifest.version,
            digest=digest,
            previous=previous,
            epoch=self._epoch,
        )
        await asyncio.to_thread(write_atomic, self._folder / CURRENT, now.model_dump_json().encode())
        self.current = now
        await asyncio.to_thread(self._tidy)
        self._changed()
        _log.info("model deployed", task=manifest.task, version=manifest.version)

    async def _pull(self, pointer: ModelPointer, folder: Path, work: Workspace) -> None:
        """Fetch and unpack. The bundle is not kept, nor what came of one that is not wanted any more."""
        digest = pointer.bundle.digest
        if self._pulling not in {None, digest}:
            await asyncio.to_thread(self._fetcher.forget, self._pulling)
        self._pulling = digest
        path = await self._fetcher.fetch(pointer.bundle, self._timeout_s)
        try:
            await asyncio.to_thread(self._unpack, path, folder, pointer, work)
        finally:
            await asyncio.to_thread(self._fetcher.forget, digest)

    @property
    def _epoch(self) -> int | None:
        return None if self._trust is None else self._trust.epoch

    def _require_newer(self, pointer: ModelPointer) -> None:
        now = self.current
        if now is not None and self._epoch not in {None, now.epoch}:
            return  # who signed what runs, if anybody, speaks no more
        if now is not None and now.task == pointer.task and pointer.version < now.version:
            raise Refused(
                Reason.WRONG_BASE,
                f"version {pointer.version} is older than version {now.version}, which runs; "
                f"remove {self._folder} to accept older ones",
            )

    def _unpack(self, bundle: Path, folder: Path, pointer: ModelPointer, work: Workspace) -> None:
        """Check a bundle and write its folder, whole or not at all (in a thread)."""
        manifest, files = unpack(bundle.read_bytes())
        require_fit(manifest, work.task, work.modalities)
        if manifest.version != pointer.version:
            raise Refused(
                Reason.WRONG_BASE, f"the bundle is version {manifest.version}, announced as {pointer.version}"
            )
        part = folder.with_name(f"{folder.name}.part")
        remove_tree(part)
        make_folder(part)
        for name, content in files.items():
            write_atomic(part / name, content)
        write_atomic(part / MANIFEST_FILE, manifest.model_dump_json().encode())
        remove_tree(folder)
        rename(part, folder)

    async def _install(self, folder: Path) -> BundleManifest:
        work = self._workspace()
        if work is None:
            raise Refused(Reason.UNKNOWN_TASK, "no task is known yet")
        manifest = await asyncio.to_thread(read_manifest, folder)
        require_fit(manifest, work.task, work.modalities)
        self._inference.install(await self._inference.load(folder))
        self._changed()
        return manifest

    def _tidy(self) -> None:
        """Remove folders that are neither the current model nor the one before."""
        if self.current is None:
            return
        keep = {CURRENT, self.current.digest, self.current.previous}
        for entry in self._folder.iterdir():
            if entry.name not in keep and entry.is_dir():
                remove_tree(entry)


def _mark(pointer: ModelPointer) -> str:
    """A bundle, and what vouches for it: somebody may announce a good bundle with bad vouchers."""
    vouched = "" if pointer.trust is None else pointer.trust.model_dump_json()
    return f"{pointer.bundle.digest} {vouched}"


def _is_whole(folder: Path) -> bool:
    """Whether a bundle was unpacked here before, and is undamaged."""
    try:
        read_manifest(folder)
    except Refused:
        return False
    return True


@contextlib.contextmanager
def disk_trouble(folder: Path) -> Iterator[None]:
    """A disk that fails while a model is deployed: the old one stays, and it is tried again."""
    try:
        with disk_errors(folder):
            try:
                yield
            except (NotADirectoryError, FileExistsError) as error:  # what is in the way of a model may go
                raise Transient(f"{folder}: {error}") from None
    except OSError as error:
        raise Transient(f"{folder}: {error}") from None


def read_current(folder: Path) -> Current | None:
    """What runs on this device, from ``state_dir/models``; None where nothing does yet."""
    path = folder / CURRENT
    try:
        return Current.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        _log.error("the kept model is forgotten", file=str(path), error=str(error))
        return None
