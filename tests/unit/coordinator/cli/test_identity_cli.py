"""``lichen coordinator init`` and ``lichen device``, as an operator types them."""

import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli.device import app as device_app
from coordinator.cli.main import app as coordinator_app
from coordinator.config.coordinator import load_settings
from coordinator.identity.certificates import key_print
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.setup import own_names
from lichen.cli import EXTRA_OF, PARTS, main
from protocol.enrolment import EnrolRequest, Invite
from protocol.errors import Misconfigured, Refused, Transient
from protocol.messages import State
from runtime import exit_codes
from runtime.process.run_as_owner import run_as_owner
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import tiny_task
from tests.support.identity.desk import csr, new_key

CONFIG = 'fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n'
IDENTITY = "[identity]\nport = 9443\n"


@pytest.fixture
def config(tmp_path) -> Path:
    file = tmp_path / "coordinator.toml"
    file.write_text(CONFIG + IDENTITY)
    return file


def run(app, *words: str):
    return CliRunner().invoke(app, [str(word) for word in words])


def good(app, *words: str) -> dict:
    done = run(app, *words, "--format", "json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def wrong(app, *words: str, kind: type[Exception] = Misconfigured) -> str:
    done = run(app, *words)
    assert isinstance(done.exception, kind), done.output
    return str(done.exception)


def init(config: Path, *words: str) -> dict:
    return good(coordinator_app, "init", "-c", config, *words)


def ask(config: Path, word: str, key, device: str):
    with EnrolmentAuthority(load_settings(config)) as desk:
        return desk.enrol(EnrolRequest(token=Invite.decode(word).token, device=device, csr=csr(key)))


def test_init_is_given_twice_and_overwrites_nothing(config) -> None:
    first = init(config, "--host", "hub.example", "--host", "10.0.0.7")
    assert first["created"]
    assert first["hosts"] == ["hub.example", "10.0.0.7", "localhost", "127.0.0.1"]
    assert first["url"] == "https://hub.example:9443"
    key = Path(first["authority"]) / "ca.key"
    kept = key.read_bytes(), (Path(first["broker_dir"]) / "server.pem").read_bytes()
    again = init(config)
    assert not again["created"]
    assert (again["ca_sha256"], again["hosts"]) == (first["ca_sha256"], first["hosts"])
    assert (key.read_bytes(), (Path(first["broker_dir"]) / "server.pem").read_bytes()) == kept
    more = init(config, "--host", "other.example")
    assert more["hosts"][0] == "other.example"
    assert more["ca_sha256"] == first["ca_sha256"]
    assert key.read_bytes() == kept[0]
    assert (Path(first["broker_dir"]) / "server.pem").read_bytes() != kept[1], "the new host is in it"


def test_what_init_says_to_write_makes_the_coordinators_link_work(config, tmp_path) -> None:
    made = init(config, "--host", "hub.example")
    tls = made["mqtt"]["tls"]
    assert all(Path(file).is_file() for file in tls.values())
    lines = run(coordinator_app, "init", "-c", config).stdout
    toml = [line.strip() for line in lines.splitlines() if line.startswith("  [mqtt") or " = " in line]
    config.write_text(CONFIG + IDENTITY + "\n".join(toml))
    mqtt = load_settings(config).mqtt
    assert (mqtt.host, mqtt.port) == ("hub.example", 8883)
    assert mqtt.tls is not None
    assert str(mqtt.tls.cert_file) == tls["cert_file"]
    assert tmp_path in Path(tls["cert_file"]).parents


def test_without_a_host_the_machines_own_names_are_taken(config) -> None:
    assert init(config)["hosts"] == list(own_names())
    assert {"localhost", "127.0.0.1"} <= set(own_names())


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("identity.url", 'url = "https://elsewhere:9443"'),
        ("identity.broker_host", 'broker_host = "10.9.9.9"'),
    ],
)
def test_no_device_is_sent_where_our_certificate_does_not_hold(config, key: str, line: str) -> None:
    init(config)
    config.write_text(CONFIG + IDENTITY + line + "\n")
    said = wrong(device_app, "invite", "pi-1", "-c", config)
    assert key in said
    assert "lichen coordinator init --host" in said
    init(config, "--host", "elsewhere", "--host", "10.9.9.9")
    assert good(device_app, "invite", "pi-1", "-c", config)["invite"]


