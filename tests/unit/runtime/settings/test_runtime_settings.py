from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from protocol.base import Name
from protocol.errors import Misconfigured
from runtime.settings.load import ConfigPath, LogSettings, MqttSettings, Section, check_table, load, load_toml


class Replay(Section):
    kind: Literal["replay"]
    file: ConfigPath
    speed: float = 1.0


class System(Section):
    kind: Literal["system"]
    interval_s: float = 1.0


Role = Literal["observe", "train"]


class Daemon(Section):
    fleet: str
    device: Name = "d"
    roles: Annotated[tuple[Literal["observe", "train"], ...], Field(min_length=1, max_length=2)] = (
        "observe",
    )
    labels: Annotated[tuple[str, ...], Field(min_length=2)] = ("a", "b")
    state_dir: ConfigPath = Path("state")
    mqtt: MqttSettings = MqttSettings()
    log: LogSettings = LogSettings()
    source: tuple[Annotated[Replay | System, Field(discriminator="kind")], ...] = ()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "agent.toml"
    path.write_text('fleet = "f"\n')
    return path


def _drop_in(file: Path, name: str, text: str) -> Path:
    folder = file.with_name("agent.d")
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def _refusal(file: Path, **environ: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        load(Daemon, file, environ=environ)
    return str(caught.value)


def test_defaults(file):
    settings = load(Daemon, file, environ={})
    assert settings.mqtt.host == "127.0.0.1"
    assert settings.mqtt.chunk_bytes * settings.mqtt.window == 256 * 1024


def test_later_wins_file_then_drop_ins_in_name_order_then_environment(file):
    file.write_text('fleet = "f"\n[mqtt]\nhost = "file"\nport = 1\nusername = "u"\nkeepalive_s = 7\n')
    _drop_in(file, "20-b.toml", '[mqtt]\nhost = "b"\nport = 3\n')
    _drop_in(file, "10-a.toml", '[mqtt]\nhost = "a"\nport = 2\nusername = "v"\n')
    mqtt = load(Daemon, file, environ={"LICHEN_MQTT__HOST": "env"}).mqtt
    assert (mqtt.host, mqtt.port, mqtt.username, mqtt.keepalive_s) == ("env", 3, "v", 7)


def test_environment_reads_numbers_lists_and_top_level_keys_and_passes_over_strangers(file):
    environ = {
        "LICHEN_MQTT__PORT": "8883",
        "LICHEN_ROLES": '["observe"]',
        "LICHEN_FLEET": "g",
        "LICHEN_DATA": "/data",
        "PATH": "/bin",
    }
    settings = load(Daemon, file, environ=environ)
    assert (settings.mqtt.port, settings.roles, settings.fleet) == (8883, ("observe",), "g")


def test_relative_paths_start_at_the_file_and_a_tilde_is_home(file):
    file.write_text('fleet = "f"\nstate_dir = "var"\nsource = [{kind = "replay", file = "~/x.npz"}]\n')
    _drop_in(file, "a.toml", '[mqtt]\nusername = "u"\npassword_file = "secret"\n')
    settings = load(Daemon, file, environ={})
    assert settings.state_dir == file.parent / "var"
    assert settings.mqtt.password_file == file.parent / "secret"
    assert settings.source[0].file == Path.home() / "x.npz"


def test_an_absolute_path_stays(file):
    file.write_text('fleet = "f"\nstate_dir = "/var/lib/lichen"\n')
    assert load(Daemon, file, environ={}).state_dir == Path("/var/lib/lichen")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mqtt]\nhots = 'x'\n", "mqtt.hots: unknown key; did you mean 'host'?"),
        ("host = 'x'\n", "host: unknown key; did you mean 'mqtt.host'?"),
        ("[mqtt.tsl]\n", "mqtt.tsl: unknown key; did you mean 'tls'?"),
        ("[mqtt.tls]\nca = 'x'\n", "mqtt.tls.ca: unknown key"),
        (
            "zzz = 1\n",
            "zzz: unknown key; known here: device, fleet, labels, log, mqtt, roles, source",
        ),
        ("[mqtt]\nport = 'many'\n", "mqtt.port: a whole number is wanted, without quotation marks"),
        ("[mqtt]\nport = 70000\n", "(found 70000)"),
        ("[mqtt]\nprotocol = '4'\n", "mqtt.protocol: Input should be '5' or '3.1.1' (found '4')"),
        ("[mqtt]\npassword_file = 'p'\n", "mqtt: password_file is given without username"),
        ("[mqtt.tls]\nkey_file = 'k'\n", "mqtt.tls: cert_file and key_file go together"),
        ("mqtt = 3\n", "mqtt: Input should be a valid dictionary"),
        (
            "[[source]]\nkind = 'replay'\nfile = 'x'\nsped = 2\n",
            "source[0].sped: unknown key; did you mean 'speed'?",
        ),
        ("[[source]]\nkind = 'replay'\n", "source[0].file: missing; it has no default"),
        ("[[source]]\nkind = 'replai'\n", "source[0]: Input tag 'replai'"),
        ("[mqtt]\nbackoff_min_s = nan\n", "mqtt.backoff_min_s"),
        ("device = 'a/b'\n", "device: 'a/b' is no name: 1 to 56 letters, digits, '_' and '-', a letter"),
        ("device = 'barn.gateway'\n", "write 'barn-gateway'"),
        ("labels = ['a']\n", "labels: at least 2 wanted, there are 1"),
        ("roles = []\n", "roles: at least 1 wanted, there are 0"),
        ("roles = 'train'\n", "roles: a list is wanted, in [ ]"),
        ("roles = ['observe', 'train', 'train']\n", "roles: at most 2 wanted, there are"),
    ],
)
def test_a_wrong_key_is_named_with_file_path_and_what_to_write(file, text, words):
    file.write_text('fleet = "f"\n' + text)
    message = _refusal(file)
    assert words in message
    assert message.startswith(str(file))


