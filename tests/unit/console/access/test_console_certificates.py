"""Sign-in by a person's certificate over TLS: whose counts, and whose does not."""

import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
from typer.testing import CliRunner

from console.access.tls import TlsFiles
from console.cli import app
from coordinator.actions import people
from coordinator.audit.log import AuditLog
from coordinator.identity.authority import PERSON_PREFIX, Authority
from coordinator.identity.certificates import key_pem
from coordinator.identity.paths import IdentityPaths
from coordinator.identity.person_certificates import PersonCertificates
from coordinator.identity.setup import init
from protocol.errors import Misconfigured, Refused
from tests.support.console.consoles import ADMIN, Client, running, signed_in, with_tables
from tests.support.identity.desk import csr, new_key

TLS = {"tls": True}


@pytest.fixture
def settings(tmp_path):
    made = with_tables(tmp_path)
    init(made, ["localhost", "127.0.0.1"])
    return made


def browser(settings, console, pem: bytes = b"") -> Client:
    """With a certificate and its key, or with none."""
    places = IdentityPaths.of(settings)
    context = ssl.create_default_context(cafile=str(places.authority / "ca.crt"))
    if pem:
        file = settings.state_dir.parent / f"{time.monotonic_ns()}.pem"
        file.write_bytes(pem)
        context.load_cert_chain(file)
    return Client(console.url, context)


def enter(client: Client):
    return client.form("/sign-in/certificate", {"next": "/"})


def test_console_a_persons_certificate_signs_in(settings):
    made = people.add(settings, ADMIN, "ann", "operator", 30.0)
    with running(settings, **TLS) as console:
        ann = browser(settings, console, made.pem)
        page = ann.get("/sign-in")
        assert (
            "Your certificate is that of <strong>ann</strong> with the role <strong>operator</strong>"
            in page.body
        )
        assert ann.get("/").status == 303, "a certificate alone is no session"
        entered = enter(ann)
        assert entered.status == 303
        [cookie] = entered.cookies
        assert cookie.startswith("__Host-lichen_console=")
        for part in ("; HttpOnly", "; Path=/", "; SameSite=strict", "; Secure"):
            assert part in cookie
        assert "domain" not in cookie.lower()
        who = ann.get("/api/v1/session").json
        assert (who["name"], who["role"]) == ("ann", "operator")
        assert who["how"].startswith("certificate ")
        assert ann.post("/api/v1/rounds/hold", {"seen": "open"}).status == 200


def test_console_who_is_no_person_is_not_signed_in(settings, tmp_path):
    places = IdentityPaths.of(settings)
    authority = Authority.load(places.authority)
    ann = people.add(settings, ADMIN, "ann", "admin", 30.0)
    key = new_key()

    def device(name: str) -> bytes:
        return authority.issue_device(csr(key), name).certificate_pem.encode() + key_pem(key)

    unregistered = authority.issue_person("ann", 30.0).both_pem
    with running(settings, **TLS) as console:
        own = places.coordinator.read_bytes()
        for name, pem in {"pi": device("pi"), "ann": device("ann"), "coordinator": own}.items():
            client = browser(settings, console, pem)
            assert "those of devices sign nobody in" in client.get("/sign-in").body, name
            assert enter(client).status == 403, name
            assert not client.jar
        # Even a device that has a person's name in its certificate is none: its serial is not in the tables.
        forged = device(f"{PERSON_PREFIX}ann")
        for pem in (forged, unregistered):
            client = browser(settings, console, pem)
            refused = enter(client)
            assert (refused.status, "this one does not count any more" in refused.body) == (403, True)
        assert enter(browser(settings, console)).status == 403
        assert enter(browser(settings, console, ann.pem)).status == 303

        other = Authority.create(tmp_path / "other", "test", ["localhost"])
        with pytest.raises(OSError, match=r"(?i)ssl|reset|closed|pipe"):
            enter(browser(settings, console, other.issue_person("ann", 30.0).both_pem))


def test_console_an_expired_certificate_signs_nobody_in(tmp_path):
    settings = with_tables(tmp_path)
    places, day = IdentityPaths.of(settings), 86400
    Authority.create(
        places.authority, "test", ["localhost", "127.0.0.1"], wall=lambda: time.time() - 90 * day
    )
    init(settings, [])
    long_ago = Authority.load(places.authority, wall=lambda: time.time() - 40 * day)
    made = long_ago.issue_person("ann", 1.0)
    with AuditLog(settings.location) as log, log.change() as tables:
        row = ("ann", "admin", format(made.serial, "x"), made.not_after, 0.0, None)
        tables.execute("INSERT INTO people VALUES (?, ?, ?, ?, ?, ?)", row)
    with running(settings, **TLS) as console, pytest.raises(OSError, match=r"(?i)ssl|reset|closed|pipe"):
        enter(browser(settings, console, made.both_pem))
    der = x509.load_pem_x509_certificate(made.certificate_pem.encode()).public_bytes(Encoding.DER)
    with pytest.raises(Refused, match="the certificate has expired"):
        PersonCertificates(places.authority / "ca.crt").read(der, time.time())


