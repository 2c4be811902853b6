"""What a settings file writes in another kind than its key wants is refused; variables have only text."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from edge_agent.config.agent import AgentSettings
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.settings.load import MqttSettings, Section, check_table, load, load_toml

TEXT = "a number is wanted, without quotation marks"
WHOLE = "a whole number is wanted, without quotation marks"
YES = "true or false is wanted, without quotation marks"
HEAD = 'fleet = "f"\ndevice = "d"\n'


class Daemon(Section):
    device: str = "d"
    quick: bool = False
    often: bool | int | None = None
    waves: tuple[float, ...] = ()
    budgets: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    either: str | int = 0
    mqtt: MqttSettings = MqttSettings()


class Replay(Section):
    kind: Literal["replay"]
    speed: float = 1.0


@pytest.fixture
def file(tmp_path):
    return tmp_path / "agent.toml"


def refusal(model, file, text, **environ):
    file.write_text(text)
    with pytest.raises(Misconfigured) as caught:
        load(model, file, environ=environ)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[mqtt]\nport = '1883'\n", f"mqtt.port: {WHOLE} (found '1883')"),
        ("[mqtt]\nport = true\n", "mqtt.port: a whole number is wanted (found True)"),
        ("[mqtt]\nping_s = '4.5'\n", f"mqtt.ping_s: {TEXT} (found '4.5')"),
        ("quick = 'yes'\n", f"quick: {YES} (found 'yes')"),
        ("quick = 1\n", "quick: true or false is wanted (found 1)"),
        ("waves = [0.5, '1']\n", f"waves[1]: {TEXT} (found '1')"),
        ("budgets = {a = '1'}\n", f"budgets.a: {WHOLE} (found '1')"),
        ("often = 'no'\n", f"often: {YES} (found 'no')"),
    ],
)
def test_a_value_of_another_kind_is_named_with_file_key_and_what_to_write(file, text, words):
    assert refusal(Daemon, file, text) == f"{file}: {words}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[infer.mqtt]\nretain = 'yes'\n", f"infer.mqtt.retain: {YES} (found 'yes')"),
        ("[deploy.trial]\nwindows = '20'\n", f"deploy.trial.windows: {WHOLE} (found '20')"),
        ("[graph]\ntriples = ['f.tsv']\npoll_s = '5'\n", f"graph.poll_s: {TEXT} (found '5')"),
        (
            "[graph]\ntriples = ['f.tsv']\npoll_s = 86401\n",
            "graph.poll_s: Input should be less than or equal",
        ),
    ],
)
def test_an_agent_s_own_keys_are_judged_at_every_depth(file, text, words):
    assert words in refusal(AgentSettings, file, HEAD + text)


def test_a_variable_has_only_text_and_is_read_as_its_key_wants(file):
    file.write_text("")
    environ = {"LICHEN_QUICK": "yes", "LICHEN_MQTT__PORT": "8883", "LICHEN_MQTT__PING_S": "4.5"}
    settings = load(Daemon, file, environ=environ | {"LICHEN_DEVICE": "1"})
    assert (settings.quick, settings.mqtt.port, settings.mqtt.ping_s) == (True, 8883, 4.5)
    assert (settings.device, type(settings.device)) == ("1", str)
    words = "LICHEN_QUICK: quick: Input should be a valid boolean"
    assert words in refusal(Daemon, file, "", LICHEN_QUICK="perhaps")


def test_what_toml_may_write_of_a_number_is_taken(file):
    file.write_text("waves = [1, 0.5]\neither = '7'\nbudgets = {a = 1}\n[mqtt]\nping_s = 4\nwindow = 4.0\n")
    settings = load(Daemon, file, environ={})
    assert (settings.waves, settings.either, settings.mqtt.window) == ((1.0, 0.5), "7", 4)


def test_values_of_another_kind_are_listed_beside_all_else_that_is_wrong(file):
    lines = refusal(Daemon, file, "quick = 'yes'\nzzz = 1\n[mqtt]\nport = 0\n").splitlines()
    assert [line.split(": ")[1] for line in lines] == ["mqtt.port", "zzz", "quick"]
    (line,) = refusal(Daemon, file, "[mqtt]\nport = 'many'\n").splitlines()
    assert WHOLE in line, "what the model says of it is not said twice"


def test_tables_of_sources_and_tasks_are_judged_as_well(tmp_path, file):
    with pytest.raises(Misconfigured, match=r"a\.toml: source\[0\]\.speed: a number is wanted, without"):
        check_table(Replay, {"kind": "replay", "speed": "2"}, "a.toml: source[0]", tmp_path)
    modality = "[[modalities]]\nname = 'acc'\nchannels = '3'\nrate_hz = 10\n"
    file.write_text(f"name = 't'\nlabels = ['a', 'b']\n{modality}")
    with pytest.raises(Misconfigured, match=r"modalities\[0\]\.channels: a whole number is wanted"):
        load_toml(Task, file)
