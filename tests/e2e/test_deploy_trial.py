"""A real agent over a real broker: a good model commits, a bad one goes back by itself, and says why."""

from pathlib import Path

import pytest

from protocol.messages import ModelPointer, encode
from protocol.rollout import Trial
from protocol.topics import Kind, broadcast_topic, device_topic
from tests.e2e.test_agent_e2e import DEVICE, ROOT, TASK, agent_of, coordinator, ready, write_config
from tests.support.agent.bundle import bundle, tiny_onnx
from tests.support.agent.fake_coordinator import FLEET
from tests.support.network.brokers import broker

__all__ = ["broker"]
OTHER = tiny_onnx(TASK, bias=100.0)
"""Passes every check, and says the same of each window."""


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Child processes find this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def told(fake, version, phase):
    """Whether the device's last state says so of its trial."""
    trial = fake.states[-1].trial if fake.states else None
    return trial is not None and (trial.version, trial.phase) == (version, phase)


async def announce(fake, number, serial, trial, *, own=False, content=None):
    ref = fake.put(bundle(TASK, number, content))
    said = ModelPointer(task=TASK.name, version=number, bundle=ref, serial=serial, trial=trial)
    topic = device_topic(FLEET, DEVICE, Kind.MODEL) if own else broadcast_topic(FLEET, Kind.FLEET_MODEL)
    await fake.link.publish(topic, encode(said), qos=1, retain=True)
    return ref.digest


async def test_a_canary_commits_or_goes_back_by_itself_and_says_why(tmp_path: Path, broker):
    config = write_config(tmp_path, broker.port, "[labels]\nsite = 'barn'\n")
    config.write_text(config.read_text().replace("[labels]", "[deploy.trial]\nwindows = 3\n[labels]"))
    rules = Trial(windows=30, min_agreement=0.9)
    async with coordinator(broker) as fake:
        async with agent_of(config) as agent:
            await ready(fake)
            first = await announce(fake, 1, 1, None)
            await fake.until(lambda: told(fake, 1, "committed"), 30)
            assert fake.states[-1].labels == {"site": "barn"}
            good = await announce(fake, 2, 2, rules, own=True)
            await fake.until(lambda: told(fake, 2, "committed"), 30)
            report = fake.states[-1].trial
            assert (report.serial, fake.states[-1].model) == (2, good)
            assert report.measures["agreement"] == 1
            assert report.measures["windows"] >= 30
            bad = await announce(fake, 3, 3, rules, own=True, content=OTHER)
            await fake.until(lambda: told(fake, 3, "rolled_back"), 30)
            report = fake.states[-1].trial
            assert (report.bundle, report.serial) == (bad, 3)
            assert "it agrees with the former model on" in report.why
            assert fake.states[-1].model == good
            assert agent.status()["model_trial"]["phase"] == "rolled_back"
            before = agent.status()["predictions"]
            await fake.until(lambda: agent.status()["predictions"] > before)
            # the decision is taken back: retained for devices that were away
            await announce(fake, 1, 4, None)
            await fake.link.publish(device_topic(FLEET, DEVICE, Kind.MODEL), b"", qos=1, retain=True)
            await fake.until(lambda: told(fake, 1, "committed"), 30)
            assert (fake.states[-1].model, agent.dispatcher.refused) == (first, {})
        broker.kill()
        async with agent_of(config, polite=False) as again:
            await fake.until(lambda: again.status()["predictions"] > 3, 30)
            assert again.status()["model_version"] == 1
            assert again.status()["model_trial"]["phase"] == "committed"
        broker.restart()