def test_an_authority_of_another_fleet_is_not_touched(config) -> None:
    init(config)
    config.write_text((CONFIG + IDENTITY).replace('"test"', '"other"'))
    for words in (("init",), ("init", "--host", "x")):
        assert "is the authority of 'test'" in wrong(coordinator_app, *words, "-c", config)


def test_invite_list_approve_revoke(config) -> None:
    init(config)
    made = good(device_app, "invite", "pi-1", "-c", config, "--expires", "30m")
    word = Invite.decode(made["invite"])
    assert (word.device, word.url) == ("pi-1", made["url"])
    listed = good(device_app, "ls", "-c", config)
    assert (listed["devices"], [i["device"] for i in listed["invites"]]) == ([], ["pi-1"])
    key = new_key()
    assert ask(config, made["invite"], key, "pi-1").status == "issued"
    unnamed = good(device_app, "invite", "-c", config)["invite"]
    waiting = new_key()
    assert ask(config, unnamed, waiting, "pi-2").status == "pending"
    rows = {row["device"]: row for row in good(device_app, "ls", "-c", config)["devices"]}
    assert (rows["pi-1"]["status"], rows["pi-2"]["status"]) == ("active", "pending")
    assert rows["pi-1"]["key"] == key_print(key.public_key())
    assert "approve" in rows["pi-2"]["note"]
    table = run(device_app, "ls", "-c", config).stdout
    assert key_print(waiting.public_key())[:16] in table, "whole, to be compared"
    assert good(device_app, "approve", "pi-2", "-c", config)["was"] == "pending"
    assert ask(config, unnamed, waiting, "pi-2").status == "issued"
    assert good(device_app, "revoke", "pi-1", "-c", config) == {
        "device": "pi-1",
        "certificates": 1,
        "broker_reloaded": False,
    }
    assert "user pi-1" in (config.parent / "coordinator/mosquitto/acl").read_text()
    assert "was revoked" in wrong(device_app, "approve", "pi-1", "-c", config, kind=Refused)
    table = run(device_app, "ls", "-c", config).stdout
    assert "revoked" in table
    assert "active" in table


def test_the_invite_alone_is_on_stdout(config) -> None:
    init(config)
    done = run(device_app, "invite", "pi-1", "-c", config)
    assert Invite.decode(done.stdout).device == "pi-1"
    assert "works once" in done.stderr


def test_a_broker_that_cannot_be_told_is_exit_75_and_the_device_is_revoked(config, capsys) -> None:
    config.write_text(CONFIG + IDENTITY + 'reload_command = ["/bin/false"]\n')
    init(config)
    ask(config, good(device_app, "invite", "pi-1", "-c", config)["invite"], new_key(), "pi-1")
    with pytest.raises(SystemExit) as left:
        main(["device", "revoke", "pi-1", "-c", str(config)])
    assert left.value.code == exit_codes.TEMPFAIL
    said = capsys.readouterr().err
    assert "pi-1 is revoked" in said
    assert "/bin/false" in said
    assert good(device_app, "ls", "-c", config)["devices"][0]["status"] == "revoked"
    done = run(device_app, "revoke", "pi-1", "-c", config)
    assert isinstance(done.exception, Transient), "again: it is tried again"


def test_init_before_the_broker_runs_says_the_next_steps_and_then_what_failed(config, capsys) -> None:
    init(config)
    config.write_text(CONFIG + IDENTITY + 'reload_command = ["/bin/false"]\n')
    for words in (["--host", "hub.example"], []):
        with pytest.raises(SystemExit) as left:
            main(["coordinator", "init", "-c", str(config), *words])
        assert left.value.code == exit_codes.TEMPFAIL
        said = capsys.readouterr()
        assert "[mqtt.tls]" in said.out
        assert "lichen device invite NAME" in said.out
        assert "/bin/false" in said.err
    done = run(coordinator_app, "init", "-c", config, "--format", "json")
    assert "/bin/false" in json.loads(done.stdout)["error"]
    assert isinstance(done.exception, Transient)


async def test_a_revoked_device_is_not_shown_as_online(config) -> None:
    init(config)
    async with bench(config.parent, tiny_task(min_devices=2)) as made:
        await made.online("pi-1", "pi-2")
        made.app.storage.ledger.save()
        run(device_app, "revoke", "pi-1", "--unknown", "-c", config)
        rows = {row["device"]: row["now"] for row in good(device_app, "ls", "-c", config)["devices"]}
        assert rows == {"pi-1": "not heard", "pi-2": "online"}
        done = run(coordinator_app, "status", "-c", config, "--format", "json")
        waits = {one["what"]: one["why"] for one in json.loads(done.stdout)["waits"]}
        assert "nothing shows that the broker acts" in waits["revocations"]


