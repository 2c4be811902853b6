"""Signs model pointers and their bundles' metadata while the coordinator runs, and again before it expires.

Each decision is signed for the device it concerns, with the same key (:mod:`protocol.trust.decisions`).
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.objects.blobs import BlobStorage
from coordinator.trust.keys import Key
from coordinator.trust.repository import (
    AHEAD_S,
    DAY_S,
    FOLDER,
    TOO_MANY_ROOTS,
    BundleTarget,
    Repository,
    ahead_words,
)
from protocol.errors import LichenError, Misconfigured
from protocol.messages import BlobRef, ModelPointer, Vouchers
from protocol.tasks.announcement import MAX_NEXT_ROOTS
from protocol.trust.decisions import drafted
from runtime.clock import Clock
from runtime.storage.files import disk_errors

log = structlog.get_logger(__name__)
_DECISIONS: Final = 1024
"""Signed decisions that are kept, some hundred bytes each."""
_POLL_S: Final = 60.0
"""Interval of the check whether a signature is due."""


@dataclass(frozen=True)
class Signer:
    """The online key, and the blobs with the roots that lead to it."""

    key: Key
    number: int
    """Version of the root that names it."""
    roots: tuple[BlobRef, ...]
    """Roots 2, 3, ...; they are stored as blobs."""
    written: int
    """Modification time of the newest root's file, nanoseconds."""


@dataclass(frozen=True)
class _Last:
    """The last signed metadata."""

    bundles: tuple[BundleTarget, ...]
    vouchers: Vouchers
    signer: Signer
    again_at: float
    """Monotonic seconds: the wall clock may be set back by a year."""

    @property
    def blobs(self) -> tuple[str, ...]:
        """Digests of the metadata's blobs."""
        told = self.vouchers
        return tuple(ref.digest for ref in (*told.roots, told.timestamp, told.snapshot, told.targets))


