"""Messages of enrolment and renewal (JSON over HTTPS), and the invite that an operator hands over.

An invite is one word to paste. It carries the coordinator's address, the SHA-256 of its authority's
certificate (DER), and a one-time token: a device authenticates the authority from the first message, and
nobody in between can impersonate it (the idea of RFC 7030 section 4.1.1, with the fingerprint given
out of band). The private key never leaves the device; it sends a PKCS#10 request (RFC 2986).
"""

import base64
import binascii
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError

from protocol.base import Digest, Frozen, Name, ReasonWord, Wire
from protocol.errors import Misconfigured

MAX_PEM: Final = 16 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
"""Size of a request or an answer."""
MAX_TRUST_ROOT: Final = 16 * 1024
_PREFIX: Final = "lichen1."
_MAX_INVITE: Final = 4096
COORDINATOR_NAME: Final = "@coordinator"
"""The common name of the coordinator's certificate; no device can have it, for ``@`` fits no name."""


def coordinator_name(task: str | None) -> str:
    """The common name of a coordinator's link: of a further task, or (None) of the fleet's main task."""
    return COORDINATOR_NAME if task is None else f"{COORDINATOR_NAME}~{task}"


ENROL_PATH: Final = "/v1/enrol"
RENEW_PATH: Final = "/v1/renew"
CA_PATH: Final = "/v1/ca"

Pem = Annotated[str, Field(min_length=1, max_length=MAX_PEM)]
Token = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{32,64}$")]


class Invite(Frozen):
    """What ``lichen device invite`` prints and ``lichen agent enroll`` takes."""

    url: Annotated[str, Field(pattern=r"^https://[^/\s]{1,253}$")]
    """Address of the coordinator's enrolment service, without a path."""
    ca_sha256: Digest
    """SHA-256 of the authority's certificate in DER."""
    token: Token
    device: Name | None = None
    """The device it is for; None: the device chooses its name and waits for the operator's approval."""

    def encode(self) -> str:
        """One word of letters, digits, dot, ``-`` and ``_``."""
        return _PREFIX + base64.urlsafe_b64encode(
            self.model_dump_json(exclude_none=True).encode()
        ).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read an invite.

        Raises:
            Misconfigured: it is cut off, mistyped, or no invite.
        """
        word = text.strip()
        if not word.startswith(_PREFIX) or len(word) > _MAX_INVITE:
            raise Misconfigured(
                f"this is no invite (it would begin with {_PREFIX!r}); ask for one: lichen device invite"
            )
        body = word.removeprefix(_PREFIX)
        try:
            return cls.model_validate_json(
                base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            )
        except (binascii.Error, ValueError, ValidationError):
            raise Misconfigured("this invite is cut off or mistyped; copy the whole word again") from None


class EnrolRequest(Wire):
    """POST ``ENROL_PATH``. The same token and key give the same answer, so requests can be repeated."""

    token: Token
    device: Name
    csr: Pem


class RenewRequest(Wire):
    """POST ``RENEW_PATH``: signed with the key of the old certificate, which may have expired."""

    certificate: Pem
    csr: Pem
    signature: Annotated[str, Field(min_length=1, max_length=1024)]
    """Base64 of the old key's signature over ``b"lichen renew v1\\n" + csr`` (ECDSA with SHA-256)."""


class EnrolAnswer(Wire):
    """``pending``: an operator must approve first; repeat the request after ``wait_s``."""

    status: Literal["issued", "pending"]
    fleet: Name
    device: Name
    wait_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    certificate: Pem | None = None
    """The device's certificate, and after it any intermediate ones."""
    ca: Pem | None = None
    """The authority to trust from now on (it also signed the broker's certificate)."""
    trust_root: Annotated[str, Field(min_length=1, max_length=MAX_TRUST_ROOT)] | None = None
    """The newest root (``protocol.trust.metadata``), where this fleet signs its bundles."""
    broker_host: Annotated[str, Field(max_length=253)] = ""
    broker_port: Annotated[int, Field(ge=1, le=65535)] = 8883


class EnrolRefusal(Wire):
    """The body of every error response."""

    reason: ReasonWord
    detail: Annotated[str, Field(max_length=500)] = ""
