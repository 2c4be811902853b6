"""Signatures: canonical JSON, Ed25519 keys, and an envelope of content and signatures.

The formats are The Update Framework's (TUF specification 1.0, theupdateframework.io), so its tools can
read and sign the files; python-tuf verifies them in ``tests/unit/edge_agent/trust/test_trust_tuf.py``.
Nothing here
reads a clock or a disk. ``cryptography`` is imported only to make or verify a signature.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, Self

from pydantic import Field, ValidationError

from protocol.base import Digest, Wire, first_fault
from protocol.errors import Reason, Refused

ED25519: Final = "ed25519"
MAX_KEYS: Final = 32
MAX_DEPTH: Final = 8
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
KeyId = Digest
_Word = Annotated[str, Field(min_length=1, max_length=64)]


def canonical(value: Any) -> bytes:
    """Canonical JSON of a signed value: sorted keys, no white space, no fractions.

    As OLPC's canonical JSON, which TUF's implementations share: within strings only ``"`` and a backslash are
    escaped.

    Raises:
        ValueError: a number is not whole, a key is no string, a surrogate is unpaired, or there are more than
            ``MAX_DEPTH`` levels.
    """
    parts: list[str] = []
    _write(value, parts, 0)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels")
    if value is None or isinstance(value, (bool, int)):
        parts.append(json.dumps(value))
    elif isinstance(value, str):
        if _SURROGATE.search(value):
            raise ValueError("half of a surrogate pair")
        parts.append('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    elif isinstance(value, (list, tuple)):
        _write_many("[]", [("", item) for item in value], parts, depth)
    elif isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        _write_many("{}", sorted(value.items()), parts, depth)
    else:
        raise ValueError(f"{type(value).__name__} has no canonical form")


def _write_many(brackets: str, items: list[tuple[str, Any]], parts: list[str], depth: int) -> None:
    parts.append(brackets[0])
    for place, (key, item) in enumerate(items):
        if place:
            parts.append(",")
        if brackets == "{}":
            _write(key, parts, depth)
            parts.append(":")
        _write(item, parts, depth + 1)
    parts.append(brackets[1])


class PublicKey(Wire):
    """A key in TUF's format. One of an unknown kind verifies nothing."""

    keytype: _Word
    scheme: _Word
    keyval: Annotated[dict[_Word, Annotated[str, Field(max_length=8192)]], Field(max_length=4)]

    @classmethod
    def ed25519(cls, public: bytes) -> Self:
        """From the 32 bytes of RFC 8032."""
        return cls(keytype=ED25519, scheme=ED25519, keyval={"public": public.hex()})

    @property
    def public(self) -> bytes | None:
        """The 32 bytes; None for another kind of key, or an invalid one."""
        text = self.keyval.get("public", "")
        ours = self.keytype == ED25519 and self.scheme == ED25519 and re.fullmatch(r"[0-9a-f]{64}", text)
        return bytes.fromhex(text) if ours else None

    @property
    def keyid(self) -> str:
        """SHA-256 of its canonical form."""
        return hashlib.sha256(canonical(self.model_dump())).hexdigest()


class SecretKey(Protocol):
    """A signing key: ``Ed25519PrivateKey`` of ``cryptography``, or a hardware token."""

    def sign(self, data: bytes, /) -> bytes:
        """64 bytes, RFC 8032."""


class Signature(Wire):
    """A signature of an envelope."""

    keyid: KeyId
    sig: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,512}$")]


class _Outer(Wire):
    signatures: Annotated[tuple[Signature, ...], Field(max_length=MAX_KEYS)]
    signed: dict[str, Any]


@dataclass(frozen=True)
class Envelope:
    """Unverified content, and signatures over its canonical form."""

    signed: dict[str, Any]
    signatures: tuple[Signature, ...]

    @classmethod
    def read(cls, data: bytes, max_bytes: int, what: str) -> Self:
        """Parse. ``what`` names the data in errors.

        Raises:
            Refused: too large, no JSON, a key is given twice (in JSON, or among the signatures), or the
                content has no canonical form.
        """
        if len(data) > max_bytes:
            raise Refused(Reason.TOO_LARGE, f"{what}: {len(data)} bytes, at most {max_bytes}")
        try:
            outer = _Outer.model_validate(json.loads(data.decode(), object_pairs_hook=_once))
            canonical(outer.signed)
        except ValidationError as error:
            raise malformed(what, error) from None
        except (ValueError, RecursionError) as error:
            raise Refused(Reason.MALFORMED, f"{what}: {error}"[:500]) from None
        if len({signature.keyid for signature in outer.signatures}) < len(outer.signatures):
            raise Refused(Reason.MALFORMED, f"{what}: one key signs twice")
        return cls(outer.signed, outer.signatures)

    def encode(self) -> bytes:
        """As JSON; the same envelope gives the same bytes."""
        signatures = sorted((s.model_dump() for s in self.signatures), key=lambda s: s["keyid"])
        content = {"signatures": signatures, "signed": self.signed}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"

    def signed_by(self, key: PublicKey, secret: SecretKey) -> "Envelope":
        """With a signature by this key added or replaced."""
        sig = secret.sign(canonical(self.signed)).hex()
        others = [other for other in self.signatures if other.keyid != key.keyid]
        return Envelope(self.signed, (*others, Signature(keyid=key.keyid, sig=sig)))

    def signers(self, keys: Mapping[str, PublicKey]) -> frozenset[bytes]:
        """The public keys of ``keys`` (by id) with a valid signature; a key with two ids counts once."""
        content = canonical(self.signed)
        valid = set()
        for signature in self.signatures:
            public = keys[signature.keyid].public if signature.keyid in keys else None
            if public is not None and verifies(public, bytes.fromhex(signature.sig), content):
                valid.add(public)
        return frozenset(valid)


def verifies(public: bytes, signature: bytes, content: bytes) -> bool:
    """Whether an Ed25519 signature is valid."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - 9 MB, where nothing is signed
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def malformed(what: str, error: ValidationError) -> Refused:
    """A refusal that names the first wrong field."""
    return Refused(Reason.MALFORMED, first_fault(error, what))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; refuse duplicate keys, of which readers take the first or the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key is given twice")
    return fields
