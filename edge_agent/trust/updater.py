"""Updates trusted metadata from pointers, and stores it: the I/O of :mod:`edge_agent.trust.trusted_metadata`.

The device's first root is ``trust_file`` in ``agent.toml``, else the ``root.json`` that came with its
enrolment. Without either, unsigned bundles are accepted, and ``lichen agent status`` says so.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.identity.files import folder_of, read_small
from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.trusted_time import TrustedTime, require_not_ahead, time_known
from edge_agent.trust.verify_process import Role, step_in_child
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModelPointer, Vouchers
from protocol.trust.decisions import read_decision, require_for
from protocol.trust.metadata import MAX_ROOT_BYTES, MAX_SMALL_BYTES, MAX_TARGETS_BYTES, unix
from runtime.clock import Clock
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.files import disk_errors, write_atomic

_log = structlog.get_logger(__name__)
FOLDER: Final = "trust"
FILE: Final = "trusted.json"
_DECISIONS: Final = 4
"""Number of verified decisions that are remembered: of ``b/model`` and ``down/model``, and earlier ones."""
Step = Callable[[TrustedMetadata, Role, bytes, float], Awaitable[TrustedMetadata]]
UNSIGNED: Final = (
    "no root: bundles are taken unsigned; name the fleet's root.json as trust_file (lichen coordinator trust "
    "init), or enrol"
)


def root_file(state_dir: Path, trust_file: Path | None) -> Path | None:
    """Path of this device's first root; None: it has none."""
    enrolled = folder_of(state_dir).root
    return trust_file or (enrolled if enrolled.is_file() else None)


def begin(state_dir: Path, trust_file: Path | None, *, verified: bool = True) -> TrustedMetadata | None:
    """The first root; None: none was given.

    Raises:
        Misconfigured: the file is missing, or not a root.
    """
    path = root_file(state_dir, trust_file)
    if path is None:
        return None
    data = read_small(path)
    if data is None:
        raise Misconfigured(f"trust_file: {path} is not there; copy root.json from the coordinator's machine")
    try:
        return TrustedMetadata.begin(data, verified=verified)
    except Refused as error:
        raise Misconfigured(f"trust_file: {path} is no root of a fleet: {error.detail}") from None


def trust_of(settings: AgentSettings, fetcher: Fetcher, clock: Clock) -> "MetadataUpdater":
    """The updater of this agent.

    Raises:
        Misconfigured: ``trust_file`` is missing, or not a root.
    """
    first = begin(settings.device_dir, settings.trust_file, verified=False)
    me = (settings.fleet, settings.device)
    return MetadataUpdater(settings.state_dir / FOLDER, first, fetcher, clock, settings.fetch_timeout_s, me)


