"""``python -P -m edge_agent.identity.renewal_job FOLDER``: one request of a new certificate for a new key.

A process of its own, so that the daemon does not load the crypto library. It answers with one JSON line, as
:mod:`runtime.process.worker` reads it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from edge_agent.identity import enrolment_api, keys
from edge_agent.identity.enrolment import TIMEOUT_S, alone, keep, pending_key
from edge_agent.identity.files import Identity, IdentityFiles, read_small
from protocol.enrolment import RenewRequest
from protocol.errors import LichenError, Misconfigured, Refused, Transient


def renew(folder: IdentityFiles, timeout_s: float = TIMEOUT_S) -> Identity:
    """Request a new certificate, with the old one and its key as proof; the old one may have expired.

    The old pair stays in use until the new one is completely written: the coordinator accepts both until
    then.

    Raises:
        Misconfigured: this device has not enrolled, or its files are damaged or deny access.
        Refused: the coordinator refuses, or its answer is invalid.
        Transient: no answer, or no room on the disk.
    """
    with alone(folder):
        identity = folder.read()
        if identity is None:
            raise Misconfigured(f"{folder.record}: missing; enrol first: lichen agent enroll")
        old, certificate, root = _files(folder)
        facts = keys.check(certificate, root, old, identity.device)
        if facts.serial != identity.serial:
            return _catch_up(folder, identity, facts)
        key = _next_key(folder, old)
        csr = keys.request_pem(key, identity.device)
        request = RenewRequest(certificate=certificate, csr=csr, signature=keys.sign_renewal(old, csr))
        service = enrolment_api.client(identity.url, root, timeout_s, since=identity.issued_at)
        told = enrolment_api.renew(service, request)
        if told.answer.status != "issued":
            raise Transient(f"{identity.url}: the new certificate waits for the operator's approval")
        return keep(
            folder,
            key,
            told,
            root,
            url=identity.url,
            device=identity.device,
            invite=identity.invite_sha256,
        )


def _files(folder: IdentityFiles) -> tuple[keys.Key, str, str]:
    """Key, certificate and authority."""
    pair, root = read_small(folder.pair), read_small(folder.authority)
    if pair is None or root is None:
        raise Misconfigured(
            f"{folder.pair if pair is None else folder.authority}: missing; enrol this device again: "
            "lichen agent enroll --replace"
        )
    return (
        keys.load_key(pair, str(folder.pair)),
        keys.certificates_pem(pair, str(folder.pair)),
        keys.certificates_pem(root, str(folder.authority)),
    )


def _catch_up(folder: IdentityFiles, identity: Identity, facts: keys.CertificateInfo) -> Identity:
    """Update the record if a power cut came between the new pair and it."""
    newer = identity.model_copy(
        update={
            "issued_at": max(identity.issued_at, facts.not_before),
            "not_after": facts.not_after,
            "serial": facts.serial,
        }
    )
    folder.write(folder.record, newer.model_dump_json(indent=1).encode())
    folder.forget_next_key()
    return newer


def _next_key(folder: IdentityFiles, old: keys.Key) -> keys.Key:
    """The key of an attempt without an answer, else a new one; never the one in use."""
    key = pending_key(folder)
    if keys.key_pem(key) != keys.key_pem(old):
        return key
    folder.forget_next_key()
    return pending_key(folder)


def main(argv: list[str]) -> int:
    """Exit status 0: the answer is on standard output."""
    answer: dict[str, Any]
    try:
        identity = renew(IdentityFiles(Path(argv[1])))
        answer = {"ok": True, "not_after": identity.not_after}
    except Refused as error:
        answer = {"ok": False, "kind": "Refused", "reason": error.reason, "error": error.detail}
    except LichenError as error:
        answer = {"ok": False, "kind": type(error).__name__, "error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
