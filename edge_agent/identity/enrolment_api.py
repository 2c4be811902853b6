"""Requests to the enrolment service: the authority's certificate, a first certificate, a renewal."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from edge_agent.identity.https_client import HttpResponse, HttpsClient
from edge_agent.identity.keys import authority_of, fingerprints
from protocol.base import first_fault
from protocol.enrolment import (
    CA_PATH,
    ENROL_PATH,
    RENEW_PATH,
    EnrolAnswer,
    EnrolRefusal,
    EnrolRequest,
    RenewRequest,
)
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.mqtt.certificate_dates import known_since
from runtime.mqtt.tls import leave_out_dates

_OK: Final = range(200, 300)
_LATER: Final = range(500, 600)
_BUSY: Final = (408, 425, 429)


@dataclass(frozen=True)
class EnrolmentReply:
    """An answer, and the service's clock in Unix seconds if it sent one."""

    answer: EnrolAnswer
    date: float | None


def authority(url: str, sha256: str, timeout_s: float) -> str:
    """The authority's certificate, in PEM; only the one with this fingerprint is accepted, from any server.

    Raises:
        Refused: WRONG_DIGEST: it has another fingerprint; nothing secret was sent.
        Transient: no answer.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint decides, and nothing secret is sent
    answer = HttpsClient(url, context, timeout_s).get(CA_PATH)
    if answer.status not in _OK:
        raise _no(url, answer)
    try:
        found, shown = authority_of(answer.body, sha256), ", ".join(fingerprints(answer.body))
    except Refused as error:
        raise Refused(error.reason, f"{url}: {error.detail}; is it a lichen coordinator?") from None
    if found is None:
        raise Refused(
            Reason.WRONG_DIGEST,
            f"the authority at {url} has the fingerprint {shown}, the invite says {sha256}: "
            "another server answers for the coordinator, or it was set up again after the invite was made; "
            "nothing was sent. Ask for a new invite (lichen device invite) and compare",
        )
    return found


def client(
    url: str,
    authority_pem: str,
    timeout_s: float,
    *,
    since: float = 0.0,
    wall: Callable[[], float] = time.time,
) -> HttpsClient:
    """A client that trusts only this authority.

    Args:
        url: of the service.
        authority_pem: the trusted authority.
        timeout_s: for one exchange.
        since: a lower bound of the time, in Unix seconds; if the clock is before it, dates are not checked.
        wall: the clock.

    Raises:
        Misconfigured: the authority's certificate cannot be used.
    """
    try:
        context = ssl.create_default_context(cadata=authority_pem)
    except ssl.SSLError as error:
        raise Misconfigured(f"the authority's certificate cannot be used: {error}") from None
    if wall() < max(since, known_since(None, [dict(one) for one in context.get_ca_certs()])):
        leave_out_dates(context)
    return HttpsClient(url, context, timeout_s)


def enrol(service: HttpsClient, request: EnrolRequest) -> EnrolmentReply:
    """Request a certificate. Same token and same key: same answer.

    Raises:
        Refused: the service's reason, or its answer is invalid.
        Transient: no answer, or it is busy.
    """
    return _told(service, service.post(ENROL_PATH, request.model_dump_json()))


def renew(service: HttpsClient, request: RenewRequest) -> EnrolmentReply:
    """Request a new certificate for a new key; errors as :func:`enrol`."""
    return _told(service, service.post(RENEW_PATH, request.model_dump_json()))


def _told(service: HttpsClient, answer: HttpResponse) -> EnrolmentReply:
    if answer.status not in _OK:
        raise _no(service.url, answer)
    try:
        return EnrolmentReply(EnrolAnswer.model_validate_json(answer.body), answer.date)
    except ValidationError as error:
        words = f"{service.url} sent an invalid answer: {first_fault(error)}"
        raise Refused(Reason.MALFORMED, words) from None


def _no(url: str, answer: HttpResponse) -> Exception:
    """The error for an answer other than success."""
    try:
        refusal = EnrolRefusal.model_validate_json(answer.body)
    except ValidationError:
        refusal = None
    words = f": {refusal.detail}" if refusal is not None and refusal.detail else ""
    if answer.status in _BUSY or answer.status in _LATER or (refusal and refusal.reason == Reason.FULL):
        return Transient(f"{url} cannot answer now (HTTP {answer.status}){words}")
    if refusal is None:
        return Refused(Reason.MALFORMED, f"{url} answers HTTP {answer.status}; is it a lichen coordinator?")
    known = refusal.reason if isinstance(refusal.reason, Reason) else Reason.UNKNOWN_KIND
    return Refused(known, f"{url} refuses{words or f' ({refusal.reason})'}")
