"""What is signed, and by whom: canonical JSON, Ed25519 keys, and an envelope of content and signatures.

The formats are The Update Framework's (TUF specification 1.0, theupdateframework.io), so that its tools can
read and sign what we make; python-tuf is the judge in ``tests/unit/edge_agent/trust/test_trust_tuf.py``.
Nothing here looks at
a clock or a disk. ``cryptography`` is loaded when a signature is made or verified, and not before.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol, Self

from pydantic import Field, ValidationError

from protocol.base import Digest, Wire
from protocol.errors import Reason, Refused

ED25519: Final = "ed25519"
MAX_KEYS: Final = 32
MAX_DEPTH: Final = 8
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
KeyId = Digest
_Word = Annotated[str, Field(min_length=1, max_length=64)]


def canonical(value: Any) -> bytes:
    """The one spelling of a JSON value that is signed: sorted keys, no white space, no fractions.

    As OLPC's canonical JSON, which TUF's implementations share: within strings only ``"`` and a backslash are
    escaped.

    Raises:
        ValueError: there is a number that is not whole, a key that is no string, half of a surrogate pair, or
            more than ``MAX_DEPTH`` levels.
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
    """A key as TUF writes it. One of a kind that we do not know verifies nothing, and does no harm."""

    keytype: _Word
    scheme: _Word
    keyval: Annotated[dict[_Word, Annotated[str, Field(max_length=8192)]], Field(max_length=4)]

    @classmethod
    def ed25519(cls, public: bytes) -> Self:
        """From the 32 bytes of RFC 8032."""
        return cls(keytype=ED25519, scheme=ED25519, keyval={"public": public.hex()})

    @property
    def public(self) -> bytes | None:
        """The 32 bytes; None: another kind of key, or none at all."""
        text = self.keyval.get("public", "")
        ours = self.keytype == ED25519 and self.scheme == ED25519 and re.fullmatch(r"[0-9a-f]{64}", text)
        return bytes.fromhex(text) if ours else None

    @property
    def keyid(self) -> str:
        """SHA-256 of its canonical form."""
        return hashlib.sha256(canonical(self.model_dump())).hexdigest()


class SecretKey(Protocol):
    """Who can sign: ``Ed25519PrivateKey`` of ``cryptography``, or a stick that holds one."""

    def sign(self, data: bytes, /) -> bytes:
        """64 bytes, RFC 8032."""


class Signature(Wire):
    """One of an envelope's."""

    keyid: KeyId
    sig: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){0,512}$")]


class _Outer(Wire):
    signatures: Annotated[tuple[Signature, ...], Field(max_length=MAX_KEYS)]
    signed: dict[str, Any]


@dataclass(frozen=True)
class Envelope:
    """Content as it came, unverified, and signatures over its canonical form."""

    signed: dict[str, Any]
    signatures: tuple[Signature, ...]

    @classmethod
    def read(cls, data: bytes, most: int, what: str) -> Self:
        """Parse. ``most``: bytes; ``what``: for the words of an error.

        Raises:
            Refused: too large, no JSON, a key is given twice (in JSON, or among the signatures), or the
                content has no canonical form.
        """
        if len(data) > most:
            raise Refused(Reason.TOO_LARGE, f"{what}: {len(data)} bytes, at most {most}")
        try:
            outer = _Outer.model_validate(json.loads(data.decode(), object_pairs_hook=_once))
            canonical(outer.signed)
        except ValidationError as error:
            raise malformed(what, error) from None
        except (ValueError, RecursionError) as error:
            raise Refused(Reason.MALFORMED, f"{what}: {error}"[:500]) from None
        if len({one.keyid for one in outer.signatures}) < len(outer.signatures):
            raise Refused(Reason.MALFORMED, f"{what}: one key signs twice")
        return cls(outer.signed, outer.signatures)

    def encode(self) -> bytes:
        """As JSON; the same envelope gives the same bytes."""
        signatures = sorted((one.model_dump() for one in self.signatures), key=lambda one: one["keyid"])
        content = {"signatures": signatures, "signed": self.signed}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"

    def signed_by(self, key: PublicKey, secret: SecretKey) -> "Envelope":
        """With one more signature (or that key's again)."""
        sig = secret.sign(canonical(self.signed)).hex()
        others = [one for one in self.signatures if one.keyid != key.keyid]
        return Envelope(self.signed, (*others, Signature(keyid=key.keyid, sig=sig)))

    def signers(self, keys: Mapping[str, PublicKey]) -> frozenset[bytes]:
        """Public keys of ``keys`` (by id) whose signature is right: a key that has two ids counts once."""
        content = canonical(self.signed)
        found = set()
        for one in self.signatures:
            public = keys[one.keyid].public if one.keyid in keys else None
            if public is not None and verifies(public, bytes.fromhex(one.sig), content):
                found.add(public)
        return frozenset(found)


def verifies(public: bytes, signature: bytes, content: bytes) -> bool:
    """Whether an Ed25519 signature is right."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - 9 MB, where nothing is signed
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def malformed(what: str, error: ValidationError) -> Refused:
    """A refusal that names the first field that is wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join([what, *map(str, first["loc"])])
    return Refused(Reason.MALFORMED, f"{path}: {first['msg']}"[:500])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a reader that takes the first of two equal keys and one that takes the last differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found