def test_every_wrong_key_is_listed_with_the_file_it_came_from(file):
    file.write_text("[mqtt]\nport = 0\nhost = 'h'\n")
    other = _drop_in(file, "10.toml", "[mqtt]\nwindow = 0\n[log]\nlevl = 'x'\n")
    lines = _refusal(file, LICHEN_MQTT__KEEPALIVE_S="soon").splitlines()
    assert len(lines) == 5
    assert any(line.startswith(f"{file}: fleet: missing") for line in lines)
    assert any(line.startswith(f"{file}: mqtt.port: ") for line in lines)
    assert any(line.startswith(f"{other}: mqtt.window: ") for line in lines)
    assert any(line.startswith(f"{other}: log.levl: unknown key; did you mean 'level'?") for line in lines)
    assert any(line.startswith("LICHEN_MQTT__KEEPALIVE_S: mqtt.keepalive_s: ") for line in lines)


def test_a_list_that_is_short_because_its_items_are_wrong_has_the_items_line_alone(file):
    file.write_text("fleet = 'f'\nroles = ['trian']\nlabels = [1, 2]\n")
    lines = _refusal(file).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["roles[0]", "labels[0]", "labels[1]"]


def test_a_file_that_another_names_is_missing_and_its_key_is_said(tmp_path):
    with pytest.raises(Misconfigured) as caught:
        load_toml(Daemon, tmp_path / "task.toml", named_by="task_file in agent.toml")
    assert "task.toml: no such file; task_file in agent.toml names it" in str(caught.value)
    assert "--config" not in str(caught.value)


def test_a_table_is_checked_by_itself_and_every_key_names_its_place(tmp_path):
    with pytest.raises(Misconfigured) as caught:
        check_table(Replay, {"kind": "replay", "sped": 2}, "agent.toml: source[0]", tmp_path)
    assert str(caught.value).splitlines() == [
        "agent.toml: source[0].file: missing; it has no default",
        "agent.toml: source[0].sped: unknown key; did you mean 'speed'?",
    ]
    found = check_table(Replay, {"kind": "replay", "file": "x"}, "source[0]", tmp_path)
    assert found.file == tmp_path / "x"


def test_misspelt_variables_are_errors(file):
    assert "LICHEN_MQTTT__HOST: no section 'mqttt'" in _refusal(file, LICHEN_MQTTT__HOST="x")
    assert "mqtt.hots: unknown key; did you mean 'host'?" in _refusal(file, LICHEN_MQTT__HOTS="x")


def test_a_variable_that_is_not_json_is_an_error_in_words(file):
    assert "LICHEN_ROLES" in _refusal(file, LICHEN_ROLES="observe")


def test_missing_unreadable_and_broken_files(tmp_path, file):
    assert "no such file" in _refusal(tmp_path / "none.toml")
    assert "cannot be read" in _refusal(tmp_path)
    file.write_text("fleet = \n")
    assert "not valid TOML: Invalid value (at line 1, column 9)" in _refusal(file)
    file.write_bytes(b"fleet = '\xff'\n")
    assert "cannot be read" in _refusal(file)


def test_a_broken_drop_in_is_named(file):
    other = _drop_in(file, "10.toml", "[mqtt\n")
    assert _refusal(file).startswith(f"{other}: not valid TOML")


def test_load_toml_reads_no_drop_ins_and_no_environment(file, monkeypatch):
    monkeypatch.setenv("LICHEN_FLEET", "env")
    _drop_in(file, "10.toml", "fleet = 'dropin'\n")
    assert load_toml(Daemon, file).fleet == "f"
    file.write_text("flet = 'f'\n")
    with pytest.raises(Misconfigured, match="flet: unknown key; did you mean 'fleet'"):
        load_toml(Daemon, file)


def test_settings_are_frozen(file):
    settings = load(Daemon, file, environ={})
    with pytest.raises(ValueError, match="frozen"):
        settings.fleet = "g"
