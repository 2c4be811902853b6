"""The root ceremony: create and renew roots, exchange keys. Root keys are not on the coordinator."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.trust.keys import Key
from coordinator.trust.repository import TOO_MANY_ROOTS, Repository
from protocol.errors import Misconfigured, Refused
from protocol.tasks.announcement import MAX_NEXT_ROOTS
from protocol.trust.metadata import ONLINE, Root, draft, read
from protocol.trust.signing import Envelope, PublicKey
from runtime.storage.files import disk_errors, write_atomic


@dataclass(frozen=True)
class Done:
    """Result. ``lacking``: how many signatures are still needed at least; 0: the root is valid."""

    version: int
    lacking: int
    file: Path
    """Version of the root, or of the one that waits for signatures."""


def init(repository: Repository, keys: Sequence[Key], threshold: int, lasts_s: float, wall: float) -> Done:
    """Create the first root.

    Args:
        repository: where.
        keys: of the root; those with a secret sign.
        threshold: how many of them must sign.
        lasts_s: validity of the root.
        wall: Unix seconds.

    Raises:
        Misconfigured: a root exists, or there are fewer keys than the threshold.
        Transient: the disk is full.
    """
    if repository.exists:
        raise Misconfigured(
            f"{repository.newest} is there; to exchange keys: lichen coordinator trust rotate"
        )
    return _draw(
        repository, [key.public for key in keys], threshold, _new_online(repository), keys, lasts_s, wall
    )


def rotate(  # noqa: PLR0917 - each of another type
    repository: Repository,
    signing: Sequence[Key],
    keys: Sequence[Key] | None,
    threshold: int | None,
    lasts_s: float,
    wall: float,
    *,
    keep_online: bool = False,
) -> Done:
    """Create the next root: a new online key, new root keys, or only a later expiry.

    Args:
        repository: where.
        signing: keys that sign now, of the old root or the new.
        keys: the new root's keys; None: those of the old one.
        threshold: None: that of the old one.
        lasts_s: validity of the new root.
        wall: Unix seconds.
        keep_online: keep the online key; with a new one devices forget what the old one signed.

    Raises:
        Misconfigured: there is no root, fewer keys than the threshold, or a key that belongs to neither root.
        Transient: the disk is full.
    """
    old = repository.root()
    if old.version > MAX_NEXT_ROOTS:
        raise Misconfigured(f"{repository.folder}: {TOO_MANY_ROOTS}")
    publics = list(old.keys_of("root").values()) if keys is None else [key.public for key in keys]
    online = repository.online() if keep_online else _new_online(repository)
    needed = threshold or old.roles["root"].threshold
    return _draw(repository, publics, needed, online, signing, lasts_s, wall)


def sign(repository: Repository, keys: Sequence[Key]) -> Done:
    """Sign the waiting root.

    Raises:
        Misconfigured: no root waits, or a key is not one of its keys.
        Transient: the disk is full.
    """
    with disk_errors(repository.pending):
        try:
            data = repository.pending.read_bytes()
        except FileNotFoundError:
            raise Misconfigured(f"{repository.pending}: no root waits for signatures") from None
    try:
        _, envelope = read(Root, data)
    except Refused as error:
        raise Misconfigured(f"{repository.pending}: {error.detail}") from None
    return _settle(repository, envelope, keys)


def _new_online(repository: Repository) -> Key:
    key = Key.new()
    file = repository.key_file(key.public.keyid)
    key.save(file)
    return key


def _draw(  # noqa: PLR0917 - each of another type
    repository: Repository,
    publics: Sequence[PublicKey],
    threshold: int,
    online: Key,
    signing: Sequence[Key],
    lasts_s: float,
    wall: float,
) -> Done:
    if not 1 <= threshold <= len({key.public for key in publics}):
        raise Misconfigured(f"--threshold {threshold}: the root has {len(publics)} keys")
    number = repository.root().version + 1 if repository.exists else 1
    said: dict[str, Any] = {
        "consistent_snapshot": True,
        "keys": {key.keyid: key.model_dump() for key in [*publics, online.public]},
        "roles": {
            "root": {"keyids": sorted({key.keyid for key in publics}), "threshold": threshold},
            **{role: {"keyids": [online.public.keyid], "threshold": 1} for role in ONLINE},
        },
    }
    return _settle(repository, draft("root", number, wall, lasts_s, said), signing)


def _settle(repository: Repository, envelope: Envelope, signing: Sequence[Key]) -> Done:
    """Sign; the root becomes valid with all signatures, and waits otherwise."""
    root = Root.model_validate(envelope.signed)
    judges = [root, *([repository.root()] if repository.exists else [])]
    known = {key.public for judge in judges for key in judge.keys_of("root").values()}
    for key in signing:
        if key.public.public not in known:
            raise Misconfigured(
                f"key {key.public.keyid[:16]} is a key neither of the new root nor of the one before: "
                "nothing is signed"
            )
        if key.secret is not None:
            envelope = key.signs(envelope)
    data = envelope.encode()
    lacking = max(
        judge.roles["root"].threshold - len(envelope.signers(judge.keys_of("root"))) for judge in judges
    )
    if lacking > 0:
        write_atomic(repository.pending, data)
        return Done(root.version, lacking, repository.pending)
    repository.keep_root(data)
    return Done(root.version, 0, repository.newest)