class MetadataUpdater:
    """Of one device. ``first``: None if it has no root; ``me``: the names of its fleet and of itself."""

    def __init__(  # noqa: PLR0917 - each of another type: no two can be mistaken for each other
        self,
        folder: Path,
        first: TrustedMetadata | None,
        fetcher: Fetcher,
        clock: Clock,
        timeout_s: float,
        me: tuple[str, str],
        step: Step = step_in_child,
    ) -> None:
        self._file = folder / FILE
        self._fetcher = fetcher
        self._clock = clock
        self._timeout_s = timeout_s
        self._me = me
        self._said = ""
        self._step = step
        self._one_at_a_time = asyncio.Lock()
        """Pieces depend on each other, and two services update them."""
        self._verified: deque[tuple[int, str]] = deque(maxlen=_DECISIONS)
        """Epoch and text of verified decisions."""
        self.now = first if first is None else self._kept(first)
        self._known_at = clock.now()

    def _kept(self, first: TrustedMetadata) -> TrustedMetadata:
        """The stored metadata, if it began with the same root."""
        try:
            kept = TrustedMetadata.decode(self._file.read_bytes())
        except FileNotFoundError:
            return first
        except (OSError, Refused) as error:
            _log.error("trusted_metadata_lost", file=str(self._file), why=str(error))
            return first
        return kept if kept.first == first.first else first

    @property
    def fleet(self) -> str:
        """The names for which a decision must be signed."""
        return self._me[0]

    @property
    def epoch(self) -> int | None:
        """Version of the root that introduced the online keys; None: nothing is verified."""
        return None if self.now is None else self.now.epoch

    def time(self) -> TrustedTime:
        """The device's knowledge of the time."""
        latest = 0.0 if self.now is None else self.now.latest
        return time_known(self._clock.wall(), latest, self._clock.now() - self._known_at)

    def is_decided(self, pointer: ModelPointer) -> bool:
        """Whether a decision is verified, as far as known now; without a root always."""
        if self.now is None:
            return True
        try:
            text = self._decision_of(self.now, pointer)
        except Refused:
            return False
        epoch = self.now.epoch
        return (epoch, text) in self._verified and read_decision(text)[0].root >= epoch

    async def require(self, pointer: ModelPointer) -> None:
        """Apply a pointer's metadata, and check decision and bundle; without a root: nothing.

        The decision comes first: for an unsigned one no list is pulled.

        Raises:
            Refused: the decision, the bundle, or its metadata.
            Transient: a piece is not here yet, or the disk is full.
        """
        if self.now is None:
            return
        if pointer.trust is None:
            raise Refused(
                Reason.UNTRUSTED,
                "unsigned, and this device has a root: lichen coordinator trust init, or no trust_file",
            )
        try:
            async with self._one_at_a_time:
                await self._follow(self.now, pointer.trust.roots)
                await self._require_decided(self.now, pointer)
                await self._take(self.now, pointer.trust)
            self.now.require(pointer, self.time().now)
        except Refused as error:
            self._said = str(error)
            raise
        self._said = ""

    async def follow(self, roots: Sequence[BlobRef]) -> None:
        """Update to the newest of these roots; without a root: nothing.

        Args:
            roots: versions 2, 3, ... in this order.

        Raises:
            Refused: one is not signed correctly.
            Transient: one is not here yet, or the disk is full.
        """
        async with self._one_at_a_time:
            if self.now is not None:
                await self._follow(self.now, roots)

    async def step(self, trusted: TrustedMetadata, role: Role, data: bytes) -> None:
        """Verify a statement that is not metadata, by ``trusted``.

        Raises:
            Refused: it is not signed correctly.
            Transient: the child process that verifies it failed.
        """
        await self._step(trusted, role, data, self.time().now)

    async def _follow(self, trusted: TrustedMetadata, roots: Sequence[BlobRef]) -> None:
        for ref in roots[trusted.root.said.version - 1 :]:
            trusted = await self._next(trusted, "root", ref, MAX_ROOT_BYTES)

    async def _require_decided(self, trusted: TrustedMetadata, pointer: ModelPointer) -> None:
        """Check a decision: its text is verified once, and compared with the pointer each time."""
        text = self._decision_of(trusted, pointer)
        if (trusted.epoch, text) not in self._verified:
            await self._step(trusted, "decision", text.encode(), self.time().now)
            self._verified.append((trusted.epoch, text))
        signed_under = read_decision(text)[0].root
        if signed_under < trusted.epoch:  # the key was revoked and came again; or this device is new
            raise Refused(
                Reason.EXPIRED,
                f"decision: it was signed under root {signed_under}, and what counts begins with root "
                f"{trusted.epoch}: a running coordinator signs it anew within a minute",
            )

    def _decision_of(self, trusted: TrustedMetadata, pointer: ModelPointer) -> str:
        """The decision's text: for this device, and equal to the pointer; the signature is not verified."""
        if pointer.decision is None:
            raise Refused(
                Reason.UNTRUSTED,
                "decision: it is not signed, so serial and rules of the trial could be anybody's; a "
                "coordinator of an older release signs bundles alone: upgrade it",
            )
        said, envelope = read_decision(pointer.decision)
        require_for(said, pointer, *self._me)
        root = trusted.root.said
        if not any(one.keyid in root.keys_of("targets") for one in envelope.signatures):
            raise Refused(
                Reason.UNTRUSTED,
                f"decision: it was signed under root {said.root}, and no key of root {root.version} for "
                "targets is among its signatures",
            )
        return pointer.decision

    async def _take(self, trusted: TrustedMetadata, vouchers: Vouchers) -> None:
        known = trusted.timestamp
        if known is None or vouchers.timestamp.digest != digest(known.data):
            trusted = await self._next(trusted, "timestamp", vouchers.timestamp, MAX_SMALL_BYTES)
        if trusted.needs_snapshot:
            trusted = await self._next(trusted, "snapshot", vouchers.snapshot, MAX_SMALL_BYTES)
        if trusted.needs_targets:
            await self._next(trusted, "targets", vouchers.targets, MAX_TARGETS_BYTES)

    async def _next(self, trusted: TrustedMetadata, role: Role, ref: BlobRef, most: int) -> TrustedMetadata:
        """One step: pull, verify, write to disk, and only then use."""
        data = await self._pull(ref, most, role)
        new = await self._step(trusted, role, data, self.time().now)
        if role != "root" and (piece := new.piece(role)) is not None:
            right = await asyncio.to_thread(self._clock.synchronised)
            require_not_ahead(piece.said, self._clock.wall(), synchronised=right)
        await asyncio.to_thread(write_atomic, self._file, new.encode())
        if self.now is None or new.latest != self.now.latest:
            self._known_at = self._clock.now()
        self.now = new
        return new

    async def _pull(self, ref: BlobRef, most: int, what: str) -> bytes:
        """A small blob, by its digest; not verified yet."""
        if ref.size > most:
            raise Refused(Reason.TOO_LARGE, f"{what}: {ref.size} bytes are announced, at most {most}")
        path = await self._fetcher.fetch(ref, self._timeout_s)
        try:
            with disk_errors(path):  # if the disk is full, other blobs are removed for these
                return await asyncio.to_thread(path.read_bytes)
        finally:
            await asyncio.to_thread(self._fetcher.forget, ref.digest)

    def status(self) -> dict[str, Any]:
        """For ``lichen agent status``."""
        if self.now is None:
            return {"bundles": UNSIGNED}
        time, stamped = self.time(), self.now.timestamp
        until = None if stamped is None else stamped.said.expires
        if until is None:
            words = "must be signed; nothing signed has come yet"
        elif unix(until) <= time.now:
            words = "must be signed; nothing new is taken: what was signed has expired"
        else:
            words = "are signed"
        return {
            "bundles": words,
            "root": self.now.root.said.version,
            "until": until,
            **({"clock": time.doubt} if time.doubt else {}),
            **({"refused": self._said} if self._said else {}),
        }
