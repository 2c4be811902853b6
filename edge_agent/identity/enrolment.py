"""Enrolment: from an invite to a certificate; it can be repeated after any interruption.

1. The key is made and written. 2. The authority's certificate is fetched and compared with the invite's
fingerprint; nothing secret is sent before. 3. Over TLS that trusts only this authority, the request is sent;
the service gives the same answer to the same token and key. 4. The answer is checked and written (the order
is in :mod:`edge_agent.identity.files`). 5. The drop-in makes the agent use it. After a power cut at any step,
the same command continues with the same key.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from edge_agent.identity import enrolment_api, keys
from edge_agent.identity.files import Identity, IdentityFiles, read_small
from edge_agent.identity.https_client import HttpsClient
from edge_agent.identity.retry import RetryPolicy
from protocol.enrolment import EnrolAnswer, EnrolRequest, Invite
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.storage.folder_lock import FolderLock

_SOONEST_S: Final = 1.0
_LATEST_S: Final = 300.0
_SHOWN: Final = 16
"""As many digits of a key's fingerprint as ``lichen device ls`` shows."""
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Enrolled:
    """The result; ``before``: the device was already enrolled, and nothing was requested."""

    identity: Identity
    before: bool


@contextmanager
def alone(folder: IdentityFiles) -> Iterator[None]:
    """Exclude other enrolments and renewals.

    Raises:
        Misconfigured: another enrolment or renewal is running, or the folder denies access.
        Transient: the disk is full.
    """
    folder.make()
    owner = FolderLock(folder.lock, "enrolment or renewal")
    try:
        folder.tidy()
        yield
    finally:
        owner.close()


