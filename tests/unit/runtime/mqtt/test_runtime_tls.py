"""TLS of the link: files that change, and a clock that is wrong. Real handshakes over 127.0.0.1."""

import datetime as dt
import json
import os
import socket
import ssl
import threading
import time
from contextlib import closing

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protocol.errors import Misconfigured
from runtime.mqtt.certificate_dates import known_since, not_before
from runtime.mqtt.errors import dial_words
from runtime.mqtt.link import tls_context
from runtime.mqtt.tls import NO_CHECK_TIME, TlsContexts
from runtime.settings.load import MqttSettings, TlsSettings
from tests.support.identity.pki import DAY_S, HOST, Pki

YEAR_1970 = 3600.0


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tomorrow(tmp_path_factory):
    """Everything was issued three days from now: our clock is three days behind."""
    return Pki(tmp_path_factory.mktemp("tomorrow"), ahead_s=3 * DAY_S)


def settings_of(shown) -> MqttSettings:
    tls = TlsSettings(ca_file=shown.ca, cert_file=shown.pair, key_file=shown.pair)
    return MqttSettings(host=HOST, tls=tls)


def shake(trust: TlsContexts, server_pem, host: str = HOST) -> None:
    """One handshake with a server that has this certificate. Raises what the client met."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server_pem)
    with closing(socket.create_server((HOST, 0))) as listener:
        listener.settimeout(10)
        thread = threading.Thread(target=_serve, args=(listener, serving))
        thread.start()
        try:
            plain = socket.create_connection(listener.getsockname(), 10)
            with closing(plain), trust.context().wrap_socket(plain, server_hostname=host) as secure:
                secure.settimeout(10)
                assert secure.recv(2) == b"hi"
        finally:
            thread.join(10)


def _serve(listener, serving) -> None:
    try:
        plain, _ = listener.accept()
        with closing(plain), serving.wrap_socket(plain, server_side=True) as secure:
            secure.sendall(b"hi")
    except OSError:
        return  # the client did not trust us, or never came


def test_in_order(pki):
    shake(TlsContexts(settings_of(pki.device("d1"))), pki.server())


def test_with_a_clock_far_behind_dates_do_not_count_and_a_warning_says_so(tomorrow):
    trust = TlsContexts(settings_of(tomorrow.device("d1")))
    with structlog.testing.capture_logs() as logs:
        shake(trust, tomorrow.server())
        shake(trust, tomorrow.server())
    assert [line["log_level"] for line in logs] == ["warning"]
    assert "clock" in logs[0]["event"]


def test_with_a_clock_behind_the_chain_still_counts(tomorrow, pki):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|signature"):
        shake(TlsContexts(settings_of(tomorrow.device("d1"))), pki.server())


def test_with_a_clock_behind_the_host_name_still_counts(tomorrow):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(TlsContexts(settings_of(tomorrow.device("d1"))), tomorrow.server(["elsewhere.example"]))


def test_dates_count_again_once_the_clock_is_right(pki):
    wall = [YEAR_1970]
    trust = TlsContexts(settings_of(pki.device("d1")), wall=lambda: wall[0])
    expired = _expired_server(pki)
    shake(trust, expired)  # in 1970 nobody can tell
    wall[0] = time.time()
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(trust, expired)
    wall[0] = YEAR_1970
    shake(trust, expired)


def _expired_server(pki):
    return pki.dated_server(-30 * DAY_S, -DAY_S)


def test_a_clock_that_is_ahead_is_named_where_a_certificate_seems_to_have_run_out(pki):
    settings = settings_of(pki.device("d1"))
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake(TlsContexts(settings), _expired_server(pki))
    words = dial_words(settings, caught.value)
    assert "expired" in words
    assert "this machine's clock says 20" in words


def test_a_server_renewed_after_our_own_certificate_is_believed_at_the_second_try(pki):
    """The clock stands where it was switched off: after our certificate, before the broker's new one."""
    trust, newer = TlsContexts(settings_of(pki.device("d1"))), pki.dated_server(DAY_S, 90 * DAY_S)
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shake(trust, newer)
    shake(trust, newer)
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shake(trust, newer)  # asked strictly each time: the clock may be right by now
    shake(trust, newer)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(trust, newer, "localhost.example")


def test_an_expired_certificate_does_not_profit_from_an_early_one(pki):
    trust = TlsContexts(settings_of(pki.device("d1")))
    for _ in range(3):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            shake(trust, _expired_server(pki))


def test_the_record_of_the_true_issue_counts_more_than_the_back_dated_certificate(pki, tmp_path):
    folder = pki.enrolled(tmp_path, "d1")
    tls = TlsSettings(ca_file=folder.authority, cert_file=folder.pair, key_file=folder.pair)
    between = time.time() - 3600.0  # after the certificate's own beginning, before its issue
    flags = TlsContexts(MqttSettings(tls=tls), wall=lambda: between).context().verify_flags
    assert flags & NO_CHECK_TIME
    folder.record.unlink()
    flags = TlsContexts(MqttSettings(tls=tls), wall=lambda: between).context().verify_flags
    assert not flags & NO_CHECK_TIME
    flags = TlsContexts(MqttSettings(tls=tls), wall=lambda: between - DAY_S).context().verify_flags
    assert flags & NO_CHECK_TIME