def test_console_a_revoked_or_renewed_certificate_counts_no_more(settings):
    first = people.add(settings, ADMIN, "ann", "operator", 30.0)
    with running(settings, **TLS) as console:
        ann = browser(settings, console, first.pem)
        assert enter(ann).status == 303
        second = people.renew(settings, ADMIN, "ann", 30.0)
        assert enter(browser(settings, console, first.pem)).status == 403
        renewed = browser(settings, console, second.pem)
        assert enter(renewed).status == 303
        people.revoke(settings, ADMIN, "ann")
        assert [one.get("/").status for one in (ann, renewed)] == [303, 303], "sessions end at once"
        refused = enter(renewed)
        assert (refused.status, "ann was revoked" in refused.body) == (403, True)
        again = people.add(settings, ADMIN, "ann", "viewer", 30.0)
        assert enter(browser(settings, console, second.pem)).status == 403
        assert enter(browser(settings, console, again.pem)).status == 303


def test_console_who_gets_a_certificate_has_its_role_in_earlier_sessions_and_links_too(settings):
    tokens = [people.link(settings, ADMIN, "ann", "admin")[0] for _ in range(2)]
    with running(settings, **TLS) as console:
        before, after = browser(settings, console), browser(settings, console)
        assert before.form("/sign-in", {"token": tokens[0]}).status == 303
        assert before.get("/api/v1/session").json["role"] == "admin"
        people.add(settings, ADMIN, "ann", "viewer", 30.0)
        assert after.form("/sign-in", {"token": tokens[1]}).status == 303
        roles = [one.get("/api/v1/session").json["role"] for one in (before, after)]
        assert roles == ["viewer", "viewer"]


def test_console_a_session_ends_with_the_certificate(settings):
    made = people.add(settings, ADMIN, "ann", "operator", 0.1)
    with running(settings, **TLS) as console:
        assert enter(browser(settings, console, made.pem)).status == 303
    with AuditLog(settings.location) as log:
        [row] = log.rows("SELECT expires_wall FROM sessions")
    assert row["expires_wall"] == made.not_after


def test_console_other_machines_are_served_with_tls_alone(tmp_path):
    bare = with_tables(tmp_path)
    words = "--tls-cert and --tls-key, or make the fleet's authority"
    with pytest.raises(Misconfigured, match=words), running(bare, listen="0.0.0.0:0"):
        pass
    init(bare, ["localhost", "127.0.0.1"])
    with running(bare, listen="0.0.0.0:0") as console:
        port = console.url.rpartition(":")[2]
        console.url = f"https://127.0.0.1:{port}"
        client = browser(bare, console)
        assert client.get("/").status == 303, "nobody looks without a sign-in"
        with pytest.raises((ConnectionError, OSError, Exception)):
            Client(f"http://127.0.0.1:{port}").get("/")


def test_console_given_files_are_used_and_named_if_they_are_wrong(settings, tmp_path):
    pair = tmp_path / "pair.pem"
    pair.write_bytes(
        Authority.load(IdentityPaths.of(settings).authority).issue_server(["127.0.0.1"]).both_pem
    )
    with running(settings, files=TlsFiles(pair, pair)) as console:
        assert browser(settings, console).get("/sign-in").status == 200
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for file in (wrong, tmp_path / "missing.pem"):
        with (
            pytest.raises(Misconfigured, match="--tls-cert, --tls-key"),
            running(settings, files=TlsFiles(file, file)),
        ):
            pass


def config_of(settings) -> Path:
    file = settings.state_dir.parent / "coordinator.toml"
    file.write_text(f'fleet = "test"\nstate_dir = "{settings.state_dir}"\ntask = "{settings.task}"\n')
    return file


def test_console_commands_make_certificates_and_links(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, run = ["--config", str(config_of(settings))], CliRunner().invoke
    done = run(app, ["person", "add", "ann", "--role", "operator", "--pem", "ann.pem", *config])
    assert done.exit_code == 0, done.output
    password = done.output.split("Its password: ")[1].split()[0]
    key, certificate, more = pkcs12.load_key_and_certificates(Path("ann.p12").read_bytes(), password.encode())
    assert key is not None
    assert certificate.subject.rfc4514_string().startswith("CN=person\\+ann")
    assert len(more) == 1
    for file in ("ann.p12", "ann.pem"):
        assert Path(file).stat().st_mode & 0o077 == 0, file
    again = run(app, ["person", "add", "ann", *config])
    assert "ann is known already, as operator" in str(again.exception)
    link = run(app, ["link", "--name", "ann", "--address", "https://console.example:8480/", *config])
    url = link.stdout.splitlines()[0]
    assert url.startswith("https://console.example:8480/sign-in?token=")
    other = run(app, ["link", "--name", "ann", "--role", "admin", *config])
    assert "ann has the role operator" in str(other.exception)
    listed = run(app, ["person", "ls", *config])
    assert "open link for ann (operator)" in listed.output
    with running(settings, closed=True) as console:
        client = Client(console.url)
        assert client.form("/sign-in", {"token": url.partition("=")[2]}).status == 303
        assert run(app, ["person", "role", "ann", "--role", "viewer", *config]).exit_code == 0
        assert client.get("/api/v1/session").json["role"] == "viewer"
        assert "sessions ended: 1" in run(app, ["person", "revoke", "ann", *config]).output
        assert client.get("/").status == 303
        signed_in(console, settings, "viewer", "bob")
        assert "bob that ended: 1" in run(app, ["person", "sign-out", "bob", *config]).output
