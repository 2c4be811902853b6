"""Real processes over Mosquitto: a malicious client at full speed changes no bit of what the others learn."""

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coordinator.status.history import read
from coordinator.storage.run_id import FILE
from protocol.errors import Reason
from tests.faults.test_coordinator_kill import ROOT, Child
from tests.support.coordinator.fake import FakeDevice, tiny_task

HONEST = ("d1", "d2", "d3", "d4")


async def villain(port: int, log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.network.hostile_child",
            str(port),
            "evil",
            "d1",
            cwd=ROOT,
            stdout=out,
            stderr=out,
        )


async def trained(folder: Path, port: int, *, hostile: bool) -> dict:
    task = tiny_task(count=3, min_devices=4, deadline_s=4.0)
    child = Child(folder, port, task, spread_s=1.5)
    evil = None
    async with AsyncExitStack() as stack, asyncio.timeout(90):
        try:
            if hostile:
                evil = await villain(port, folder / "evil.log")
            for number, name in enumerate(HONEST, start=1):
                await stack.enter_async_context(FakeDevice(port, name, value=float(number)))
            await child.start()
            assert await child.status() == 0
        finally:
            await child.kill()
            if evil is not None:
                assert evil.returncode is None, (folder / "evil.log").read_text()
                evil.kill()
                await evil.wait()
    return read(folder / "coordinator")


@pytest.mark.long
async def test_a_malicious_client_changes_no_bit_and_is_quarantined(tmp_path, mosquitto) -> None:
    for name in ("with", "without"):  # the same training run, so that equal models have equal digests
        (tmp_path / name / "coordinator").mkdir(parents=True)
        (tmp_path / name / "coordinator" / FILE).write_text("0" * 32)
    found = await trained(tmp_path / "with", mosquitto.port, hostile=True)
    refused = {row["reason"]: row["count"] for row in found["refusals"] if row["device"] == "evil"}
    assert set(refused) & {
        reason.value for reason in (Reason.NON_FINITE, Reason.MALFORMED, Reason.OUT_OF_BOUNDS)
    }
    assert refused[Reason.QUARANTINED.value] >= 1
    assert [row["device"] for row in found["quarantine"]] == ["evil"]
    assert {row["device"] for row in found["refusals"]} == {"evil"}  # the victim is not blamed
    assert [v["devices"] for v in found["versions"]] == [[], *[list(HONEST)] * 3]
    without = await trained(tmp_path / "without", mosquitto.port, hostile=False)
    assert [v["manifest"] for v in found["versions"]] == [v["manifest"] for v in without["versions"]]
