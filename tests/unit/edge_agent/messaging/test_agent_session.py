import asyncio
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from edge_agent.agent import Agent
from edge_agent.app import load
from edge_agent.config.agent import AgentSettings, read, read_task
from edge_agent.messaging.state_reporter import StateReporter
from edge_agent.opening import open_agent
from edge_agent.sources.registry import open_sources
from edge_agent.tasks.task_store import first_task
from edge_agent.training.update_encoding import encode_update
from models.contract import LocalResult
from models.data import window_set
from models.data.streams.recorded_stream import Stream
from models.registry import method
from protocol.errors import Misconfigured, Reason, Refused
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec
from protocol.messages import Offer, State, encode
from protocol.rollout import Hindrance
from protocol.tasks.announcement import TaskAnnouncement
from runtime.clock import SystemClock
from runtime.mqtt.link import Message
from tests.support.agent.data import toy_recording, toy_task, write_toy
from tests.support.agent.link import FakeLink
from tests.support.agent.parts import alive, reporter_of
from tests.support.clock import ManualClock
from tests.support.services import until

BASIC = 'fleet = "f"\ndevice = "d"\n[[source]]\nkind = "replay"\nfile = "toy.npz"\n'


def config(folder, text=BASIC, **keys):
    write_toy(folder, 30)
    head = "".join(f"{k} = {v!r}\n".replace("'", '"') for k, v in keys.items())
    path = folder / "agent.toml"
    path.write_text(f'state_dir = "{folder}/state"\ncache_dir = "{folder}/cache"\n{head}{text}')
    return path


def write_task(folder, **changes):
    task = toy_task(**changes)
    names = "\n".join(
        f'[[modalities]]\nname = "{m.name}"\nchannels = {m.channels}\nrate_hz = {m.rate_hz}'
        for m in task.modalities
    )
    labels = ", ".join(f'"{label}"' for label in task.labels)
    (folder / "task.toml").write_text(f'name = "{task.name}"\nlabels = [{labels}]\n{names}\n')


def make(folder, **keys) -> Agent:
    settings = read(config(folder, **keys))
    for path in (settings.state_dir, settings.cache_dir):
        path.mkdir(exist_ok=True)
    return open_agent(
        settings, open_sources(settings, folder / "agent.toml", None, SystemClock()), SystemClock()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BASIC.replace("device", "devise"), "devise.*device"),
        (BASIC + "[mqtt]\nhots = 1\n", "mqtt.hots.*host"),
        (BASIC + "[store]\nbudget_bytes = 1\n", "store.budget_bytes"),
        ('fleet = "f"\ndevice = "d"\n', r"no \[\[source\]\]"),
        ('fleet = "a b"\ndevice = "d"\n', "fleet"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, text, words):
    with pytest.raises(Misconfigured, match=f"(?s){words}"):
        read(config(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            BASIC.replace("toy.npz", "none.npz"),
            r"agent\.toml: source\[0\]: .*none\.npz: No such file",
        ),
        (BASIC + "sped = 2\n", r"agent\.toml: source\[0\]\.sped: unknown key; did you mean 'speed'\?"),
        (BASIC.replace("replay", "replai"), r"agent\.toml: source\[0\]\.kind: 'replai' is not a kind"),
        ('task_file = "no.toml"\n' + BASIC, r"no\.toml: no such file; task_file in .*agent\.toml names it"),
    ],
)
def test_what_the_settings_lead_to_names_the_settings_file_and_the_key(tmp_path, text, words):
    with pytest.raises(Misconfigured, match=words):
        load(config(tmp_path, text))


def test_a_task_file_with_a_modality_no_source_has_is_named(tmp_path):
    write_task(tmp_path)
    settings = read(config(tmp_path, task_file="task.toml"))
    source = open_sources(settings, tmp_path / "agent.toml", None, SystemClock())
    assert first_task(settings, source).name == "toy"
    wind = Stream(np.arange(3.0), np.zeros((3, 1), np.float32))
    source[0].recording.streams["wind"] = wind
    with pytest.raises(Misconfigured, match=r"'wind' is not in task 'toy'.* \(.*task.toml\)"):
        first_task(settings, source)
    source[0].recording.streams.clear()
    source[0].recording.streams["acc"] = Stream(wind.t, np.zeros((3, 2), np.float32))
    with pytest.raises(Misconfigured, match="'acc' has 2 channels, the task says 3"):
        first_task(settings, source)


