"""An agent answers the question for its log lines: if permitted, without secrets, within bounds."""

import asyncio

import pytest

from edge_agent.config.agent import AgentSettings, read
from edge_agent.identity.fleet_secret import make, secret_path
from edge_agent.messaging.log_sender import NOT_PERMITTED, LogSender
from protocol.log_lines import MAX_LOG_BYTES, LogLines
from protocol.messages import Command, decode, encode
from runtime.diagnosis.recent_lines import RecentLines
from tests.support.agent.link import FakeLink
from tests.support.clock import ManualClock
from tests.support.services import beside, until

ASK = Command(command="send_logs")


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "password").write_text("correct horse\n")
    return AgentSettings.model_validate(
        {
            "fleet": "f",
            "device": "d",
            "state_dir": tmp_path,
            "cache_dir": tmp_path,
            "mqtt": {"username": "d", "password_file": tmp_path / "password"},
            "diagnosis": {"send_logs": True},
            "source": [{"kind": "x", "api_key": "sesame"}],
        }
    )


def recent_with(*events: str) -> RecentLines:
    recent = RecentLines()
    for event in events:
        recent(None, "info", {"event": event, "level": "info"})
    return recent


def test_secrets_of_its_files_and_settings_are_removed(settings):
    (settings.state_dir / "identity").mkdir()
    make(secret_path(settings))
    secret = secret_path(settings).read_text().strip()
    recent = recent_with("with correct horse", f"key {secret}", "said sesame", "nothing of this")
    sender = LogSender(settings, FakeLink(), recent, ManualClock())
    assert [line.text for line in sender.answer().lines] == [
        "with [removed]",
        "key [removed]",
        "said [removed]",
        "nothing of this",
    ]


def test_the_password_of_a_source_is_found_beside_the_configuration_from_any_working_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "camera.password").write_text("open-sesame\n")
    config = tmp_path / "agent.toml"
    config.write_text(
        'fleet = "f"\ndevice = "d"\ndiagnosis = { send_logs = true }\n'
        '[[source]]\nkind = "camera"\npassword_file = "camera.password"\n'
    )
    monkeypatch.chdir("/")
    sender = LogSender(read(config), FakeLink(), recent_with("login open-sesame"), ManualClock())
    assert [line.text for line in sender.answer().lines] == ["login [removed]"]


def test_without_permission_no_line_leaves_the_device(settings):
    settings = settings.model_copy(update={"diagnosis": AgentSettings.model_fields["diagnosis"].default})
    answer = LogSender(settings, FakeLink(), recent_with("a line"), ManualClock()).answer()
    assert (answer.lines, answer.refused) == ((), NOT_PERMITTED)


def test_an_answer_has_the_newest_lines_that_fit(settings):
    recent = recent_with(*(f"{n} " + '"\\' * 300 for n in range(200)), "the last")
    answer = LogSender(settings, FakeLink(), recent, ManualClock()).answer()
    assert len(encode(answer)) <= MAX_LOG_BYTES
    assert answer.lines[-1].text == "the last"
    assert answer.earlier == 201 - len(answer.lines)
    assert decode(encode(answer), LogLines) == answer
    assert len(answer.lines) > 20


async def test_many_questions_get_few_answers(settings):
    link, clock = FakeLink(), ManualClock()
    sender = LogSender(settings, link, recent_with("a line"), clock)
    async with beside(sender.run()):
        for n in range(3):
            sender.on_request(ASK)
            await until(lambda n=n: sender.answers == n + 1)
        for _ in range(30):
            sender.on_request(ASK)
            await asyncio.sleep(0.005)
        assert sender.answers == 3
        await clock.advance(10.0)
        await until(lambda: sender.answers == 4)
    assert [one.lines[0].text for one in link.messages("up/log", LogLines)] == ["a line"] * 4
