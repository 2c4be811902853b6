"""Names that every broker takes, at each place where one enters; a new spelling stands beside a refusal."""

import pytest
from pydantic import TypeAdapter, ValidationError
from typer.testing import CliRunner

from coordinator.cli.device import app as device_app
from coordinator.config.coordinator import load_settings
from coordinator.identity.authority import checked_facts
from coordinator.task import load_task
from edge_agent.config.agent import read
from protocol.base import MAX_NAME, Name, is_name, name_trouble
from protocol.enrolment import RenewRequest
from protocol.errors import Misconfigured, Reason, Refused
from protocol.messages import Metric, decode
from protocol.topics import Kind, device_topic, parse
from tests.support.identity.desk import csr, make_desk, new_key, signature

OLD, NEW = "barn.gateway", "write 'barn-gateway'"
COORDINATOR = 'fleet = "{fleet}"\nstate_dir = "state"\ntask = "task.toml"\n'


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("barn.gateway", "barn-gateway"),
        ("barn gateway", "barn-gateway"),
        ("a>b", "a-b"),
        ("a*", "a"),
        ("@coordinator", "coordinator"),
        ("_x", "x"),
        ("pi-7\n", "pi-7"),
        ("x" * (MAX_NAME + 1), "x" * MAX_NAME),
    ],
)
def test_what_is_no_name_comes_with_one_that_is(text: str, near: str) -> None:
    assert is_name(near)
    assert name_trouble(text).endswith(f"write {near!r}")
    with pytest.raises(ValidationError, match="is no name"):
        TypeAdapter(Name).validate_python(text)


@pytest.mark.parametrize("text", ["", ".", "///", "\u0661"])
def test_where_nothing_is_left_only_the_rule_is_said(text: str) -> None:
    assert name_trouble(text).endswith("a letter or digit first")


def test_the_longest_client_id_is_one_that_aws_takes() -> None:
    name = "n" * MAX_NAME
    assert is_name(name)
    assert len(f"agent-{name}-{name}-doctor") <= 128


def test_settings_and_tasks_are_refused_with_the_new_spelling(tmp_path) -> None:
    agent = tmp_path / "agent.toml"
    agent.write_text(f'fleet = "f"\ndevice = "{OLD}"\nstate_dir = "state"\n')
    with pytest.raises(Misconfigured, match=NEW):
        read(agent)
    config, task = tmp_path / "coordinator.toml", tmp_path / "task.toml"
    config.write_text(COORDINATOR.format(fleet=OLD))
    with pytest.raises(Misconfigured, match=f"fleet: .*{NEW}"):
        load_settings(config)
    config.write_text(COORDINATOR.format(fleet="f"))
    task.write_text(
        f'name = "{OLD}"\nlabels = ["a", "b"]\n[[modalities]]\nname = "acc"\nchannels = 1\nrate_hz = 1\n'
    )
    with pytest.raises(Misconfigured, match=f"name: .*{NEW}"):
        load_task(load_settings(config))


def test_topics_and_messages_are_refused_with_the_new_spelling() -> None:
    with pytest.raises(ValueError, match=NEW):
        device_topic("f", OLD, Kind.STATE)
    for topic in (f"lichen/v1/f/d/{OLD}/up/state", f"lichen/v1/{OLD}/b/task"):
        with pytest.raises(Refused, match=NEW):
            parse(topic)
    with pytest.raises(Refused, match=f"device: .*{NEW}"):
        decode(Metric.model_construct(device=OLD, metrics={}).model_dump_json().encode(), Metric)


def test_the_command_line_is_refused_with_the_new_spelling(tmp_path) -> None:
    config = tmp_path / "coordinator.toml"
    config.write_text(COORDINATOR.format(fleet="f"))
    for verb in ("invite", "approve", "revoke"):
        said = CliRunner().invoke(device_app, [verb, OLD, "-c", str(config)])
        assert said.exit_code == 2
        assert "barn-gateway" in said.output


def test_an_authority_and_a_renewal_are_refused_with_the_new_spelling(tmp_path) -> None:
    with pytest.raises(Misconfigured, match=f"fleet: .*{NEW}"):
        checked_facts(OLD, ["hub"])
    with make_desk(tmp_path) as desk:
        key, request = new_key(), csr(new_key())
        held = desk.authority.issue_device(csr(key), OLD).certificate_pem
        asked = RenewRequest(certificate=held, csr=request, signature=signature(key, request))
        with pytest.raises(Refused, match=NEW) as refused:
            desk.renew(asked)
        assert refused.value.reason is Reason.MALFORMED