class PointerSigner:
    """Signs pointers, if the fleet has a root. Thread-safe."""

    def __init__(self, repository: Repository, blobs: BlobStorage, clock: Clock, fleet: str) -> None:
        self._repository = repository
        self.fleet = fleet
        self._blobs = blobs
        self._clock = clock
        self._lock = threading.Lock()
        self._last: _Last | None = None
        self._signer: Signer | None = None
        self._decisions: OrderedDict[tuple[object, ...], str] = OrderedDict()
        """Those signed last: devices get them again with each reconnect."""

    def signer(self) -> Signer | None:
        """The signer; None: the fleet has no root. Blocks for a disk.

        Raises:
            Misconfigured: a key or a root is missing.
            Transient: the disk is full.
        """
        if not self._repository.exists:
            return None
        with self._lock:
            return self._signer_now()

    def vouched(
        self, pointer: ModelPointer, bundles: Sequence[BundleTarget], device: str | None = None
    ) -> ModelPointer:
        """The pointer, signed, with the metadata of all ``bundles``. Blocks for a disk.

        Args:
            pointer: the decision.
            bundles: what devices may run.
            device: the only device it is for; None: all.

        Raises:
            Misconfigured: a key or a root is missing.
            Transient: the disk is full.
        """
        if not self._repository.exists:
            return pointer
        with self._lock:
            last = self._last
            if last is None or last.bundles != tuple(bundles) or self.due() or not self._have(last.blobs):
                last = self._last = self._sign(bundles)
            decision = self._decision(last.signer, pointer, device)
        return pointer.model_copy(update={"trust": last.vouchers, "decision": decision})

    def _decision(self, signer: Signer, pointer: ModelPointer, device: str | None) -> str:
        """The signed decision; the same one has the same signature."""
        of = (device, pointer.task, pointer.version, pointer.bundle.digest, pointer.serial)
        key = (signer.written, signer.number, *of, repr(pointer.trial))
        known = self._decisions.pop(key, None)
        if known is None:
            known = signer.key.signs(drafted(pointer, self.fleet, device, signer.number)).encode().decode()
        self._decisions[key] = known
        while len(self._decisions) > _DECISIONS:
            self._decisions.popitem(last=False)
        return known

    def due(self) -> bool:
        """Whether pointers must be signed and announced again. Blocks for a disk."""
        if not self._repository.exists:
            return False
        last = self._last
        return last is None or last.signer.written != self._root() or self._clock.now() >= last.again_at

    def _have(self, digests: Iterable[str]) -> bool:
        """Whether devices can pull these blobs."""
        return all(map(self._blobs.has, digests))

    def _root(self) -> int:
        with disk_errors(self._repository.newest):
            return self._repository.newest.stat().st_mtime_ns

    def _signer_now(self) -> Signer:
        """The signer; read again if the root is new, or devices could not pull the roots."""
        signer, written = self._signer, self._root()
        if signer is None or signer.written != written or not self._have(ref.digest for ref in signer.roots):
            signer = self._signer = self._read_signer(written)
        return signer

    def _read_signer(self, written: int) -> Signer:
        repository = self._repository
        roots = tuple(self._blobs.put(data) for data in repository.roots()[1:])
        if len(roots) > MAX_NEXT_ROOTS:
            raise Misconfigured(f"{repository.folder}: {TOO_MANY_ROOTS}")
        return Signer(repository.online(), repository.root().version, roots, written)

    def _sign(self, bundles: Sequence[BundleTarget]) -> "_Last":
        wall, last = self._clock.wall(), self._last
        signer = self._signer_now()
        # Once per start: if the folder is a restored copy, devices know newer metadata.
        anew = last is None or self._clock.now() >= last.again_at
        published = self._repository.publish(bundles, wall, anew=anew)
        if (ahead_s := self._repository.ahead_s(wall)) > AHEAD_S:
            log.error("signed_ahead_of_the_clock", ahead_s=round(ahead_s), why=ahead_words(ahead_s))
        refs: dict[str, BlobRef] = {
            role: self._blobs.put(text.encode()) for role, text in published.model_dump().items()
        }
        again_at = self._clock.now() + self._repository.again_s
        return _Last(tuple(bundles), Vouchers(roots=signer.roots, **refs), signer, again_at)

    def kept(self) -> tuple[str, ...]:
        """Digests of the blobs that must be retained."""
        roots = () if self._signer is None else tuple(ref.digest for ref in self._signer.roots)
        return roots if self._last is None else (*roots, *self._last.blobs)

    @contextmanager
    def held(self) -> Iterator[tuple[str, ...]]:
        """The same digests; none is added inside this context. Blocks while another thread signs."""
        with self._lock:
            yield self.kept()


def pointer_signer_of(settings: CoordinatorSettings, blobs: BlobStorage, clock: Clock) -> PointerSigner:
    """The signer of this coordinator; ``lichen coordinator trust init`` may run beside it.

    Raises:
        Misconfigured: there is a root, but the online key is missing.
    """
    repository = repository_of(settings)
    if repository.exists:
        repository.online()
    return PointerSigner(repository, blobs, clock, settings.fleet)


def repository_of(settings: CoordinatorSettings) -> Repository:
    """The repository of these settings: the fleet's roots and keys, and what this task publishes."""
    trust = settings.trust
    return Repository(
        settings.main.state_dir / FOLDER,
        timestamp_s=trust.timestamp_days * DAY_S,
        again_s=trust.again_hours * 3600,
        publishes_in=settings.state_dir / FOLDER,
    )


async def resign_periodically(
    pointer_signer: PointerSigner, announce: Callable[[], Awaitable[bool]], clock: Clock, every_s: float
) -> None:
    """Call ``announce`` whenever signatures are due, for ever."""
    while True:
        await clock.sleep(min(_POLL_S, every_s))
        try:
            if await asyncio.to_thread(pointer_signer.due):
                await announce()
        except (LichenError, OSError) as error:
            log.warning("not_signed_anew", why=str(error))
