"""Both halves of a rollout: real agents, the coordinator and `lichen rollout`, over a real broker."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coordinator.app import run
from protocol.tasks.rounds import Rounds
from tests.e2e.test_agent_e2e import DEVICE, ROOT, TASK, agent_of, write_config
from tests.support.agent.bundle import bundle, tiny_onnx
from tests.support.agent.fake_coordinator import FLEET
from tests.support.coordinator.fake import TinyJobs, TinyServer, settings_for
from tests.support.coordinator.rollouts import rollout
from tests.support.network.brokers import broker

__all__ = ["broker"]
NEVER = TASK.model_copy(update={"rounds": Rounds(count=1, min_devices=99)})
FILES = {
    "first": bundle(TASK, 1),
    "bad": bundle(TASK, 2, tiny_onnx(TASK, bias=100.0)),
    "good": bundle(TASK, 3, tiny_onnx(TASK, bias=0.001)),
}


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Child processes find this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def config_of(folder: Path, port: int, name: str, site: str) -> Path:
    folder.mkdir()
    file = write_config(folder, port, f"[labels]\nsite = '{site}'\n")
    file.write_text(file.read_text().replace(f'device = "{DEVICE}"', f'device = "{name}"'))
    return file


async def over(folder: Path, number: int) -> dict:
    """The status once a rollout is over."""
    async with asyncio.timeout(60):
        while True:
            found = await rollout(folder, "status")
            assert found["rollout"]["number"] == number
            if found["rollout"]["phase"] != "open":
                return found
            await asyncio.sleep(0.2)


@pytest.mark.long
async def test_a_bad_version_ends_at_the_canary_and_a_good_one_reaches_all(tmp_path, broker):
    (tmp_path / "task.toml").write_text("")
    (tmp_path / "coordinator.toml").write_text(
        f'fleet = "{FLEET}"\nstate_dir = "coordinator"\ntask = "task.toml"\n[rollout]\nmode = "manual"\n'
        'canary = "label:site=barn"\nsoak_s = 0.0\n[rollout.trial]\nwindows = 20\nmin_agreement = 0.9\n'
        "max_latency_ratio = 1000.0\n"
    )
    for name, data in FILES.items():
        (tmp_path / f"{name}.bundle").write_bytes(data)
    settings = settings_for(tmp_path, broker.port, fleet=FLEET, rollout={"mode": "manual"})

    async def create(name: str, *words: str) -> None:
        await rollout(tmp_path, "create", "--bundle", str(tmp_path / f"{name}.bundle"), *words)

    async with AsyncExitStack() as stack:
        running = asyncio.create_task(run(settings, NEVER, TinyServer(), jobs=TinyJobs()))
        stack.callback(running.cancel)
        barn, yard = [
            await stack.enter_async_context(agent_of(config_of(tmp_path / name, broker.port, name, name)))
            for name in ("barn", "yard")
        ]
        await create("first", "--canary", "share:1", "--windows", "3")
        found = await over(tmp_path, 1)
        assert (found["rollout"]["phase"], found["stable"]["version"]) == ("complete", 1), found
        await create("bad")
        found = await over(tmp_path, 2)
        assert found["rollout"]["phase"] == "failed"
        assert "barn rolled back: " in found["rollout"]["why"]
        [canary] = found["rollout"]["devices"]
        assert canary["device"] == "barn"
        assert canary["measures"]["agreement"] < 0.9
        assert yard.status()["model_trial"]["version"] == 1, "it never heard of the bad one"
        await create("good")
        found = await over(tmp_path, 3)
        assert found["rollout"]["phase"] == "complete", found
        assert {one["device"]: one["phase"] for one in found["rollout"]["devices"]} == {
            "barn": "committed",
            "yard": "committed",
        }
        for one in (barn, yard):
            assert one.status()["model_version"] == 3
            assert one.dispatcher.refused == {}
