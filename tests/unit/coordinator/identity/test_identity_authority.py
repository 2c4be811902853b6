"""The authority: what it signs, what it believes, and that it is made once."""

import base64
import datetime as dt
import ssl
import stat
import threading
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from coordinator.identity.authority import Authority
from coordinator.identity.certificates import Revoked, common_name, requested_key
from protocol.enrolment import COORDINATOR_NAME
from protocol.errors import Misconfigured, Reason, Refused
from tests.support.identity.desk import csr, new_key

DAY = 86400.0


@pytest.fixture
def authority(tmp_path) -> Authority:
    return Authority.create(tmp_path / "authority", "test", ["localhost", "127.0.0.1"])


def read(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


def test_a_device_gets_its_name_and_nothing_else_that_it_asked_for(authority) -> None:
    key = new_key()
    issued = authority.issue_device(csr(key, "@coordinator"), "pi-1", 90)
    made = read(issued.certificate_pem)
    assert common_name(made) == "pi-1"
    assert made.public_key() == key.public_key()
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH], "else it could stand in for the broker"
    with pytest.raises(x509.ExtensionNotFound):
        made.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert authority.signed_by_us(made)
    assert issued.serial == made.serial_number
    assert 89 * DAY < issued.not_after - time.time() < 91 * DAY
    assert dt.datetime.now(dt.UTC) - made.not_valid_before_utc > dt.timedelta(hours=23)


def test_no_certificate_outlives_the_authority(tmp_path) -> None:
    late = Authority.create(tmp_path / "a", "test", ["h"], wall=lambda: 1e9)
    issued = late.issue_device(csr(new_key()), "pi-1", 3650 * 3)
    assert issued.not_after == late.not_after


def rsa_csr() -> str:
    return csr(rsa.generate_private_key(65537, 2048))


def spoiled_csr() -> str:
    der = bytearray(x509.load_pem_x509_csr(csr(new_key()).encode()).public_bytes(serialization.Encoding.DER))
    der[-3] ^= 1
    body = base64.encodebytes(bytes(der)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda: "",
        lambda: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        lambda: "\ud800",
        rsa_csr,
        lambda: csr(ec.generate_private_key(ec.SECP384R1())),
        lambda: csr(new_key())[:200],
        spoiled_csr,
        lambda: "x" * 20_000,
    ],
    ids=["empty", "no-der", "surrogate", "rsa", "p384", "cut", "forged-signature", "huge"],
)
def test_a_request_that_is_not_sound_is_refused(make) -> None:
    with pytest.raises(Refused) as found:
        requested_key(make())
    assert found.value.reason in (Reason.MALFORMED, Reason.TOO_LARGE)


def test_an_ed25519_request_is_refused_in_words() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    made = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, None)
    with pytest.raises(Refused, match="P-256"):
        requested_key(made.public_bytes(serialization.Encoding.PEM).decode())


def test_the_key_is_ours_alone_and_is_refused_where_it_is_not(authority) -> None:
    folder = authority.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())
    (folder / "ca.key").chmod(0o640)
    with pytest.raises(Misconfigured, match="chmod 600"):
        Authority.load(folder)


def test_it_is_loaded_as_it_was_made_and_never_made_again(authority) -> None:
    again = Authority.load(authority.folder)
    assert (again.ca_sha256, again.hosts, again.fleet) == (authority.ca_sha256, authority.hosts, "test")
    with pytest.raises(Misconfigured, match="never overwritten"):
        Authority.create(authority.folder, "test", ["h"])
    assert Authority.load(authority.folder).ca_sha256 == authority.ca_sha256
    assert list(authority.folder.parent.iterdir()) == [authority.folder], "nothing half made is left"