async def test_an_announced_task_is_kept_and_wins_after_a_restart(tmp_path):
    agent = make(tmp_path)
    task = toy_task(seed=9)
    await agent.work.act_on(TaskAnnouncement.of(task))
    assert agent.tasks.workspace.task == task
    agent.close()
    again = make(tmp_path)
    await again.start()
    assert again.tasks.workspace.task == task
    again.close()


async def test_a_task_that_the_device_cannot_do_is_refused_and_the_old_one_stays(tmp_path):
    agent = make(tmp_path)
    await agent.work.act_on(TaskAnnouncement.of(toy_task()))
    for wrong, words in (
        (toy_task(method="telepathy"), "telepathy"),
        (toy_task(config={"bitz": 3}), "bitz"),
        (toy_task(modalities=({"name": "radar", "channels": 1, "rate_hz": 1},)), "radar"),
    ):
        with pytest.raises(Refused, match=words):
            await agent.work.act_on(TaskAnnouncement.of(wrong))
    assert agent.tasks.workspace.task == toy_task()
    agent.close()


async def test_a_malformed_message_is_refused_by_name_and_a_foreign_topic_too(tmp_path):
    agent = make(tmp_path)
    for topic, payload in (
        ("lichen/v1/f/b/offer", b"{}"),
        ("lichen/v1/f/d/d/down/receipt", encode(State(status="online", device="d", modalities={}))),
        ("lichen/v1/f/elsewhere", b""),
        ("lichen/v1/f/b/model", b"\xff" * 100),
    ):
        with pytest.raises(Refused) as refused:
            await agent.dispatcher.handle(Message(topic, payload, False))
        assert refused.value.reason is Reason.MALFORMED
    await agent.dispatcher.handle(Message("lichen/v1/f/b/task", b"", True))
    agent.close()


class Stub(StateReporter):
    """A reporter whose state is what the test says."""

    now_true: State

    def state(self) -> State:
        return self.now_true


def state(windows: int = 0, **changes) -> State:
    return State(**{"status": "online", "device": "d", "modalities": {}, "windows": windows, **changes})


async def test_an_idle_device_sends_under_250_kb_a_day():
    settings = AgentSettings(fleet="f", device="d", source=({},))
    link, clock = FakeLink(), ManualClock()
    session = reporter_of(settings, link, clock, Stub)
    per_modality = {
        "windows": (10_000,) * 7,
        "missing": 0.123,
        "quality": 0.912,
        "reasons": ("noisy", "gaps"),
    }
    modalities = {"accelerometer": per_modality, "gyroscope": per_modality}
    minutes = 24 * 60
    for minute in range(minutes):  # one window more every minute, and the quality flickers
        session.now_true = state(70_000 + minute, modalities=modalities)
        if session.is_due(session.now_true):
            await session._send(session.now_true)
        await clock.advance(60)
    sent = sum(len(topic) + len(payload) + 7 for topic, payload, _ in link.sent)
    pings = 2 * 86400 // settings.mqtt.keepalive_s
    assert 100 < session.states_sent < 150
    assert sent + pings < 250_000


async def test_what_the_coordinator_waits_for_is_sent_at_once(tmp_path):
    agent = make(tmp_path)
    await agent.work.act_on(TaskAnnouncement.of(toy_task()))
    session = agent.reporter
    session._sent, session._sent_at = state(7), SystemClock().now()
    assert session.is_due(state(8)), "min_windows is reached"
    assert session.is_due(state(7, model="a" * 64))
    assert not session.is_due(state(6))
    session._sent_at -= 31
    assert session.is_due(state(100)), "grown by a quarter"
    assert not session.is_due(state(6)), "a small change waits"
    full = Hindrance(why="no space left on the disk", version=1, bundle="a" * 64)
    assert session.is_due(state(7, hindered=full)), "a pointer is not followed"
    session._sent_at -= 600
    assert session.is_due(state(6))
    agent.inference.available, agent.inference.disabled_reason = False, "onnxruntime is not installed"
    assert session.state().hindered == Hindrance(why="nothing runs models here: onnxruntime is not installed")
    agent.close()


def packed(task, tensors, carry=None, **result):
    from edge_agent.windows.window_sets import windows_of_recording  # noqa: PLC0415 - only here

    windows = windows_of_recording(task, toy_recording(60))
    windows = window_set.select(windows, windows.y_B >= 0)
    offer = Offer(task=task.name, round=4, base="a" * 64, base_size=1, closes_in_s=9)
    local = LocalResult(tensors, **result)
    frame, new = encode_update(offer, task, ("d", ("acc",)), windows, local, carry=carry or {})
    return (*decode_frame(frame, UpdateHeader), new, windows)


