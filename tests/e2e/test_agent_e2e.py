"""The agent against a real broker and a scripted coordinator."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from edge_agent.app import load
from models.contract import Profile
from models.registry import method
from protocol.errors import Reason
from protocol.frames.frame import decode_frame, digest
from protocol.frames.headers import UpdateHeader
from protocol.messages import ModelPointer, Receipt, encode
from protocol.topics import Kind, broadcast_topic
from tests.support.agent.bundle import bundle, ref_of
from tests.support.agent.data import toy_task, write_toy
from tests.support.agent.fake_coordinator import FLEET, FakeCoordinator
from tests.support.agent.parts import alive
from tests.support.network.brokers import broker
from tests.support.services import beside, until

__all__ = ["broker"]
ROOT = Path(__file__).parents[2]
TASK = toy_task()
DEVICE = "d1"


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Child processes find the tests' worker."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def write_config(folder: Path, port: int, extra: str = "") -> Path:
    write_toy(folder, 60)
    path = folder / "agent.toml"
    path.write_text(f"""
fleet = "{FLEET}"
device = "{DEVICE}"
state_dir = "{folder}/state"
cache_dir = "{folder}/cache"
state_every_s = 0.2
[mqtt]
port = {port}
backoff_min_s = 0.05
backoff_max_s = 0.2
[log]
level = "warning"
[outbox]
resend_s = 0.5
[learn]
module = "tests.support.agent.worker"
[infer]
output = "{folder}/predictions.jsonl"
{extra}
[[source]]
kind = "replay"
file = "toy.npz"
speed = 30
loop = true
""")
    return path


@asynccontextmanager
async def coordinator(broker):
    fake = FakeCoordinator(broker.host, broker.port)
    async with beside(fake.run(), forever=True):
        async with asyncio.timeout(10):
            await fake.link.wait_connected()
        yield fake


@asynccontextmanager
async def agent_of(config: Path, *, polite: bool = True):
    _, agent = load(config)
    async with alive(agent):
        yield agent
        if polite:
            await agent.stop()


async def ready(fake: FakeCoordinator) -> None:
    await fake.announce(TASK)
    await fake.until(lambda: fake.states and fake.states[-1].windows >= 8)


def version(fake: FakeCoordinator, number: int = 0, seed: int = 0):
    """A small global state with the names that the method routes; no torch needed."""
    rng = np.random.default_rng(seed)
    route = method(TASK.method).server().route(TASK, Profile(TASK.modality_names))
    state = {}
    for name in route:
        if name.startswith("prototypes/"):
            state[name] = {
                f"{name}/values": np.zeros((3, TASK.network.feature_dim), np.float32),
                f"{name}/rounds": np.zeros(3, np.float32),
            }
        else:
            state[name] = {f"{name}/w": rng.normal(size=(64, 64)).astype(np.float32)}
    return fake.version(TASK, state, number)


def trained(folder: Path) -> list[str]:
    path = folder / "cache" / "trained.txt"
    return path.read_text().splitlines() if path.exists() else []


async def test_offer_update_receipt_and_the_next_round_fetches_only_what_changed(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake:
        async with agent_of(config) as agent:
            await ready(fake)
            assert fake.states[0].status == "online"
            assert set(fake.states[-1].modalities) == {"acc", "gyr"}
            base = version(fake)
            for _ in range(3):
                await fake.offer(DEVICE, TASK, 1, base)
            await fake.until(lambda: len(fake.updates) >= 2)  # sent again: no receipt yet
            header, tensors = decode_frame(fake.updates[0], UpdateHeader)
            assert (header.device, header.round, header.base) == (DEVICE, 1, base.digest)
            assert header.samples >= 8
            assert all(np.allclose(x, 0.01, atol=1e-4) for x in tensors.values())
            assert set(fake.updates) == {fake.updates[0]}
            await fake.receipt(DEVICE, TASK, 1, fake.updates[0])
            await fake.until(lambda: agent.outbox.waiting == 0 and agent.outbox.accepted == 1)
            await fake.offer(DEVICE, TASK, 1, base)  # a late repeat
            fetched = set(fake.fetched)
            await fake.offer(DEVICE, TASK, 2, fake.version(TASK, _changed_head(fake, base), 2))
            await fake.until(lambda: decode_frame(fake.updates[-1], UpdateHeader)[0].round == 2)
            assert len(set(fake.fetched) - fetched) == 2, "the manifest and the head"
            assert [line.split()[0] for line in trained(tmp_path)] == ["1", "2"]
            await fake.until(lambda: any(m.round == 2 and m.metrics["rounds"] == 2 for m in fake.metrics))
            assert {"loss", "train_s", "quantize_s", "windows"} <= set(fake.metrics[-1].metrics)
        await fake.until(lambda: fake.states[-1].status == "stopped")


def _changed_head(fake: FakeCoordinator, base) -> dict:
    from protocol.frames.headers import BlobHeader, Manifest  # noqa: PLC0415 - only here

    manifest = Manifest.model_validate_json(fake.blobs[base.digest])
    state = {
        name: decode_frame(fake.blobs[ref.digest], BlobHeader)[1] for name, ref in manifest.blobs.items()
    }
    state["head"] = {name: x + 1 for name, x in state["head"].items()}
    return state


async def test_an_update_in_the_spool_survives_a_restart_and_is_not_trained_again(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake:
        base = version(fake)
        async with agent_of(config, polite=False):
            await ready(fake)
            await fake.offer(DEVICE, TASK, 1, base)
            await fake.until(lambda: fake.updates)
        first = fake.updates[0]
        fake.updates.clear()
        async with agent_of(config) as agent:
            await fake.offer(DEVICE, TASK, 1, base)
            await fake.until(lambda: fake.updates)
            assert fake.updates[0] == first
            refusal = {"status": "refused", "reason": Reason.WRONG_ROUND, "detail": "round 1 is closed"}
            await fake.receipt(DEVICE, TASK, 1, first, **refusal)
            await fake.until(lambda: agent.outbox.refused == 1 and agent.outbox.waiting == 0)
            assert agent.status()["outbox"]["last_refusal"] == "wrong_round: round 1 is closed"
        assert len(trained(tmp_path)) == 1


async def test_a_large_update_goes_in_chunks_and_lost_ones_are_asked_for_again(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    text = config.read_text().replace("[mqtt]\n", "[mqtt]\nchunk_bytes = 2048\n")
    config.write_text(text)
    async with coordinator(broker) as fake, agent_of(config):
        fake.drop_chunks = {1, 3}
        await ready(fake)
        await fake.offer(DEVICE, TASK, 1, version(fake))
        await fake.until(lambda: fake.updates)
        assert digest(fake.updates[0]) == fake.pointers[0].blob.digest
        assert len(fake.pointers) >= 2


async def test_a_newer_offer_cancels_the_older_one(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake, agent_of(config):
        await ready(fake)
        base = version(fake)
        await fake.offer(DEVICE, TASK, 14, base)  # the worker hangs
        await fake.until(lambda: trained(tmp_path))
        await fake.offer(DEVICE, TASK, 15, base)
        await fake.until(lambda: fake.updates)
        assert decode_frame(fake.updates[0], UpdateHeader)[0].round == 15


async def test_a_worker_that_is_killed_costs_a_round_and_not_the_agent(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake, agent_of(config) as agent:
        await ready(fake)
        base = version(fake)
        await fake.offer(DEVICE, TASK, 13, base)  # the worker is killed
        await fake.until(lambda: agent.learner.failures == 1)
        assert "SIGKILL" in agent.learner.why
        await fake.offer(DEVICE, TASK, 15, base)
        await fake.until(lambda: fake.updates)


async def test_too_few_windows_waits_and_says_so(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    hungry = toy_task(rounds={"min_windows": 100_000})
    async with coordinator(broker) as fake, agent_of(config) as agent:
        await fake.announce(hungry)
        await fake.until(lambda: fake.states and fake.states[-1].windows > 0)
        await fake.offer(DEVICE, hungry, 1, version(fake))
        await fake.until(lambda: "the task wants 100000" in agent.learner.why)
        assert trained(tmp_path) == []


async def test_a_model_is_deployed_and_predicts_live_without_the_coordinator_afterwards(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    data = bundle(TASK, 4)
    output = tmp_path / "predictions.jsonl"
    async with coordinator(broker) as fake:
        await fake.announce(TASK)
        ref = fake.put(data)
        message = ModelPointer(task=TASK.name, version=4, bundle=ref)
        await fake.link.publish(broadcast_topic(FLEET, Kind.FLEET_MODEL), encode(message), retain=True)
        async with agent_of(config):
            await fake.until(lambda: output.exists() and output.read_text().count("\n") > 3)
            await fake.until(lambda: fake.states[-1].model == ref_of(data).digest)
    broker.stop()
    count = output.read_text().count("\n")
    async with agent_of(config) as agent:
        await until(lambda: output.read_text().count("\n") >= count + 5, 20)
        assert agent.inference.model.manifest.version == 4
    line = json.loads(output.read_text().splitlines()[-1])
    assert line["version"] == 4
    assert line["latency_ms"] < 5000


async def test_a_task_change_is_followed(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake, agent_of(config) as agent:
        await ready(fake)
        other = toy_task(name="second", modalities=TASK.modalities[:1])
        await fake.announce(other)
        await fake.until(lambda: set(fake.states[-1].modalities) == {"acc"} and fake.states[-1].windows > 3)
        assert agent.tasks.workspace.task == other


def command(config: Path) -> list[str]:
    code = "import sys; from edge_agent.cli.main import app; app()"
    return [sys.executable, "-P", "-c", code, "run", "--config", str(config)]


def test_a_process_ends_with_0_on_sigterm_and_78_on_a_wrong_key(tmp_path):
    config = write_config(tmp_path, 1)
    config.write_text(config.read_text().replace("warning", "info"))
    child = subprocess.Popen(command(config), cwd=ROOT, env=_env(), stderr=subprocess.PIPE)
    assert child.stderr is not None
    with child.stderr:
        assert child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
    config.write_text(config.read_text().replace("resend_s", "resent_s"))
    wrong = subprocess.run(
        command(config), cwd=ROOT, env=_env(), capture_output=True, text=True, timeout=30, check=False
    )
    assert wrong.returncode == 78
    assert "outbox.resent_s" in wrong.stderr


async def test_sigkill_is_announced_by_the_will_and_the_agent_has_no_torch(tmp_path, broker):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake:
        await fake.announce(TASK)
        child = await asyncio.create_subprocess_exec(
            *command(config), cwd=ROOT, env=_env(), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await fake.until(lambda: fake.states and fake.states[-1].windows >= 8)
            maps = await asyncio.to_thread(Path(f"/proc/{child.pid}/maps").read_text)
            assert "torch" not in maps
            assert "onnxruntime" not in maps, "imported only when a model is loaded"
        finally:
            child.kill()
            await child.wait()
        await fake.until(lambda: fake.states[-1].status == "offline")


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_receipt_for_something_unknown_is_harmless(tmp_path):
    async def scenario() -> None:
        config = write_config(tmp_path, 1)
        _, agent = load(config)
        assert not await agent.outbox.on_receipt(
            Receipt(task="toy", round=1, digest="0" * 64, status="accepted")
        )
        agent.close()

    asyncio.run(scenario())
