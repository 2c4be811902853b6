"""The fleet's secret: made once, given to devices by hand, shown to nobody."""

import errno
import json
import stat

import pytest
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.config.agent import read as read_config
from edge_agent.identity import fleet_secret as secrets
from protocol.errors import Misconfigured
from tests.unit.edge_agent.cli.test_agent_identity_cli import config, enroll, pki, stub

__all__ = ["config", "pki", "stub"]


def make(path, *options):
    return CliRunner().invoke(app, ["secret", str(path), *options])


def test_a_secret_is_made_once_for_its_owner_alone_and_its_print_tells_it_apart(tmp_path):
    path = tmp_path / "fleet.secret"
    made = json.loads(make(path, "--format", "json").stdout)
    assert made == {"file": str(path), "made": True, "print": secrets.fingerprint(secrets.read(path))}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(secrets.read(path)) == 32
    again = make(path)
    assert again.exit_code == 0
    assert f"already exists; its fingerprint is {made['print']}" in again.stdout
    assert path.read_text().strip() not in again.stdout
    assert secrets.fingerprint(secrets.make(tmp_path / "other")) != made["print"]


def test_what_is_no_secret_is_not_taken_for_one(tmp_path):
    path = tmp_path / "fleet.secret"
    for content in (b"", b"secret", b"ab" * 15, b"ab" * 65, b"ab" * 32 + b"\ncd", b"\x00" * 32):
        path.write_bytes(content)
        with pytest.raises(Misconfigured, match=r"fleet\.secret: not the secret of a fleet"):
            secrets.read(path)
        assert make(path).exit_code == 78
        assert path.read_bytes() == content, "nothing is written over it"


def test_a_secret_that_is_closed_to_the_agent_is_told_with_what_to_do(tmp_path, monkeypatch):
    def closed(*_args):
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "fleet.secret"
    secrets.make(path)
    monkeypatch.setattr(type(path), "open", closed)
    with pytest.raises(Misconfigured, match="denied: it must be readable for the user"):
        secrets.read(path)


def test_a_folder_that_is_closed_is_told_in_words(tmp_path, monkeypatch):
    def closed(*_args, **_more):
        raise PermissionError(errno.EACCES, "Permission denied")

    path = tmp_path / "closed" / "fleet.secret"
    with monkeypatch.context() as patch:
        patch.setattr(type(path), "stat", closed)
        patch.setattr(type(path), "mkdir", closed)
        done = make(path, "--format", "json")
    assert done.exit_code == 78
    assert "Permission denied" in json.loads(done.stdout)["error"]


def test_enrolment_puts_it_in_place_and_keeps_the_one_that_is_there(config, stub, tmp_path):
    given, other = tmp_path / "given", tmp_path / "other"
    secret = secrets.make(given)
    secrets.make(other)
    word = stub.invite().encode()
    done = enroll(config, word, "--fleet-secret", str(given))
    assert done.exit_code == 0, done.output
    assert f"the same on all devices, is {secrets.fingerprint(secret)}" in " ".join(done.output.split())
    kept = secrets.secret_path(read_config(config))
    assert kept == config.parent / "state" / "identity" / "fleet.secret"
    assert secrets.read(kept) == secret
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stub.requests
    assert not any(found in body for _, body in stub.requests for found in (secret, secret.hex().encode()))
    kept.chmod(0o644)
    again = enroll(config, word, "--fleet-secret", str(given), "--format", "json")
    assert (again.exit_code, json.loads(again.stdout)["fleet_secret"]) == (0, secrets.fingerprint(secret))
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    refused = enroll(config, word, "--fleet-secret", str(other))
    assert refused.exit_code == 78
    assert "another secret is there" in refused.output
    assert secrets.read(kept) == secret


def test_a_secret_that_cannot_be_read_ends_the_enrolment_before_anybody_is_asked(config, stub, tmp_path):
    done = enroll(config, stub.invite().encode(), "--fleet-secret", str(tmp_path / "none"))
    assert done.exit_code == 78
    assert "the fleet's secret is missing" in done.output
    assert not stub.requests
