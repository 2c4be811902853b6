"""One trace from the windows of a device to its first prediction, by a real fleet of processes."""

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from runtime.tracing.export import PREFIX
from runtime.tracing.spans import OF_A_DEVICE, PARENTS
from tests.support.agent.data import write_toy
from tests.support.network.brokers import broker
from tests.support.network.collector import Collector, collector
from tests.support.services import until

__all__ = ["broker"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
TASK = """
name = "toy"
method = "qqr"
labels = ["slow", "middle", "fast"]
[[modalities]]
name = "acc"
channels = 3
rate_hz = 50
low = -40
high = 40
[[modalities]]
name = "gyr"
channels = 2
rate_hz = 25
[window]
length_s = 2.56
stride_s = 1.28
[network]
feature_dim = 8
hidden_dim = 8
[network.encoders.acc]
width = 4
depth = 2
[network.encoders.gyr]
width = 4
depth = 2
[rounds]
count = 1
min_devices = 2
min_windows = 8
deadline_s = 300
"""


@asynccontextmanager
async def daemon(*words: str, folder: Path, endpoint: str):
    with (folder / f"{words[0]}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lichen.cli", *words),
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(ROOT), "LICHEN_TRACING__ENDPOINT": endpoint},
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def coordinator_config(folder: Path, port: int) -> str:
    (folder / "task.toml").write_text(TASK)
    config = folder / "coordinator.toml"
    config.write_text(
        f'fleet = "test"\nstate_dir = "state"\ntask = "task.toml"\nspread_s = 0.0\n[mqtt]\nport = {port}\n'
    )
    return str(config)


def agent_config(folder: Path, name: str, port: int) -> str:
    folder.mkdir()
    write_toy(folder, 60)
    config = folder / "agent.toml"
    config.write_text(
        f'fleet = "test"\ndevice = "{name}"\nstate_dir = "state"\ncache_dir = "cache"\nstate_every_s = 1\n'
        f"[mqtt]\nport = {port}\n[deploy.trial]\nwindows = 3\n"
        '[[source]]\nkind = "replay"\nfile = "toy.npz"\nspeed = 20\nloop = true\n'
    )
    return str(config)


async def test_one_update_is_one_trace(broker, tmp_path):
    with collector() as there:
        async with AsyncExitStack() as stack:
            fleet = {"folder": tmp_path, "endpoint": there.endpoint}
            for name in ("d1", "d2"):
                config = agent_config(tmp_path / name, name, broker.port)
                await stack.enter_async_context(daemon("agent", "run", "--config", config, **fleet))
            config = coordinator_config(tmp_path, broker.port)
            await stack.enter_async_context(daemon("coordinator", "serve", "--config", config, **fleet))
            await until(lambda: is_whole(there), 400)
        by_name = spans_of(there)
    assert len({span.trace_id for _, span in there.spans}) == 1
    ids = {span.span_id: span for _, span in there.spans}
    for (name, device), (service, span) in by_name.items():
        parent = PARENTS[name]
        if not parent:
            assert span.parent_span_id == b""
            continue
        above = ids[span.parent_span_id]
        assert above.name == parent
        if parent in OF_A_DEVICE:
            assert device_of(above) == device
        assert span.end_time_unix_nano >= span.start_time_unix_nano
        at_device = name in OF_A_DEVICE - {"ingest", "verify", "journal"}
        assert service == ("lichen-agent" if at_device else "lichen-coordinator")
    train, learn = by_name["train", "d1"][1], by_name["learn", "d1"][1]
    assert learn.start_time_unix_nano <= train.start_time_unix_nano
    assert train.end_time_unix_nano <= learn.end_time_unix_nano


def device_of(span) -> str:
    return next((one.value.string_value for one in span.attributes if one.key == f"{PREFIX}device"), "")


def spans_of(there: Collector):
    return {(span.name, device_of(span)): (service, span) for service, span in there.spans}


def is_whole(there: Collector) -> bool:
    wanted = {(name, d) for name in PARENTS for d in (("d1", "d2") if name in OF_A_DEVICE else ("",))}
    return wanted <= spans_of(there).keys()