def enrol(
    folder: IdentityFiles,
    invite: Invite,
    device: str,
    patience: RetryPolicy,
    *,
    replace: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Enrolled:
    """Get a certificate for this device.

    Args:
        folder: where it is stored.
        invite: from the operator.
        device: the name to request.
        patience: limits the retries, and the wait for the operator's approval.
        replace: give up an existing identity.
        timeout_s: for one exchange with the service.

    Raises:
        Misconfigured: there is another identity, or a file denies access or is open to others.
        Refused: the coordinator refuses, is not the one of the invite, or sends an invalid answer; or
            ``replace`` with the invite of the present identity.
        Transient: no answer, no approval, or no room on the disk; the same command continues later.
    """
    with alone(folder):
        if (known := _known(folder, invite, replace=replace)) is not None:
            cut_off = _remove_used_key(folder)
            if replace and not cut_off:
                raise Refused(
                    Reason.BAD_INVITE,
                    f"--replace needs a new invite (lichen device invite {known.device}): this one "
                    f"gave the present identity, {known.device}; to keep that, leave out --replace",
                )
            return Enrolled(known, before=True)
        key = pending_key(folder)
        root = patience.retry(lambda: enrolment_api.authority(invite.url, invite.ca_sha256, timeout_s))
        service = enrolment_api.client(invite.url, root, timeout_s)
        request = EnrolRequest(token=invite.token, device=device, csr=keys.request_pem(key, device))
        reply = _request_until_issued(service, request, patience, keys.key_print(key)[:_SHOWN])
        identity = keep(folder, key, reply, root, url=invite.url, device=device, invite=_token_hash(invite))
        return Enrolled(identity, before=False)


def _known(folder: IdentityFiles, invite: Invite, *, replace: bool) -> Identity | None:
    """The identity that this invite has already brought; None if there is none."""
    try:
        identity = folder.read()
    except Misconfigured:
        if not replace:
            raise
        return None
    if identity is None or (identity.invite_sha256 == _token_hash(invite) and _is_complete(folder, identity)):
        return identity
    if replace or identity.invite_sha256 == _token_hash(invite):
        return None
    raise Misconfigured(
        f"{folder.path}: this device is enrolled as {identity.device!r} in the fleet {identity.fleet!r}; to "
        "give that up: lichen agent enroll --replace"
    )


def _is_complete(folder: IdentityFiles, identity: Identity) -> bool:
    """Whether certificate, key and authority exist and belong together."""
    pair, root = read_small(folder.pair), read_small(folder.authority)
    if pair is None or root is None:
        return False
    try:
        key = keys.load_key(pair, str(folder.pair))
        certificate = keys.certificates_pem(pair, str(folder.pair))
        keys.check(certificate, keys.certificates_pem(root, str(folder.authority)), key, identity.device)
    except (Misconfigured, Refused):
        return False
    return True


def pending_key(folder: IdentityFiles) -> keys.Key:
    """The key of an earlier attempt, else a new one; on the disk before it is used.

    Raises:
        Misconfigured: others may read it.
        Transient: the disk is full.
    """
    if exposed := [words for words in folder.exposed() if str(folder.next_key) in words]:
        raise Misconfigured(exposed[0] + "; or remove it, and ask for a new invite")
    pem = read_small(folder.next_key)
    if pem is not None:
        try:
            return keys.load_key(pem, str(folder.next_key))
        except Misconfigured:
            pem = None  # damaged on the disk: any answer to its request is lost
    key = keys.new_key()
    folder.write(folder.next_key, keys.key_pem(key))
    return key


def _request_until_issued(
    service: HttpsClient, request: EnrolRequest, patience: RetryPolicy, shown: str
) -> enrolment_api.EnrolmentReply:
    """Ask until the answer is a certificate; ``shown``: the beginning of this device's key fingerprint."""
    while True:
        reply = patience.retry(lambda: enrolment_api.enrol(service, request))
        if reply.answer.status == "issued":
            return reply
        wait_s = min(_LATEST_S, max(_SOONEST_S, reply.answer.wait_s))
        words = (
            f"waiting for approval: lichen device approve {request.device} (lichen device ls: key {shown})"
        )
        every = f"asking every {wait_s:.0f} s, for at most {patience.left_s():.0f} s"
        if not patience.pause(wait_s, f"{words}; {every}"):
            raise Transient(
                f"not approved in {patience.limit_s:.0f} s ({words}); the same command continues later"
            )


def keep(
    folder: IdentityFiles,
    key: keys.Key,
    reply: enrolment_api.EnrolmentReply,
    root: str,
    *,
    url: str,
    device: str,
    invite: str,
) -> Identity:
    """Check the answer and write it: first the authority, then certificate and key, then the record.

    Raises:
        Refused: the answer does not match the request.
        Transient: the disk is full.
    """
    answer = reply.answer
    if answer.device != device:
        raise Refused(Reason.WRONG_DEVICE, f"the answer is for {answer.device!r}, not for {device!r}")
    if answer.certificate is None:
        raise Refused(Reason.MALFORMED, f"{url} issued a certificate, but did not send it")
    root = answer.ca or root  # the service belongs to the authority: it may name a successor
    facts = keys.check(answer.certificate, root, key, device)
    issued_at = facts.issued_at(reply.date)
    identity = _record(answer, facts, url, root, issued_at=issued_at, invite=invite)
    certificate = keys.certificates_pem(answer.certificate.encode(), "the answer")
    folder.write(folder.authority, keys.certificates_pem(root.encode(), "the authority").encode())
    folder.write(folder.pair, certificate.encode() + keys.key_pem(key))
    if answer.trust_root is not None:
        keep_root(folder, answer.trust_root, invite)
    folder.write(folder.record, identity.model_dump_json(indent=1).encode())
    folder.forget_next_key()
    return identity


def keep_root(folder: IdentityFiles, text: str, invite: str) -> None:
    """Store the service's trust root for bundles. A root from the same invite stays: updates follow it.

    Raises:
        Transient: the disk is full.
    """
    try:
        known = folder.read()
    except Misconfigured:
        known = None
    if known is None or known.invite_sha256 != invite or not folder.root.is_file():
        folder.write(folder.root, text.encode())


def _record(
    answer: EnrolAnswer, facts: keys.CertificateInfo, url: str, root: str, *, issued_at: float, invite: str
) -> Identity:
    values = {
        "fleet": answer.fleet,
        "device": answer.device,
        "url": url,
        "ca_sha256": keys.fingerprints(root.encode())[0],
        "invite_sha256": invite,
        "issued_at": issued_at,
        "not_after": facts.not_after,
        "serial": facts.serial,
        "broker_host": answer.broker_host,
        "broker_port": answer.broker_port,
    }
    try:
        return Identity.model_validate(values)
    except ValueError as error:
        raise Refused(Reason.MALFORMED, f"{url} sent an invalid answer: {error}") from None


def _remove_used_key(folder: IdentityFiles) -> bool:
    """Remove the request's key after a power cut that came when all else was written; True if it did.

    If the key differs from the one in use, it belongs to a renewal whose answer was lost and must be
    repeated.
    """
    key, pair = read_small(folder.next_key), read_small(folder.pair)
    used = key is not None and pair is not None and pair.endswith(key)
    if used:
        folder.forget_next_key()
    return used


def _token_hash(invite: Invite) -> str:
    return hashlib.sha256(invite.token.encode()).hexdigest()
