"""Children are restarted when they die by themselves, not when killed on purpose, and none is left behind."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from lichen_lab.simulation.processes.process import Child, Nursery

WAIT_S = 10.0


async def until(what: str, holds) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"waited {WAIT_S:g} s for {what}"
        await asyncio.sleep(0.02)


def child(tmp_path: Path, code: str, name: str = "one") -> Child:
    return Child(name, [sys.executable, "-c", code], tmp_path / f"{name}.log")


@pytest.fixture
def said() -> list[str]:
    return []


async def test_a_child_that_dies_is_started_again_and_prepared(tmp_path: Path, said: list[str]) -> None:
    nursery = Nursery(said.append)
    prepared: list[int] = []
    nursery.before_restart["one"] = lambda: prepared.append(1)
    one = await nursery.start(child(tmp_path, "import time; time.sleep(60)"))
    try:
        one.signal(signal.SIGKILL)
        await until("the restart", lambda: one.starts == 2)
        assert prepared == [1]
        assert "one died" in said[0]
    finally:
        await nursery.stop()
    assert one.pid is None


async def test_a_configuration_error_is_not_tried_again(tmp_path: Path, said: list[str]) -> None:
    nursery = Nursery(said.append)
    one = await nursery.start(child(tmp_path, "import sys; print('agent.toml: mqtt.hosst'); sys.exit(78)"))
    error = await asyncio.wait_for(nursery.failed, WAIT_S)
    assert "exit status 78" in str(error)
    assert "mqtt.hosst" in str(error), "the end of its log is shown"
    assert one.starts == 1
    await nursery.stop()


async def test_who_is_killed_on_purpose_stays_dead_until_revived(tmp_path: Path, said: list[str]) -> None:
    nursery = Nursery(said.append)
    one = await nursery.start(child(tmp_path, "import time; time.sleep(60)"))
    try:
        await nursery.kill(one)
        await asyncio.sleep(0.1)
        assert (one.pid, said) == (None, [])
        await nursery.revive(one)
        assert one.pid is not None
        one.signal(signal.SIGKILL)
        await until("the restart after the revival", lambda: one.starts == 3)
    finally:
        await nursery.stop()


async def test_a_stubborn_child_and_its_children_do_not_survive(tmp_path: Path, said: list[str]) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    nursery = Nursery(said.append)
    one = await nursery.start(child(tmp_path, stubborn))
    await until("the grandchild", lambda: bool(one.log.read_text().strip()))
    grandchild = int(one.log.read_text())
    await one.stop(grace_s=0.2)
    await nursery.stop()
    assert one.pid is None
    await until(
        "the grandchild's end",
        lambda: (
            not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
        ),
    )


async def test_children_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    parent = (
        "import asyncio, sys, os, signal\n"
        "from pathlib import Path\n"
        "from lichen_lab.simulation.processes.process import Child\n"
        "async def main():\n"
        "    words = [sys.executable, '-c', 'import time; time.sleep(60)']\n"
        f"    one = Child('x', words, Path({str(tmp_path)!r}) / 'x.log')\n"
        "    await one.start()\n"
        "    print(one.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", parent, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), WAIT_S)
    orphan = int(out)
    await until(
        "the orphan's end",
        lambda: not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE,
    )


async def test_a_dead_child_is_stopped_without_ado(tmp_path: Path, said: list[str]) -> None:
    nursery = Nursery(said.append)
    one = await nursery.start(child(tmp_path, "pass"), keep=False)
    assert one.process is not None
    await asyncio.wait_for(one.process.wait(), WAIT_S)
    await nursery.stop()
    assert one.starts == 1
