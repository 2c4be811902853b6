"""The four kinds of signed metadata (TUF specification 1.0): root, timestamp, snapshot, targets.

``root`` assigns keys to roles, and is signed by offline keys; ``targets`` lists bundles by digest;
``snapshot`` names the current version of targets, ``timestamp`` the current snapshot, and is signed every
day, so that devices notice missing updates. Pure: times are arguments, in unix seconds.
"""

import calendar
import datetime as dt
import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from protocol.base import Count, Digest, Name, Wire
from protocol.errors import Reason, Refused
from protocol.messages import MAX_BLOB_BYTES, BlobRef
from protocol.trust.signing import MAX_KEYS, Envelope, KeyId, PublicKey, malformed

SPEC: Final = "1.0.31"
MAX_TARGETS: Final = 1024
MAX_ROOT_BYTES: Final = 64 * 1024
MAX_SMALL_BYTES: Final = 16 * 1024
MAX_TARGETS_BYTES: Final = 1024 * 1024
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
SNAPSHOT_FILE: Final = "snapshot.json"
TARGETS_FILE: Final = "targets.json"
RoleName = Literal["root", "timestamp", "snapshot", "targets"]
ROLES: Final[tuple[RoleName, ...]] = ("root", "timestamp", "snapshot", "targets")
ONLINE: Final[tuple[RoleName, ...]] = ("timestamp", "snapshot", "targets")


def unix(text: str) -> float:
    """Unix seconds of a time in TUF's format, ``2026-11-22T16:30:00Z``.

    Raises:
        ValueError: another format.
    """
    if not _TIME.fullmatch(text):
        raise ValueError("a time is written as 2026-11-22T16:30:00Z")
    return float(calendar.timegm(dt.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timetuple()))


