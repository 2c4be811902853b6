"""``<state_dir>/trust``: roots, the online key, and the metadata that is published now.

==================  ===============================================================================
``roots/N.json``    every root so far; devices go from one to the next
``root.json``       the newest one: what devices begin with
``pending.json``    a root that waits for signatures
``keys/ID.pem``     the online key (0600), by the first digits of its id
``published.json``  targets, snapshot and timestamp as devices get them, replaced as one
==================  ===============================================================================

The root's own keys are never here. Versions count minutes since 2020 where that is more than one up: a
repository that was restored from an old copy goes on above what devices know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, ValidationError

from coordinator.trust.keys import Key
from protocol.base import Count, Name, Wire
from protocol.errors import Misconfigured, Refused
from protocol.messages import BlobRef
from protocol.tasks.announcement import MAX_NEXT_ROOTS
from protocol.trust.metadata import (
    MAX_TARGETS,
    MAX_TARGETS_BYTES,
    SNAPSHOT_FILE,
    TARGETS_FILE,
    File,
    Metadata,
    RoleName,
    Root,
    Snapshot,
    Targets,
    Timestamp,
    draft,
    path_of,
    read,
    unix,
)
from protocol.trust.signing import Envelope
from runtime.storage.files import disk_errors, remove, write_atomic

FOLDER: Final = "trust"
DAY_S: Final = 86400.0
AHEAD_S: Final = 60.0
"""A clock that is set back by less than this is not reported."""
_BEGAN_S: Final = 1_577_836_800.0
TOO_MANY_ROOTS: Final = (
    f"devices follow at most {MAX_NEXT_ROOTS} roots after the first one: start a new trust folder "
    "(docs/trust.md), and enrol the devices again"
)
Text = Annotated[str, Field(max_length=MAX_TARGETS_BYTES)]


def ahead_words(ahead_s: float) -> str:
    """Message: the published metadata was signed ``ahead_s`` seconds later than now, and what to do."""
    return (
        f"what devices get was signed {ahead_s / DAY_S:.1f} days ahead of this machine's clock: the clock "
        "was ahead then, or is behind now. Devices whose clock a time service keeps refuse what is more than "
        "a day ahead. Set the clock; if it was ahead then, run lichen coordinator trust rotate"
    )


class BundleTarget(Wire):
    """A bundle that devices may run."""

    task: Name
    version: Count
    ref: BlobRef


class PublishedMetadata(Wire):
    """``published.json``."""

    timestamp: Text
    snapshot: Text
    targets: Text


class Repository:
    """The repository of one coordinator. Not thread-safe.

    Args:
        folder: with roots and keys.
        timestamp_s: how long online signatures are valid.
        again_s: online metadata is signed again after this time.
        publishes_in: the folder of the published metadata; None: ``folder``.
    """

    def __init__(
        self,
        folder: Path,
        timestamp_s: float = 7 * DAY_S,
        again_s: float = DAY_S,
        publishes_in: Path | None = None,
    ) -> None:
        self.folder = folder
        self._published = (publishes_in or folder) / "published.json"
        self.timestamp_s = timestamp_s
        """How long online signatures are valid."""
        self.again_s = again_s
        """Online metadata is signed again after this time."""

    @property
    def exists(self) -> bool:
        """Whether there is a root."""
        with disk_errors(self.newest):
            return self.newest.is_file()

    @property
    def newest(self) -> Path:
        """The root that devices start from."""
        return self.folder / "root.json"

    @property
    def pending(self) -> Path:
        """A root that waits for signatures."""
        return self.folder / "pending.json"

    def roots(self) -> list[bytes]:
        """All roots, the first one first.

        Raises:
            Misconfigured: one is missing or denies access.
        """
        if not self.exists:
            return []
        last = self.root().version
        with disk_errors(self.folder):
            try:
                return [self._root_file(version).read_bytes() for version in range(1, last + 1)]
            except FileNotFoundError as error:
                raise Misconfigured(
                    f"{error.filename}: missing; devices cannot go from one root to the next without it: "
                    "restore it from a copy"
                ) from None

    def _root_file(self, version: int) -> Path:
        return self.folder / "roots" / f"{version}.json"

    def root(self) -> Root:
        """The newest root.

        Raises:
            Misconfigured: there is none, or it is damaged.
        """
        with disk_errors(self.newest):
            try:
                return read(Root, self.newest.read_bytes())[0]
            except FileNotFoundError:
                raise Misconfigured(f"{self.newest}: not there: lichen coordinator trust init") from None
            except Refused as error:
                raise Misconfigured(
                    f"{self.newest}: {error.detail}; copy the last file of {self.folder / 'roots'} there"
                ) from None

    def keep_root(self, data: bytes) -> Root:
        """Make a fully signed root the newest one."""
        root, _ = read(Root, data)
        write_atomic(self._root_file(root.version), data)
        write_atomic(self.newest, data)
        with disk_errors(self.folder):
            remove(self.pending)
            wanted = {self.key_file(keyid).name for keyid in root.roles["targets"].keyids}
            for file in (self.folder / "keys").glob("*.pem"):
                if file.name not in wanted:
                    remove(file)
        return root

    def key_file(self, keyid: str) -> Path:
        """Path of an online key."""
        return self.folder / "keys" / f"{keyid[:16]}.pem"

    def online(self) -> Key:
        """The signing key, checked against the root.

        Raises:
            Misconfigured: it is missing.
        """
        keyid = self.root().roles["timestamp"].keyids[0]
        key = Key.load(self.key_file(keyid))
        if key.secret is None or key.public.keyid != keyid:
            raise Misconfigured(f"{self.key_file(keyid)}: not the key that the root names")
        return key

    def published(self) -> PublishedMetadata | None:
        """The published metadata; None if there is none or it is damaged: it is signed again then."""
        with disk_errors(self._published):
            try:
                return PublishedMetadata.model_validate_json(self._published.read_bytes())
            except (FileNotFoundError, ValidationError):
                return None

    def ahead_s(self, wall: float) -> float:
        """Seconds by which the published metadata was signed later than ``wall`` (Unix seconds), else 0.

        Raises:
            Misconfigured: there is no root, or it is damaged.
        """
        before = _Before.of(self.published(), self.root())
        signed = 0.0 if before is None else before.latest
        issued = self.root().issued
        return max(0.0, signed - wall, 0.0 if issued is None else unix(issued) - wall)

    def publish(
        self, bundles: Sequence[BundleTarget], wall: float, *, anew: bool = False
    ) -> PublishedMetadata:
        """Sign what is due, and return what is published.

        All three files are signed together: a retained snapshot would look outdated to devices if this folder
        was restored from a copy.

        Args:
            bundles: what devices may run.
            wall: Unix seconds.
            anew: sign even if nothing is due.

        Raises:
            Misconfigured: keys or root are missing, or there are more bundles than devices accept.
            Transient: the disk is full.
        """
        if len(bundles) > MAX_TARGETS:
            raise Misconfigured(f"{len(bundles)} bundles, at most {MAX_TARGETS}: lower export.max_routes")
        listed = {
            path_of(one.task, one.version, one.ref.digest): {
                "length": one.ref.size,
                "hashes": {"sha256": one.ref.digest},
                "custom": {"task": one.task, "version": one.version},
            }
            for one in bundles
        }
        root = self.root()
        before = _Before.of(self.published(), root)
        if not anew and before is not None and before.stays(listed, wall, self.again_s):
            return before.published
        # A clock may go back, but devices remember the latest signature that they have seen: each further
        # one must be later, or it would seem to have expired after timestamp_s.
        now = wall if before is None else max(wall, before.latest + 1)
        version = max(1, int((now - _BEGAN_S) // 60), 0 if before is None else before.version + 1)
        published = _signed(self.online(), version, now, self.timestamp_s, listed)
        write_atomic(self._published, published.model_dump_json().encode())
        return published


@dataclass(frozen=True)
class _Before:
    """The metadata published before."""

    published: PublishedMetadata
    pieces: tuple[tuple[Metadata, Envelope], ...]
    """Timestamp, snapshot, targets."""

    @classmethod
    def of(cls, published: PublishedMetadata | None, root: Root) -> "_Before | None":
        """The metadata published before; None if there is none, it is damaged, or the root dropped its keys.

        When devices accept the root they forget what such keys signed: neither versions nor times need to
        follow it.
        """
        if published is None:
            return None
        try:
            pieces = (
                read(Timestamp, published.timestamp.encode()),
                read(Snapshot, published.snapshot.encode()),
                read(Targets, published.targets.encode()),
            )
        except Refused:
            return None
        if not all(envelope.signers(root.keys_of(said.role)) for said, envelope in pieces):
            return None
        return cls(published, pieces)

    @property
    def version(self) -> int:
        """The highest version."""
        return max(said.version for said, _ in self.pieces)

    @property
    def latest(self) -> float:
        """When the latest of them was signed."""
        return max(unix(said.issued) for said, _ in self.pieces if said.issued is not None)

    def stays(self, listed: Mapping[str, object], wall: float, again_s: float) -> bool:
        """Whether it lists the same and is recent; a signature later than now is not."""
        same = self.pieces[-1][1].signed.get("targets") == listed
        return same and self.latest - AHEAD_S <= wall < self.latest + again_s


def _signed(
    key: Key, version: int, now: float, lasts_s: float, listed: Mapping[str, object]
) -> PublishedMetadata:
    """The inner metadata first: each file names the one before."""
    texts: dict[str, str] = {}
    said: dict[str, object] = {"targets": listed}
    order: tuple[tuple[RoleName, str], ...]
    order = (("targets", TARGETS_FILE), ("snapshot", SNAPSHOT_FILE), ("timestamp", ""))
    for role, file in order:
        data = key.signs(draft(role, version, now, lasts_s, said)).encode()
        texts[role] = data.decode()
        said = {"meta": {file: {"version": version, **File.of(data)}}}
    return PublishedMetadata(**texts)
