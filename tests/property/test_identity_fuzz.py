"""Every decoder that a stranger reaches while enrolling: what comes is taken or refused, never a fault."""

import base64
import contextlib

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from coordinator.identity.certificates import read_certificate, requested_key
from coordinator.identity.enrolment import EnrolmentAuthority
from protocol.enrolment import EnrolRequest, Invite, RenewRequest
from protocol.errors import Misconfigured, Refused
from tests.support.identity.desk import csr, make_desk, new_key, signature

CHANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    with make_desk(tmp_path_factory.mktemp("desk")) as made:
        yield made


@pytest.fixture(scope="module")
def sample(desk) -> tuple[str, str, str]:
    """A certificate, a request and the signature under it that were good."""
    key = new_key()
    token = desk.invite("pi-1", 3600).token
    request = csr(key)
    answer = desk.enrol(EnrolRequest(token=token, device="pi-1", csr=request))
    return str(answer.certificate), request, signature(key, request)


def spoil(pem: str, changes: list[tuple[int, int]]) -> str:
    """Change bytes of the DER inside."""
    first, *body, last = pem.strip().splitlines()
    before = base64.b64decode("".join(body))
    der = bytearray(before)
    for at, value in changes:
        der[at % len(der)] = value
    assume(der != before)
    return "\n".join([first, base64.encodebytes(der).decode().strip(), last, ""])


@given(changes=CHANGES)
@example(changes=[(8, 1)])  # a version that there is not
def test_a_spoilt_request_is_refused(sample, changes) -> None:
    spoilt = spoil(sample[1], changes)
    with pytest.raises(Refused):
        requested_key(spoilt)


@given(changes=CHANGES)
@example(changes=[(12, 1)])  # a version that there is not
@example(changes=[(1996, 0)])  # the subject is no name: found out only when it is read
def test_a_spoilt_certificate_renews_nothing(desk: EnrolmentAuthority, sample, changes) -> None:
    certificate, request, made = sample
    spoilt = spoil(certificate, changes)
    with pytest.raises(Refused):
        desk.renew(RenewRequest(certificate=spoilt, csr=request, signature=made))


@given(text=st.text(max_size=300))
@example("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
@example("-----BEGIN CERTIFICATE REQUEST-----\nMAAwAA==\n-----END CERTIFICATE REQUEST-----\n")
@example("\x00" * 100)
def test_any_text_is_refused(text: str) -> None:
    for read in (requested_key, read_certificate):
        with pytest.raises(Refused):
            read(text)


@given(word=st.text(max_size=200), cut=st.integers(0, 400), at=st.integers(0, 400))
def test_an_invite_is_whole_or_misconfigured(desk: EnrolmentAuthority, word: str, cut: int, at: int) -> None:
    good = Invite(url=desk.url, ca_sha256=desk.authority.ca_sha256, token="A" * 43, device="pi-1").encode()
    for text in (word, "lichen1." + word, good[:cut], good[:at] + "x" + good[at + 1 :]):
        with contextlib.suppress(Misconfigured):
            assert Invite.decode(text).url.startswith("https://")
    assert Invite.decode(f" {good}\n").device == "pi-1"


@given(body=st.binary(max_size=400))
@example(b'{"certificate":"x","csr":"x","signature":"\xff"}')
def test_a_signature_of_any_bytes_is_refused(desk: EnrolmentAuthority, sample, body: bytes) -> None:
    certificate, request, _ = sample
    for text in (base64.b64encode(body).decode() or "A", body.decode("latin1") or "A"):
        with pytest.raises(Refused):
            desk.renew(RenewRequest(certificate=certificate, csr=request, signature=text))