def spelt(seconds: float) -> str:
    """The inverse of :func:`unix`, to the whole second."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _time(text: str) -> str:
    unix(text)
    return text


Time = Annotated[str, AfterValidator(_time)]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]


class Hashes(Wire):
    """TUF allows further hashes."""

    sha256: Digest


class File(Wire):
    """A file that metadata lists."""

    length: Annotated[int, Field(ge=0, le=MAX_BLOB_BYTES)]
    hashes: Hashes

    @classmethod
    def of(cls, data: bytes) -> dict[str, Any]:
        """The entry of some bytes."""
        return {"length": len(data), "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}

    def is_of(self, data: bytes) -> bool:
        """Whether these bytes match the entry."""
        return len(data) == self.length and hashlib.sha256(data).hexdigest() == self.hashes.sha256


class Listed(File):
    """A metadata file."""

    version: Version


class Bundled(Wire):
    """Task and version of a bundle."""

    task: Name
    version: Count


class TargetFile(File):
    """A bundle."""

    custom: Bundled


class Metadata(Wire):
    """Common fields. ``issued`` (our addition) is the time of signing, a lower bound of the current time."""

    most_bytes: ClassVar[int] = MAX_SMALL_BYTES
    role: ClassVar[RoleName]

    spec_version: Annotated[str, Field(pattern=r"^1\.[0-9]{1,3}(\.[0-9]{1,3})?$")]
    version: Version
    expires: Time
    issued: Time | None = None

    @model_validator(mode="after")
    def _issued_before_it_expires(self) -> "Metadata":
        if self.issued is not None and self.issued > self.expires:
            raise ValueError("issued after it expired")
        return self

    def has_expired(self, now: float) -> bool:
        """Whether it has expired at ``now``."""
        return unix(self.expires) <= now


class Keys(Wire):
    """Keys of a role, and its threshold."""

    keyids: Annotated[tuple[KeyId, ...], Field(max_length=MAX_KEYS)]
    threshold: Annotated[int, Field(ge=1, le=MAX_KEYS)]


class Root(Metadata):
    """The keys."""

    most_bytes: ClassVar[int] = MAX_ROOT_BYTES
    role: ClassVar[RoleName] = "root"
    type: Literal["root"] = Field(alias="_type")
    consistent_snapshot: bool = True
    keys: Annotated[dict[KeyId, PublicKey], Field(max_length=MAX_KEYS * 4)]
    roles: dict[RoleName, Keys]

    @model_validator(mode="after")
    def _says_who_speaks(self) -> "Root":
        for name in ROLES:
            if name not in self.roles:
                raise ValueError(f"roles.{name}: missing")
            keys = self.keys_of(name)
            if len({key.public for key in keys.values()} - {None}) < self.roles[name].threshold:
                raise ValueError(f"roles.{name}: fewer keys than its threshold")
        return self

    def keys_of(self, role: RoleName) -> dict[str, PublicKey]:
        """Keys of the role by id."""
        return {keyid: self.keys[keyid] for keyid in self.roles[role].keyids if keyid in self.keys}

    def require(self, envelope: Envelope, role: RoleName, what: str = "") -> None:
        """Check the signatures of a role.

        Raises:
            Refused: fewer valid signatures than the role's threshold.
        """
        got, needed = len(envelope.signers(self.keys_of(role))), self.roles[role].threshold
        if got < needed:
            raise Refused(
                Reason.UNTRUSTED,
                f"{what or role}: {got} of its signatures are by keys of root {self.version} for {role}, "
                f"{needed} needed",
            )

    def speaks_as(self, other: "Root") -> bool:
        """Whether all online roles have the same keys in ``other``."""
        return all(
            {key.public for key in self.keys_of(role).values()}
            == {key.public for key in other.keys_of(role).values()}
            for role in ONLINE
        )


class Timestamp(Metadata):
    """Names the current snapshot."""

    role: ClassVar[RoleName] = "timestamp"
    type: Literal["timestamp"] = Field(alias="_type")
    meta: Annotated[dict[str, Listed], Field(max_length=1)]

    @model_validator(mode="after")
    def _names_a_snapshot(self) -> "Timestamp":
        if SNAPSHOT_FILE not in self.meta:
            raise ValueError(f"meta.{SNAPSHOT_FILE}: missing")
        return self

    @property
    def snapshot(self) -> Listed:
        """The current snapshot."""
        return self.meta[SNAPSHOT_FILE]


class Snapshot(Metadata):
    """Names the current version of targets."""

    role: ClassVar[RoleName] = "snapshot"
    type: Literal["snapshot"] = Field(alias="_type")
    meta: Annotated[dict[str, Listed], Field(max_length=64)]

    @model_validator(mode="after")
    def _names_targets(self) -> "Snapshot":
        if TARGETS_FILE not in self.meta:
            raise ValueError(f"meta.{TARGETS_FILE}: missing")
        return self

    @property
    def targets(self) -> Listed:
        """The current targets."""
        return self.meta[TARGETS_FILE]


class Targets(Metadata):
    """Bundles that devices may run."""

    most_bytes: ClassVar[int] = MAX_TARGETS_BYTES
    role: ClassVar[RoleName] = "targets"
    type: Literal["targets"] = Field(alias="_type")
    targets: Annotated[dict[Annotated[str, Field(max_length=256)], TargetFile], Field(max_length=MAX_TARGETS)]

    def find(self, task: str, version: int, bundle: BlobRef) -> bool:
        """Whether this bundle is listed as this version of this task."""
        return any(
            target.hashes.sha256 == bundle.digest
            and target.length == bundle.size
            and (target.custom.task, target.custom.version) == (task, version)
            for target in self.targets.values()
        )


M = TypeVar("M", bound=Metadata)


def read(kind: type[M], data: bytes) -> tuple[M, Envelope]:
    """Parse a metadata file, without verifying signatures.

    Raises:
        Refused: MALFORMED or TOO_LARGE.
    """
    envelope = Envelope.read(data, kind.most_bytes, kind.role)
    try:
        return kind.model_validate(envelope.signed), envelope
    except ValidationError as error:
        raise malformed(kind.role, error) from None


def draft(
    role: RoleName, version: int, issued: float, lasts_s: float, content: Mapping[str, Any]
) -> Envelope:
    """Content of a role, to be signed."""
    common = {
        "_type": role,
        "spec_version": SPEC,
        "version": version,
        "issued": spelt(issued),
        "expires": spelt(issued + lasts_s),
    }
    return Envelope({**common, **content}, ())


def path_of(task: str, version: int, digest: str) -> str:
    """The name under which a bundle is listed."""
    return f"{task}/{version}/{digest}.bundle"