@pytest.mark.parametrize("record", ["", "[]", "{", '{"issued_at": "soon"}', '{"issued_at": null}'])
def test_a_damaged_record_is_no_time(pki, tmp_path, record):
    folder = pki.enrolled(tmp_path, "d1")
    folder.record.write_text(record)
    assert known_since(folder.pair, []) == not_before(folder.pair.read_text())


def test_a_new_pair_is_used_at_the_next_connection(pki, tmp_path):
    folder = pki.enrolled(tmp_path, "d1")
    tls = TlsSettings(ca_file=folder.authority, cert_file=folder.pair, key_file=folder.pair)
    trust = TlsContexts(MqttSettings(tls=tls))
    first = trust.context()
    assert trust.context() is first, "nothing changed: nothing is read again"
    folder.write(folder.pair, pki.device("d1").pair.read_bytes())
    assert trust.context() is not first


def test_files_that_vanish_while_it_runs_are_said_and_the_last_ones_used_on(pki, tmp_path):
    folder = pki.enrolled(tmp_path, "d1")
    tls = TlsSettings(ca_file=folder.authority, cert_file=folder.pair, key_file=folder.pair)
    trust = TlsContexts(MqttSettings(tls=tls))
    first = trust.context()
    folder.pair.write_text("rubbish")
    with structlog.testing.capture_logs() as logs:
        assert trust.context() is first
        assert trust.context() is first
    assert len(logs) == 1
    folder.pair.unlink()
    assert trust.context() is first
    with pytest.raises(Misconfigured, match=r"mqtt\.tls\.cert_file and key_file"):
        tls_context(MqttSettings(tls=tls))


def test_what_the_broker_has_against_us_stands_until_it_speaks_with_us(pki):
    """The alert comes through once in a while only; the words must not flap with it."""
    trust = TlsContexts(settings_of(pki.device("d1")))
    trust.context()
    trust.on_shaken()
    assert trust.alert == ""
    trust.on_alert("SSLV3_ALERT_CERTIFICATE_REVOKED")
    assert "it was revoked" in trust.alert
    for _ in range(3):
        trust.context()
        trust.on_shaken()
        assert "it was revoked" in trust.alert, "cut off before the alert was read"
    trust.on_alert("SSLV3_ALERT_CERTIFICATE_EXPIRED")
    assert "it has expired" in trust.alert
    trust.context()
    assert trust.alert == "", "the broker was not even reached"
    trust.context()
    trust.on_shaken()
    trust.on_alert("SSLV3_ALERT_CERTIFICATE_REVOKED")
    trust.context()
    trust.on_shaken()
    trust.on_data()
    assert trust.alert == ""


def test_a_pair_that_does_not_fit_is_misconfigured(pki):
    one, two = pki.device("d1"), pki.device("d2")
    tls = TlsSettings(ca_file=pki.ca, cert_file=one.pair, key_file=two.pair)
    with pytest.raises(Misconfigured, match="cert_file and key_file"):
        tls_context(MqttSettings(tls=tls))
    assert tls_context(MqttSettings()) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="SKIPPED LOUDLY: root may read everything")
def test_a_file_that_we_may_not_read_is_named(pki, tmp_path):
    folder = pki.enrolled(tmp_path, "d1")
    folder.pair.chmod(0)
    tls = TlsSettings(ca_file=folder.authority, cert_file=folder.pair, key_file=folder.pair)
    with pytest.raises(Misconfigured, match=r"device\.pem"):
        tls_context(MqttSettings(tls=tls))


@pytest.mark.parametrize("year", [1950, 1969, 1970, 1999, 2000, 2026, 2049, 2050, 2071, 2400])
def test_the_date_is_read_as_the_library_reads_it(year):
    key = ec.generate_private_key(ec.SECP256R1())
    begin = dt.datetime(year, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x" * 60)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=9))
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM).decode()
    assert not_before(pem) == begin.timestamp()


def test_what_is_no_certificate_has_no_date(pki):
    pem = pki.server().read_text()
    assert not_before("") is None
    assert not_before(json.dumps({"a": 1})) is None
    lines = pem.splitlines()
    for cut in range(1, len(lines) - 8):
        found = not_before("\n".join([*lines[:cut], "-----END CERTIFICATE-----"]))
        assert found is None or found > 0
    der = ssl.PEM_cert_to_DER_cert(pem.split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----")
    for at in range(120):
        spoilt = bytearray(der)
        spoilt[at] ^= 0xFF
        assert isinstance(not_before(ssl.DER_cert_to_PEM_cert(bytes(spoilt))), float | None)
