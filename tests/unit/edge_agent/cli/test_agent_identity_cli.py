"""``lichen agent enroll`` as a person or a script meets it."""

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge_agent.cli.main import app
from edge_agent.config.agent import read
from protocol.errors import Reason
from tests.support.identity.pki import FLEET, HOST, Pki
from tests.support.identity.stub import Stub, refusal

CONFIG = """
state_dir = "state"
cache_dir = "cache"
[[source]]
kind = "system"
[source.modalities]
machine = ["load.1"]
"""


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def stub(pki):
    with Stub(pki) as running:
        yield running


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text(CONFIG)
    return path


def enroll(config, *words, stdin=None):
    return CliRunner().invoke(app, ["enroll", "--config", str(config), "--wait", "1", *words], input=stdin)


def test_a_device_without_names_gets_them_and_the_agent_just_works(config, stub):
    stub.broker_port = 18883
    done = enroll(config, stub.invite().encode())
    assert done.exit_code == 0, done.output
    assert "enrolled as d1 in the fleet test" in done.output
    settings = read(config)
    assert (settings.fleet, settings.device) == (FLEET, "d1")
    assert settings.mqtt.where == f"{HOST}:18883"
    folder = config.parent / "state" / "identity"
    assert settings.mqtt.tls.cert_file == settings.mqtt.tls.key_file == folder / "device.pem"
    assert settings.mqtt.tls.ca_file == folder / "ca.pem"
    drop_in = config.parent / "agent.d" / "50-identity.toml"
    assert stat.S_IMODE(drop_in.stat().st_mode) == 0o644, "the service may be another user"
    assert str(config.parent) not in drop_in.read_text(), "the folder can move"
    checked = CliRunner().invoke(app, ["check", "--config", str(config), "--format", "json"])
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.stdout)["device"] == "d1"


def test_json_says_the_same(config, stub):
    done = enroll(config, stub.invite().encode(), "--format", "json")
    found = json.loads(done.stdout)
    assert found["status"] == "enrolled"
    assert found["device"] == "d1"
    assert "token" not in done.stdout
    again = enroll(config, stub.invite().encode(), "--format", "json")
    assert json.loads(again.stdout) == found | {"status": "already"}


@pytest.mark.parametrize("how", ["file", "dash", "pipe"])
def test_the_invite_need_not_stand_on_the_command_line(config, stub, how, tmp_path):
    word = stub.invite().encode()
    (tmp_path / "invite").write_text(word + "\n")
    options = {
        "file": ["--invite-file", str(tmp_path / "invite")],
        "dash": ["--invite-file", "-"],
        "pipe": [],
    }
    done = enroll(config, *options[how], stdin=None if how == "file" else word)
    assert done.exit_code == 0, done.output


def test_a_lost_drop_in_is_written_again(config, stub):
    enroll(config, stub.invite().encode())
    drop_in = config.parent / "agent.d" / "50-identity.toml"
    text = drop_in.read_text()
    drop_in.unlink()
    stub.requests.clear()
    assert enroll(config, stub.invite().encode()).exit_code == 0
    assert drop_in.read_text() == text
    assert not stub.requests


def test_the_name_comes_from_the_invite_the_option_or_the_file(config, stub):
    anyone = stub.invite(device=None).encode()
    done = enroll(config, anyone)
    assert done.exit_code == 78
    assert "--device NAME" in done.output
    assert enroll(config, stub.invite().encode(), "--device", "d2").exit_code == 78
    assert enroll(config, anyone, "--device", "a/b").exit_code == 78
    config.write_text('device = "from-the-file"\n' + CONFIG)
    assert enroll(config, anyone).exit_code == 0
    assert read(config).device == "from-the-file"


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (refusal(Reason.BAD_INVITE, "it has expired"), 77, "it has expired"),
        (refusal(Reason.REVOKED, "d1 was revoked"), 77, "d1 was revoked"),
        ((503, b""), 75, "cannot answer now"),
    ],
)
def test_exit_codes(config, stub, reply, code, words):
    stub.on_request = lambda path, _body: reply if path == "/v1/enrol" else None
    done = enroll(config, stub.invite().encode(), "--format", "json")
    assert done.exit_code == code
    said = json.loads(done.stdout)
    assert words in said["error"]
    assert ("reason" in said) == (code == 77)
    assert not said["error"].startswith(("bad_invite", "revoked")), "the word for programs stands apart"
    assert words in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["hello"], 78),
        (["lichen1.AAAA"], 78),
        (["x", "--invite-file", "y"], 2),
        (["--invite-file", "/no/such/file"], 78),
    ],
)
def test_what_is_no_invite(config, words, code):
    assert enroll(config, *words).exit_code == code


def test_a_folder_that_is_a_file_is_said_before_the_invite_is_used(config, stub):
    (config.parent / "agent.d").write_text("")
    done = enroll(config, stub.invite().encode())
    assert done.exit_code == 78
    assert "agent.d" in done.output
    assert not stub.requests


def test_a_later_drop_in_that_wins_is_named(config, stub):
    (config.parent / "agent.d").mkdir()
    (config.parent / "agent.d" / "60-mine.toml").write_text('device = "other"\n')
    done = enroll(config, stub.invite().encode())
    assert done.exit_code == 78
    assert "'other'" in done.output
    assert "wins over" in done.output


def test_a_path_with_quotes_and_spaces(tmp_path, stub):
    folder = tmp_path / 'a "b" \\ c'
    folder.mkdir()
    config = folder / "agent.toml"
    config.write_text(CONFIG.replace('"state"', json.dumps(str(tmp_path / 'x "y" \\ z'))))
    assert enroll(config, stub.invite().encode()).exit_code == 0
    assert read(config).mqtt.tls.cert_file == tmp_path / 'x "y" \\ z' / "identity" / "device.pem"


def test_a_key_that_others_can_read_is_a_warning_of_check(config, stub):
    enroll(config, stub.invite().encode())
    (config.parent / "state" / "identity" / "device.pem").chmod(0o644)
    checked = CliRunner().invoke(app, ["check", "--config", str(config), "--format", "json"])
    assert any("chmod 600" in words for words in json.loads(checked.stdout)["warnings"])


@pytest.fixture
def services():
    """The configuration, root's, of a service that runs as another user, to whom ``state`` belongs."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "agent.toml").write_text(CONFIG)
    (folder / "state").mkdir()
    os.chown(folder / "state", 12345, 12345)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: only root acts as somebody else")
def test_root_enrols_for_the_services_user(services, stub):
    done = enroll(services / "agent.toml", stub.invite().encode())
    assert done.exit_code == 0, done.output
    made = list((services / "state").rglob("*"))
    assert len(made) > 3
    assert {path.stat().st_uid for path in made} == {12345}
    assert (services / "agent.d" / "50-identity.toml").stat().st_uid == 0
    assert os.geteuid() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED LOUDLY: only root acts as somebody else")
def test_the_services_user_cannot_make_root_give_it_another_folder(services, stub):
    roots = services / "roots"
    roots.mkdir(mode=0o755)
    (roots / "shadow").write_text("x")
    (services / "state" / "identity").symlink_to(roots)
    done = enroll(services / "agent.toml", stub.invite().encode())
    assert done.exit_code == 78, done.output
    assert [path.name for path in roots.iterdir()] == ["shadow"]
    assert {path.stat().st_uid for path in (roots, roots / "shadow")} == {0}
    assert stat.S_IMODE(roots.stat().st_mode) == 0o755