def test_of_two_who_make_it_at_once_one_has_its_way(tmp_path) -> None:
    made: list[str] = []
    refused: list[str] = []

    def make() -> None:
        try:
            made.append(Authority.create(tmp_path / "a", "test", ["h"]).ca_sha256)
        except Misconfigured as error:
            refused.append(str(error))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (len(made), len(refused)) == (1, 5)
    assert Authority.load(tmp_path / "a").ca_sha256 == made[0]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("ca.key", b"nonsense", "ca.key: cannot be read"),
        ("ca.crt", b"", "ca.crt: cannot be read"),
        ("authority.json", b"{}", "authority.json: cannot be read"),
    ],
)
def test_a_damaged_file_is_named(authority, name: str, data: bytes, words: str) -> None:
    (authority.folder / name).write_bytes(data)
    with pytest.raises(Misconfigured, match=words):
        Authority.load(authority.folder)


def test_a_key_of_another_authority_is_found_out(authority, tmp_path) -> None:
    other = Authority.create(tmp_path / "other", "test", ["h"])
    (authority.folder / "ca.key").write_bytes((other.folder / "ca.key").read_bytes())
    with pytest.raises(Misconfigured, match=r"ca\.key is not the key of ca\.crt"):
        Authority.load(authority.folder)


def test_no_authority_says_what_makes_one(tmp_path) -> None:
    with pytest.raises(Misconfigured, match="lichen coordinator init"):
        Authority.load(tmp_path / "none")


@pytest.mark.parametrize("hosts", [[], ["bad host"], ["x" * 300], ["a\nb"]])
def test_hosts_that_are_none_are_refused(tmp_path, hosts: list[str]) -> None:
    with pytest.raises(Misconfigured):
        Authority.create(tmp_path / "a", "test", hosts)
    assert not (tmp_path / "a").exists()


def test_hosts_are_written_as_a_certificate_spells_them(tmp_path) -> None:
    made = Authority.create(tmp_path / "a", "test", ["Pi.Local", "0:0::1", "pi.local"])
    assert made.hosts == ("pi.local", "::1")
    assert made.with_hosts(["pi.local", "10.0.0.7"]).hosts == ("pi.local", "10.0.0.7")
    assert Authority.load(tmp_path / "a").hosts == ("pi.local", "10.0.0.7")


def test_what_it_signs_for_itself(authority) -> None:
    server = read(authority.issue_server().certificate_pem)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(n.value) for n in names} == {"localhost", "127.0.0.1"}
    usage = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert common_name(read(authority.issue_coordinator().certificate_pem)) == COORDINATOR_NAME
    assert common_name(read(authority.issue_observer().certificate_pem)) == "@observer"


def test_openssl_takes_the_chain_with_its_strictest_checks(authority, tmp_path) -> None:
    """Python 3.13 turns them on for everybody."""
    (tmp_path / "server.pem").write_bytes(authority.issue_server().both_pem)
    client = ssl.create_default_context(cadata=authority.ca_pem)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server.pem")
    shake(client, served, "localhost")


def test_a_device_cannot_pose_as_a_server(authority, tmp_path) -> None:
    key = new_key()
    pem = authority.issue_device(csr(key, "localhost"), "localhost").certificate_pem.encode()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "device.pem").write_bytes(pem + private)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "device.pem")
    client = ssl.create_default_context(cadata=authority.ca_pem)
    client.check_hostname = False  # its purpose alone must be enough
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake(client, served, None)


def shake(client: ssl.SSLContext, served: ssl.SSLContext, host: str | None) -> None:
    """A handshake in memory."""
    down, up = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(down, up, server_hostname=host)
    far = served.wrap_bio(up, down, server_side=True)
    done: set[int] = set()
    for _ in range(10):
        for end in (near, far):
            if id(end) in done:
                continue
            try:
                end.do_handshake()
                done.add(id(end))
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2


def test_the_list_of_the_revoked_counts_at_once_and_never_runs_out(authority) -> None:
    now = time.time()
    data = authority.crl_pem([Revoked(7, now), Revoked(2**150, now)], number=3)
    made = x509.load_pem_x509_crl(data)
    assert {one.serial_number for one in made} == {7, 2**150}
    assert made.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 3
    assert made.next_update_utc is not None
    assert made.next_update_utc.timestamp() == authority.not_after
    assert made.last_update_utc.timestamp() < now - DAY / 2
    key = x509.load_pem_x509_certificate(authority.ca_pem.encode()).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert made.is_signature_valid(key)
