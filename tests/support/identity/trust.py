"""A fleet's keys and their signatures, as its coordinator would make them, or a thief of a key."""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.frames.frame import digest
from protocol.messages import BlobRef, ModelPointer
from protocol.trust.decisions import drafted
from protocol.trust.metadata import ONLINE, SNAPSHOT_FILE, TARGETS_FILE, File, draft, path_of
from protocol.trust.signed_work import draft_offer, draft_task
from protocol.trust.signing import Envelope, PublicKey

FLEET, DEVICE = ME = ("f", "d")
NOW = 1_800_000_000.0
DAY_S = 86400.0


def secret(number):
    """The same key for the same number."""
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def public(number):
    return PublicKey.ed25519(secret(number).public_key().public_bytes_raw())


def signed(envelope: Envelope, *numbers) -> bytes:
    for number in numbers:
        envelope = envelope.signed_by(public(number), secret(number))
    return envelope.encode()


@dataclass
class Keys:
    """Numbers of keys by role."""

    root: tuple = (1, 2)
    threshold: int = 1
    online: dict = field(default_factory=lambda: {"timestamp": (3,), "snapshot": (4,), "targets": (5,)})

    def root_said(self):
        numbers = {*self.root, *(n for several in self.online.values() for n in several)}
        roles = {"root": {"keyids": [public(n).keyid for n in self.root], "threshold": self.threshold}}
        for role in ONLINE:
            roles[role] = {"keyids": [public(n).keyid for n in self.online[role]], "threshold": 1}
        keys = {public(n).keyid: public(n).model_dump() for n in sorted(numbers)}
        return {"consistent_snapshot": True, "keys": keys, "roles": roles}


def root(keys=None, version=1, by=None, issued=NOW - DAY_S, lasts_s=365 * DAY_S):
    keys = keys or Keys()
    return signed(
        draft("root", version, issued, lasts_s, keys.root_said()), *(by or keys.root[: keys.threshold])
    )


@dataclass(frozen=True)
class Release:
    """Timestamp, snapshot and targets with these bundles."""

    timestamp: bytes
    snapshot: bytes
    targets: bytes
    bundle: bytes
    version: int

    @property
    def pointer(self):
        return pointer(self.bundle, self.version)


def pointer(bundle, version=1, task="toy"):
    return ModelPointer(task=task, version=version, bundle=BlobRef(digest=digest(bundle), size=len(bundle)))


def decided(pointer, *numbers, fleet=FLEET, device=None, root=1, keys=None):
    """The pointer, signed by the keys for targets, or by the given ones."""
    numbers = numbers or (keys or Keys()).online["targets"]
    text = signed(drafted(pointer, fleet, device, root), *numbers).decode()
    return pointer.model_copy(update={"decision": text})


def signed_task(announcement, *numbers, serial=1, fleet=FLEET, root=1, roots=(), keys=None):
    """The announcement, signed by the keys for targets, or by the given ones."""
    numbers = numbers or (keys or Keys()).online["targets"]
    text = signed(draft_task(announcement, fleet, serial, root, tuple(roots)), *numbers).decode()
    return announcement.model_copy(update={"signed": text})


def signed_offer(offer, *numbers, serial=1, fleet=FLEET, root=1, keys=None):
    """An offer, signed likewise."""
    numbers = numbers or (keys or Keys()).online["targets"]
    text = signed(draft_offer(offer, fleet, serial, root), *numbers).decode()
    return offer.model_copy(update={"signed": text})


def listed(bundle, version, task="toy"):
    custom = {"task": task, "version": version}
    return {path_of(task, version, digest(bundle)): {**File.of(bundle), "custom": custom}}


def named(name, version, data):
    return {"meta": {name: {"version": version, **File.of(data)}}}


def release(
    number=1, bundle=None, *, version=None, keys=None, issued=NOW, lasts_s=7 * DAY_S, lists_s=90 * DAY_S, **by
):
    """``number``: of all three; ``by``: other numbers of keys for a role."""
    keys = keys or Keys()
    bundle = bundle if bundle is not None else b"bundle %d" % number
    version = number if version is None else version
    who = {role: by.get(role, keys.online[role]) for role in ONLINE}
    targets = signed(
        draft("targets", number, issued, lists_s, {"targets": listed(bundle, version)}), *who["targets"]
    )
    snapshot = signed(
        draft("snapshot", number, issued, lists_s, named(TARGETS_FILE, number, targets)), *who["snapshot"]
    )
    timestamp = signed(
        draft("timestamp", number, issued, lasts_s, named(SNAPSHOT_FILE, number, snapshot)), *who["timestamp"]
    )
    return Release(timestamp, snapshot, targets, bundle, version)


def fed(trusted, release, now=NOW):
    """Apply all three, in order."""
    trusted = trusted.with_timestamp(release.timestamp, now)
    trusted = trusted.with_snapshot(release.snapshot, now)
    return trusted.with_targets(release.targets, now)