def test_a_broker_folder_that_is_closed_is_exit_78_and_the_device_is_revoked(config) -> None:
    init(config)
    ask(config, good(device_app, "invite", "pi-1", "-c", config)["invite"], new_key(), "pi-1")
    crl = config.parent / "coordinator/mosquitto/crl.pem"
    crl.unlink()
    crl.mkdir()
    said = wrong(device_app, "revoke", "pi-1", "-c", config, kind=Misconfigured)
    assert said.startswith("pi-1 is revoked")
    assert str(crl) in said


@pytest.mark.parametrize(
    "words",
    [
        ("invite", "a/b"),
        ("invite", "@coordinator"),
        ("invite", "x" * 57),
        ("invite", "barn.gateway"),
        ("invite", "--expires", "5s"),
        ("invite", "--expires", "31d"),
        ("invite", "--expires", "soon"),
        ("revoke", "+"),
        ("approve", "#"),
    ],
)
def test_words_that_make_no_sense_are_exit_2(config, words: tuple[str, ...]) -> None:
    init(config)
    assert run(device_app, *words, "-c", config).exit_code == exit_codes.USAGE


@pytest.mark.parametrize("words", [("invite", "pi"), ("revoke", "pi")])
def test_without_an_authority_it_says_what_makes_one(config, words: tuple[str, ...]) -> None:
    assert "lichen coordinator init" in wrong(device_app, *words, "-c", config)
    config.write_text(CONFIG + "[identity]\nenabled = false\n")
    assert "identity.enabled is false" in wrong(device_app, *words, "-c", config)
    assert "identity.enabled is false" in wrong(coordinator_app, "init", "-c", config)
    assert not (config.parent / "coordinator").exists(), "nothing was made on the way"


def test_an_unknown_device_is_named(config) -> None:
    init(config)
    assert "no device pi-9" in wrong(device_app, "approve", "pi-9", "-c", config, kind=Refused)
    assert "--unknown" in wrong(device_app, "revoke", "pi-9", "-c", config, kind=Refused)
    assert good(device_app, "revoke", "pi-9", "--unknown", "-c", config)["certificates"] == 0


async def test_a_fleet_without_certificates_is_listed_and_released_too(tmp_path, config) -> None:
    async with bench(tmp_path, tiny_task(count=1)) as made:
        await made.online("a")
        await made.until(lambda: made.app.roster.get("a") is not None)
        made.app.storage.ledger.save()
    config.write_text(CONFIG.replace('"coordinator"', json.dumps(str(made.app.settings.state_dir))))
    rows = good(device_app, "ls", "-c", config)["devices"]
    assert [(row["device"], row["status"], row["now"]) for row in rows] == [("a", "unknown", "online")]
    assert "no device b" in wrong(device_app, "approve", "b", "-c", config, kind=Refused)
    assert good(device_app, "approve", "a", "-c", config)["was"] == "unknown"
    assert made.app.admission.released_at("a") is None
    made.app.admission._refresh()
    assert made.app.admission.released_at("a") is not None
    made.app.admission.close()
    assert State(status="online", device="a").status == rows[0]["now"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as somebody else")
def test_root_makes_files_that_the_daemon_can_write() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        file = folder / "coordinator.toml"
        file.write_text(
            CONFIG + IDENTITY + f'reload_command = ["/bin/sh", "-c", "id -u > {folder}/who; false"]\n'
        )
        state = folder / "coordinator"
        state.mkdir()
        os.chown(state, 65534, 65534)
        init(file)
        good(device_app, "invite", "pi-1", "-c", file)
        wrong(device_app, "revoke", "pi-1", "--unknown", "-c", file, kind=Transient)
        assert {path.stat().st_uid for path in state.rglob("*")} == {65534}
        assert (folder / "who").read_text().strip() == "0", "the broker is root's to reload"
        assert (os.geteuid(), os.getegid()) == (0, 0)
        assert stat.S_IMODE((state / "authority/ca.key").stat().st_mode) == 0o600
        with run_as_owner(state):
            assert os.geteuid() == 65534
    finally:
        shutil.rmtree(folder)


def test_the_front_door_knows_it() -> None:
    assert PARTS["device"].app == "coordinator.cli.device:app"
    assert {EXTRA_OF["starlette"], EXTRA_OF["uvicorn"]} == {"coordinator"}
