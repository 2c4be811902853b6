"""`lichen device logs`: a real agent in its own process, a real coordinator, and the operator's command."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.app import open_coordinator
from protocol.messages import ModalityState, State, encode
from protocol.topics import Kind, device_filters, device_topic
from runtime.mqtt.link import Link
from tests.support.agent.data import write_toy
from tests.support.coordinator.fake import FLEET, TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.network.brokers import broker
from tests.support.network.links import quick, running
from tests.support.services import beside, until

__all__ = ["broker"]
ROOT = Path(__file__).parents[2]


def configured(folder: Path, port: int, device: str, extra: str) -> Path:
    folder.mkdir()
    write_toy(folder, 60)
    (folder / "password").write_text("correct-horse\n")
    path = folder / "agent.toml"
    path.write_text(
        f'fleet = "{FLEET}"\ndevice = "{device}"\nstate_dir = "state"\ncache_dir = "cache"\n'
        f'[mqtt]\nport = {port}\nusername = "{device}"\npassword_file = "password"\n{extra}\n'
        '[[source]]\nkind = "replay"\nfile = "toy.npz"\nloop = true\n'
    )
    return path


@asynccontextmanager
async def agent(folder: Path, port: int, extra: str = "", device: str = "d1"):
    path = configured(folder, port, device, extra)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lichen.cli", "agent", "run", "--config", str(path)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def logs(config: Path, *args: str) -> tuple[int, str, str]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "lichen.cli", "device", "logs", *args, "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.long
async def test_an_operator_reads_the_last_lines_of_a_device_that_permits_it(broker, tmp_path):
    settings = settings_for(tmp_path, broker.port)
    config = tmp_path / "coordinator.toml"
    config.write_text(f'fleet = "{FLEET}"\nstate_dir = "{settings.state_dir}"\ntask = "task.toml"\n')
    permitted = "[diagnosis]\nsend_logs = true"
    async with (
        open_coordinator(settings, tiny_task(min_devices=9), TinyServer(), jobs=TinyJobs()) as app,
        beside(app.run()),
        agent(tmp_path / "open", broker.port, permitted) as process,
        agent(tmp_path / "closed", broker.port, device="d2"),
    ):
        await until(lambda: app.roster.online() == ("d1", "d2"), 60)
        app.storage.ledger.save()

        status, out, err = await logs(config, "d1", "--format", "json")
        assert status == 0, err
        lines = json.loads(out)["lines"]
        assert any("connected" in line["text"] for line in lines), lines
        assert "correct-horse" not in out
        status, out, err = await logs(config, "d1", "--last")
        assert (status, len(out.splitlines())) == (0, len(lines)), err

        status, out, err = await logs(config, "d2")
        assert (status, out) == (65, "")
        assert "d2 sends no log lines: its owner does not permit it" in err

        process.terminate()
        await until(lambda: app.roster.online() == ("d2",), 30)
        app.storage.ledger.save()
        status, out, err = await logs(config, "d1")
        assert (status, out) == (75, "")
        assert "d1 is stopped: it cannot answer" in err


@pytest.mark.long
async def test_a_device_of_an_older_release_does_not_answer_and_the_wait_ends(broker, tmp_path):
    """It ignores a command that it does not know: here nobody answers at all."""
    settings = settings_for(tmp_path, broker.port)
    config = tmp_path / "coordinator.toml"
    config.write_text(f'fleet = "{FLEET}"\nstate_dir = "{settings.state_dir}"\ntask = "task.toml"\n')
    state = State(status="online", device="old", modalities={"acc": ModalityState()}, windows=1)
    async with (
        running(Link(quick(broker.port), "old", filters=list(device_filters(FLEET, "old")))) as link,
        open_coordinator(settings, tiny_task(min_devices=9), TinyServer(), jobs=TinyJobs()) as app,
        beside(app.run()),
    ):
        await link.publish(device_topic(FLEET, "old", Kind.STATE), encode(state), retain=True)
        await until(lambda: app.roster.online() == ("old",), 15)
        app.storage.ledger.save()
        status, out, err = await logs(config, "old", "--wait", "4")
        assert (status, out) == (75, "")
        assert "old did not answer within 4 s" in err
        assert "older than this question" in err
