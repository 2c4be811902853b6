"""Trusted metadata: applies a new piece of metadata, or refuses it.

Pure. The order is TUF's (specification 1.0, section 5): roots one after the other, then timestamp, snapshot,
targets, each verified by the one before. An object never changes: refused metadata has no effect.

Attacks that each check stops. *Arbitrary content, wrong key*: signatures by a threshold of the role's keys.
*Rollback*: versions of timestamp and snapshot, and the version of targets that a snapshot names, never fall.
*Freeze*: expired metadata is refused. *Mix and match*: each names the next by digest. *Fast-forward*: if a
root exchanges keys, metadata of the old ones is forgotten, versions too. *Endless data*: sizes are bounded.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final, Generic, TypeVar

from pydantic import Field, ValidationError

from protocol.base import Count, Digest, Wire
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import ModelPointer
from protocol.trust.metadata import (
    MAX_ROOT_BYTES,
    MAX_SMALL_BYTES,
    MAX_TARGETS_BYTES,
    Listed,
    Metadata,
    RoleName,
    Root,
    Snapshot,
    Targets,
    Timestamp,
    read,
    spelt,
    unix,
)

T = TypeVar("T", bound=Metadata)
MAX_KEPT_BYTES: Final = 2 * (MAX_ROOT_BYTES + 2 * MAX_SMALL_BYTES + MAX_TARGETS_BYTES)


@dataclass(frozen=True)
class Piece(Generic[T]):
    """A piece of trusted metadata, and its bytes."""

    said: T
    data: bytes


@dataclass(frozen=True)
class TrustedMetadata:
    """The metadata that is trusted now; :meth:`begin` with the root from the operator."""

    first: str
    """The digest of that root."""
    root: Piece[Root]
    epoch: int
    """The version of the root that introduced the present online keys."""
    timestamp: Piece[Timestamp] | None = None
    snapshot: Piece[Snapshot] | None = None
    targets: Piece[Targets] | None = None

    @classmethod
    def begin(cls, data: bytes, *, verified: bool = True) -> "TrustedMetadata":
        """Start with a root that is trusted because of its origin; it must be signed by its own keys.

        Args:
            data: the file.
            verified: False: its signatures are checked with the first step.

        Raises:
            Refused: it is not a root, or not signed.
        """
        root, envelope = read(Root, data)
        if verified:
            root.require(envelope, "root")
        return cls(first=digest(data), root=Piece(root, data), epoch=root.version)

    def with_root(self, data: bytes) -> "TrustedMetadata":
        """The next root: signed by the keys of this one, and by its own. It may have expired.

        Raises:
            Refused: MALFORMED, UNTRUSTED, or ROLLED_BACK: it is not the next version.
        """
        root, envelope = read(Root, data)
        now = self.root.said
        if root.version != now.version + 1:
            raise Refused(Reason.ROLLED_BACK, f"root {root.version} does not follow root {now.version}")
        what = f"root {root.version}"
        now.require(envelope, "root", what)
        root.require(envelope, "root", what)
        if root.speaks_as(now):
            return replace(self, root=Piece(root, data))
        return TrustedMetadata(self.first, Piece(root, data), epoch=root.version)

    def with_timestamp(self, data: bytes, now: float) -> "TrustedMetadata":
        """A timestamp; ``now``: Unix seconds, see :mod:`edge_agent.trust.trusted_time`.

        Raises:
            Refused: MALFORMED, UNTRUSTED, ROLLED_BACK, or EXPIRED: it, or the root.
        """
        _require_fresh(self.root.said, now)
        timestamp, envelope = read(Timestamp, data)
        self.root.said.require(envelope, "timestamp")
        _require_fresh(timestamp, now)
        if self.timestamp is not None:
            known = self.timestamp.said
            _require_risen("timestamp", timestamp.version, known.version)
            _require_risen("snapshot", timestamp.snapshot.version, known.snapshot.version)
            if timestamp.version == known.version and data != self.timestamp.data:
                raise Refused(Reason.ROLLED_BACK, f"a second timestamp {timestamp.version}, another one")
        return replace(self, timestamp=Piece(timestamp, data))

    def with_snapshot(self, data: bytes, now: float) -> "TrustedMetadata":
        """The snapshot that the timestamp names.

        Raises:
            Refused: MALFORMED, UNTRUSTED, ROLLED_BACK, EXPIRED, or WRONG_DIGEST: it is another one.
        """
        if self.timestamp is None:
            raise Refused(Reason.UNTRUSTED, "a snapshot without a timestamp")
        snapshot = self._named(Snapshot, "snapshot", self.timestamp.said.snapshot, data, now)
        if self.snapshot is not None:
            _require_risen("targets", snapshot.targets.version, self.snapshot.said.targets.version)
        return replace(self, snapshot=Piece(snapshot, data))

    def with_targets(self, data: bytes, now: float) -> "TrustedMetadata":
        """The targets that the snapshot names.

        Raises:
            Refused: as :meth:`with_snapshot`.
        """
        if self.snapshot is None:
            raise Refused(Reason.UNTRUSTED, "targets without a snapshot")
        targets = self._named(Targets, "targets", self.snapshot.said.targets, data, now)
        return replace(self, targets=Piece(targets, data))

    def _named(self, kind: type[T], role: RoleName, listed: Listed, data: bytes, now: float) -> T:
        """Read metadata that other metadata names."""
        _require_named(role, data, listed)
        said, envelope = read(kind, data)
        self.root.said.require(envelope, role)
        if said.version != listed.version:
            words = f"{said.role} {said.version} is named as version {listed.version}"
            raise Refused(Reason.WRONG_DIGEST, words)
        _require_fresh(said, now)
        return said

    def require(self, pointer: ModelPointer, now: float) -> None:
        """Check that a bundle may run: it is in trusted metadata that has not expired.

        Raises:
            Refused: UNTRUSTED: it is not listed, as this version of this task; EXPIRED.
        """
        pieces = (self.timestamp, self.snapshot, self.targets)
        if self.timestamp is None or self.snapshot is None or self.targets is None:
            raise Refused(Reason.UNTRUSTED, "nothing signed has come yet")
        _require_named("snapshot", self.snapshot.data, self.timestamp.said.snapshot)
        _require_named("targets", self.targets.data, self.snapshot.said.targets)
        for piece in (self.root, *pieces):
            if piece is not None:
                _require_fresh(piece.said, now)
        if not self.targets.said.find(pointer.task, pointer.version, pointer.bundle):
            raise Refused(
                Reason.UNTRUSTED,
                f"bundle {pointer.bundle.digest[:12]} is not among the bundles that were signed as version "
                f"{pointer.version} of {pointer.task!r}",
            )

    @property
    def needs_snapshot(self) -> bool:
        """Whether the timestamp names another snapshot than the present one."""
        stamped, here = self.timestamp, self.snapshot
        return stamped is not None and (here is None or not stamped.said.snapshot.is_of(here.data))

    @property
    def needs_targets(self) -> bool:
        """Whether the snapshot names other targets than the present ones."""
        here = self.targets
        return self.snapshot is not None and (here is None or not self.snapshot.said.targets.is_of(here.data))

    def piece(self, role: str) -> Piece[Timestamp] | Piece[Snapshot] | Piece[Targets] | None:
        """Metadata of an online role; None: not received yet."""
        match role:
            case "timestamp":
                return self.timestamp
            case "snapshot":
                return self.snapshot
            case _:
                return self.targets

    @property
    def latest(self) -> float:
        """The latest signed time, a lower bound of the present time. Unix seconds; 0: there is none."""
        pieces = (self.root, self.timestamp, self.snapshot, self.targets)
        return max(0.0, *(unix(p.said.issued) for p in pieces if p is not None and p.said.issued is not None))

    def encode(self) -> bytes:
        """The trusted metadata as bytes, for the disk."""
        texts = {
            name: None if piece is None else piece.data.decode()
            for name, piece in (
                ("timestamp", self.timestamp),
                ("snapshot", self.snapshot),
                ("targets", self.targets),
            )
        }
        kept = _Kept(first=self.first, epoch=self.epoch, root=self.root.data.decode(), **texts)
        return kept.model_dump_json(exclude_none=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> "TrustedMetadata":
        """Decode the output of :meth:`encode`. It was verified before it was written, and is not again.

        Raises:
            Refused: it is damaged.
        """
        if len(data) > MAX_KEPT_BYTES:
            raise Refused(Reason.TOO_LARGE, f"{len(data)} bytes")
        try:
            kept = _Kept.model_validate_json(data)
        except ValidationError:
            raise Refused(Reason.MALFORMED, "not what was written there") from None
        return cls(
            first=kept.first,
            root=_piece(Root, kept.root),
            epoch=kept.epoch,
            timestamp=None if kept.timestamp is None else _piece(Timestamp, kept.timestamp),
            snapshot=None if kept.snapshot is None else _piece(Snapshot, kept.snapshot),
            targets=None if kept.targets is None else _piece(Targets, kept.targets),
        )


class _Kept(Wire):
    """``trusted.json``."""

    first: Digest
    epoch: Count
    root: Annotated[str, Field(max_length=MAX_ROOT_BYTES)]
    timestamp: Annotated[str, Field(max_length=MAX_SMALL_BYTES)] | None = None
    snapshot: Annotated[str, Field(max_length=MAX_SMALL_BYTES)] | None = None
    targets: Annotated[str, Field(max_length=MAX_TARGETS_BYTES)] | None = None


def _piece(kind: type[T], text: str) -> Piece[T]:
    data = text.encode()
    said, _ = read(kind, data)
    return Piece(said, data)


def _require_fresh(said: Metadata, now: float) -> None:
    if said.has_expired(now):
        raise Refused(
            Reason.EXPIRED,
            f"{said.role} {said.version} counts until {said.expires}, and it is {spelt(now)}: nobody has "
            "signed it anew, somebody holds that back, or the clock is wrong",
        )


def _require_risen(what: str, version: int, known: int) -> None:
    if version < known:
        raise Refused(Reason.ROLLED_BACK, f"{what} {version}, but {known} is known already")


def _require_named(what: str, data: bytes, listed: Listed) -> None:
    if not listed.is_of(data):
        raise Refused(Reason.WRONG_DIGEST, f"{what}: not the one that is named, version {listed.version}")
