"""Verifies tasks and offers before the agent acts on them: with a root, only signed ones count.

The newest task and the newest offer wait here, one of each. Checks without a key come first
(``signed_work``); then one child process at a time verifies the signature, and the result is remembered by
the digest of the text. So a flood of forged messages costs one child at a time, and nothing is written.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.updater import FOLDER, MetadataUpdater
from protocol.base import Count, Frozen
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import Offer
from protocol.tasks.announcement import TaskAnnouncement
from protocol.trust.signed_work import SignedOffer, SignedTask, WorkKind, read_signed
from protocol.trust.signing import Envelope
from runtime.clock import Clock
from runtime.storage.files import write_atomic
from runtime.waits import StatusPart, Wait

_log = structlog.get_logger(__name__)
FILE: Final = "work.json"
RETRY_S: Final = 15.0
"""Delay before a message that could not be verified (a missing root, a full disk) is tried again."""
_REMEMBERED: Final = 64
UNSIGNED: Final = (
    "it is not signed, and this device has a root: lichen coordinator trust init, or no trust_file; a "
    "coordinator of an older release signs bundles and decisions alone: upgrade it"
)
Work = TaskAnnouncement | Offer


class Serials(Frozen):
    """``trust/work.json``: the serials of the last task and the last offer that the device acted on."""

    epoch: Count
    """Version of the root behind their signer; serials of another signer do not count."""
    task: Count = 0
    offer: Count = 0


class WorkVerifier(StatusPart):
    """The verifier of one device.

    Args:
        trust: the trusted metadata; without a root nothing is verified.
        state_dir: of the agent; the serials are stored in its folder ``trust``.
        clock: the time since which a message is refused.
    """

    def __init__(self, trust: MetadataUpdater, state_dir: Path, clock: Clock) -> None:
        self._trust = trust
        self._file = state_dir / FOLDER / FILE
        self._clock = clock
        self._serials = _read(self._file)
        self._waiting: dict[WorkKind, Work] = {}
        self._later: dict[WorkKind, Work] = {}
        """The message that could not be verified yet."""
        self._last: WorkKind = "task"
        self._again = 0.0
        """Time of the next attempt, by the event loop's clock."""
        self._news = asyncio.Event()
        self._why: dict[WorkKind, str] = {"task": "", "offer": ""}
        self._verified: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        """Epoch and digest of texts with a valid signature."""
        self._forged: deque[tuple[int, str]] = deque(maxlen=_REMEMBERED)
        """The same of those with an invalid one."""
        self.since: float | None = None
        """Since when messages are refused, Unix seconds; None: none is."""

    @property
    def active(self) -> bool:
        """Whether this device has a root."""
        return self._trust.now is not None

    @property
    def why(self) -> str:
        """Why the device does not act on the last task or offer; empty: it does."""
        return "; ".join(words for words in self._why.values() if words)

    def status(self) -> dict[str, Any]:
        """The trust state, and the refused message."""
        return {"trust": self._trust.status(), "work_refused": self.why}

    def waits(self) -> Iterator[Wait]:
        """A task or an offer that is not signed correctly."""
        if self.why:
            yield Wait("signatures", self.why, self.since, None, "until one comes that is signed")

    def give(self, work: Work) -> None:
        """Add a task or an offer; it replaces the one that waits."""
        self._waiting[_kind(work)] = work
        self._later.pop(_kind(work), None)
        self._news.set()

    async def next(self) -> Work:
        """Wait for a task or an offer, and verify it.

        Returns:
            A verified one.

        Raises:
            Refused: it must not be acted on; :attr:`why` says why.
            Transient: it cannot be verified now, and waits.
        """
        await self._wait()
        kind: WorkKind = "task" if self._last == "offer" else "offer"  # in turn, if both wait
        if kind not in self._waiting:
            kind = self._last
        self._last, work = kind, self._waiting.pop(kind)
        try:
            await self._require(work)
        except LichenError as error:
            if isinstance(error, Transient) and kind not in self._waiting:
                self._later[kind] = work
                self._again = asyncio.get_running_loop().time() + RETRY_S
            words = error.words if isinstance(error, Refused) else str(error)
            self._say(kind, f"the {kind} that came last: {words}")
            raise
        self._say(kind, "")
        return work

    async def _wait(self) -> None:
        """Wait until there is something to verify; failed attempts are repeated, whatever else comes."""
        loop = asyncio.get_running_loop()
        while True:
            if self._later and loop.time() >= self._again:
                self._waiting, self._later = self._later | self._waiting, {}
            if self._waiting:
                return
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._again if self._later else None):
                    await self._news.wait()

    def _say(self, kind: WorkKind, words: str) -> None:
        if words and words != self._why[kind]:
            _log.warning("work_not_verified", kind=kind, why=words)
        self._why[kind] = words
        self.since = (self.since or self._clock.wall()) if self.why else None

    async def _require(self, work: Work) -> None:
        if self._trust.now is None:
            return
        if work.signed is None:
            raise Refused(Reason.UNTRUSTED, UNSIGNED)
        signed, envelope, differs = _parsed(work, work.signed)
        if signed.fleet != self._trust.fleet:
            differs = f"it was signed for fleet {signed.fleet!r}, and this is {self._trust.fleet!r}"
        if differs:
            raise Refused(Reason.UNTRUSTED, differs)
        if isinstance(signed, SignedTask) and signed.root > self._trust.now.root.said.version:
            await self._trust.follow(signed.roots)
        trusted, kind = self._trust.now, _kind(work)
        _require_signer(trusted, envelope, signed.root)
        known = self._known(trusted.epoch)
        if signed.serial < getattr(known, kind):
            raise Refused(
                Reason.ROLLED_BACK,
                f"it is an older one: its serial is {signed.serial}, and this device went by "
                f"{getattr(known, kind)} already",
            )
        await self._verify(trusted, kind, work.signed)
        if signed.serial > getattr(known, kind):
            new = known.model_copy(update={kind: signed.serial})
            await asyncio.to_thread(write_atomic, self._file, new.model_dump_json().encode())
            self._serials = new

    async def _verify(self, trusted: TrustedMetadata, kind: WorkKind, text: str) -> None:
        mark = trusted.epoch, digest(text.encode())
        if mark in self._verified:
            return
        if mark in self._forged:
            raise Refused(Reason.UNTRUSTED, "its signature was found to be wrong")
        try:
            await self._trust.step(trusted, kind, text.encode())
        except Refused:
            self._forged.append(mark)
            raise
        self._verified.append(mark)

    def _known(self, epoch: int) -> Serials:
        serials = self._serials
        return serials if serials is not None and serials.epoch == epoch else Serials(epoch=epoch)


def _parsed(work: Work, text: str) -> tuple[SignedTask | SignedOffer, Envelope, str]:
    """The statement, its envelope, and what the message says otherwise."""
    if isinstance(work, Offer):
        offer, envelope = read_signed(SignedOffer, text)
        return offer, envelope, offer.difference(work)
    task, envelope = read_signed(SignedTask, text)
    return task, envelope, task.difference(work)


def _require_signer(trusted: TrustedMetadata, envelope: Envelope, signed_under: int) -> None:
    root = trusted.root.said
    if not any(one.keyid in root.keys_of("targets") for one in envelope.signatures):
        raise Refused(
            Reason.UNTRUSTED,
            f"it was signed under root {signed_under}, and no key of root {root.version} for targets is "
            "among its signatures",
        )
    if signed_under < trusted.epoch:
        raise Refused(
            Reason.EXPIRED,
            f"it was signed under root {signed_under}, and what counts begins with root {trusted.epoch}: a "
            "running coordinator signs it anew within a minute",
        )


def _kind(work: Work) -> WorkKind:
    return "offer" if isinstance(work, Offer) else "task"


def _read(file: Path) -> Serials | None:
    try:
        return Serials.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        _log.error("work_serials_lost", file=str(file), why=str(error))
        return None