def test_the_header_says_what_was_learnt_on():
    header, _, _, windows = packed(toy_task(), {}, weight=3, metrics={"loss": 1.5})
    assert header.samples == len(windows)
    assert header.counts == {"acc": window_set.counts(windows, toy_task())["acc"]}
    assert (header.round, header.weight, header.device, header.metrics) == (4, 3, "d", {"loss": 1.5})


def test_a_metric_that_overflowed_is_left_out_and_costs_no_update():
    """A label of 1e25 squares to infinity in a loss while every delta is finite."""
    header, *_ = packed(toy_task(), {}, metrics={"loss": float("inf"), "align": float("nan"), "lr": 0.1})
    assert header.metrics == {"lr": 0.1}


def test_error_carry_makes_many_rounds_exact():
    task, rng = toy_task(uplink={"codec": "int4"}), np.random.default_rng(0)
    meant, got, carry = np.zeros(300), np.zeros(300), {}
    for _ in range(30):
        x = rng.normal(size=300).astype(np.float32)
        _, tensors, carry, _ = packed(task, {"head/w": x}, carry)
        meant += x
        got += tensors["head/w"]
    assert np.abs(meant - got).max() < 0.5
    np.testing.assert_allclose(meant - got, carry["head/w"], atol=1e-3)


def test_a_method_chooses_its_codec_and_then_nothing_is_carried():
    x = np.linspace(-1, 1, 50, dtype=np.float32)
    _, tensors, carry, _ = packed(toy_task(), {"p/v": x}, codecs={"p/v": Codec.INT4})
    assert carry == {}
    assert len(np.unique(tensors["p/v"])) == 16


def test_a_carry_of_another_shape_is_left_behind():
    x = np.ones(5, np.float32)
    _, tensors, carry, _ = packed(toy_task(), {"head/w": x}, {"head/w": np.ones(7, np.float32)})
    np.testing.assert_allclose(tensors["head/w"], 1)
    assert carry["head/w"].shape == (5,)


def test_nan_is_not_sent():
    with pytest.raises(Refused, match="head/w"):
        packed(toy_task(), {"head/w": np.array([np.nan], np.float32)})


def test_a_wrong_source_names_the_file_it_stands_in(tmp_path):
    settings = read(config(tmp_path, BASIC.replace(".npz", "_gone.npz")))
    with pytest.raises(Misconfigured, match=r"agent\.toml: source\[0\]: recording .*_gone\.npz"):
        open_sources(settings, tmp_path / "agent.toml", None, SystemClock())


def test_a_file_where_a_folder_should_be_is_misconfigured_and_named(tmp_path):
    write_task(tmp_path)
    file = config(tmp_path)
    settings = read(file)
    settings.state_dir.write_text("in the way")
    with pytest.raises(Misconfigured, match=r"agent\.toml: state_dir: "):
        load(file)


async def test_the_agent_collects_with_no_broker_at_all(tmp_path):
    write_task(tmp_path)
    text = BASIC + "speed = 60\n[mqtt]\nport = 1\nbackoff_max_s = 1.0\n[infer]\nenabled = false\n"
    settings = read(config(tmp_path, text, task_file="task.toml"))
    for path in (settings.state_dir, settings.cache_dir):
        path.mkdir(exist_ok=True)
    agent = open_agent(
        settings, open_sources(settings, tmp_path / "agent.toml", None, SystemClock()), SystemClock()
    )
    with capture_logs():
        async with alive(agent):
            await until(lambda: agent.tasks.workspace.store.snapshot().labelled >= 15)
            status = agent.status()
    assert "connect" in status["link"]


async def test_nothing_is_said_after_the_goodbye():
    settings = AgentSettings(fleet="f", device="d", source=({},))
    link = FakeLink()
    session = reporter_of(settings, link, SystemClock(), Stub)
    session.now_true = state(1)
    online = asyncio.create_task(session.send_online())
    await asyncio.sleep(0)
    await session.send_stopped()
    await session.send_online()
    await online
    assert [s.status for s in link.messages("up/state", State)] == ["online", "stopped"]


def test_the_examples_are_valid():
    examples = Path(__file__).parents[4] / "examples"
    settings = read(examples / "agent.toml")
    task = read_task(settings.task_file)
    method(task.method).configure(task)
    assert task.modality_names == ("accelerometer", "gyroscope")
