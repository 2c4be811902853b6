"""SIGKILL to a real agent while a model is on trial, and no network from then on: it goes back by itself."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from edge_agent.deployment.bundle_store import read_record
from protocol.rollout import Trial
from tests.e2e.test_agent_e2e import ROOT, TASK, _env, command, coordinator, write_config
from tests.e2e.test_deploy_trial import announce, told
from tests.support.network.brokers import broker
from tests.support.services import until

__all__ = ["broker"]


@asynccontextmanager
async def process(config: Path, isolation: str):
    """A real agent; it is killed in the end, and what it started must not outlive it."""
    child = await asyncio.create_subprocess_exec(
        *command(config), cwd=ROOT, env=_env(), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        started = psutil.Process(child.pid).children(recursive=True)
        child.kill()
        await child.wait()
    assert started or isolation == "none", "models run in processes of their own"
    await until(lambda: not any(_lives(one) for one in started), 20)


def _lives(one: psutil.Process) -> bool:
    try:
        return bool(one.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def versions(folder: Path) -> list[int]:
    """Of the predictions."""
    path = folder / "predictions.jsonl"
    return [json.loads(line)["version"] for line in path.read_text().splitlines()[:-1]]


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["process", "none"])
async def test_killed_on_trial_it_is_tried_again_and_then_goes_back_with_no_network(
    tmp_path: Path, broker, isolation
):
    extra = f'isolation = "{isolation}"\n[deploy]\nmax_starts = 1\n[deploy.trial]\nwindows = 3\n'
    config = write_config(tmp_path, broker.port, extra)
    book = tmp_path / "state" / "models"
    async with coordinator(broker) as fake:
        await fake.announce(TASK)
        async with process(config, isolation):
            await announce(fake, 1, 1, None)
            await fake.until(lambda: told(fake, 1, "committed"), 60)
            await announce(fake, 2, 2, Trial(windows=100_000), own=True)
            await fake.until(lambda: told(fake, 2, "trial"), 60)
            await until(lambda: versions(tmp_path)[-1] == 2, 20)
        broker.kill()
        assert read_record(book).trial.starts == 0
        (tmp_path / "predictions.jsonl").unlink()
        async with process(config, isolation):
            await until(lambda: (tmp_path / "predictions.jsonl").exists() and 2 in versions(tmp_path), 60)
            assert read_record(book).trial.starts == 1, "counted before it was loaded"
        (tmp_path / "predictions.jsonl").unlink()
        async with process(config, isolation):
            await until(lambda: (tmp_path / "predictions.jsonl").exists() and versions(tmp_path), 60)
            await until(lambda: read_record(book).trial is None, 20)
            assert set(versions(tmp_path)) == {1}, "back by itself"
        assert read_record(book).report.phase == "rolled_back"
        broker.restart()
