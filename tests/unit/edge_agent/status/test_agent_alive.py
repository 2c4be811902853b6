"""systemd's watchdog: an idle agent is fed, one that hangs is not, and the log says at what."""

import asyncio
import os
import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from edge_agent import app
from edge_agent.status.liveness import hang_reason
from protocol.errors import Misconfigured
from runtime.process.daemon import Finished, Progress, supervise
from runtime.process.systemd_notify import Notifier
from tests.unit.edge_agent.messaging.test_agent_session import make

SILENT = '[[source]]\nkind = "hotplug"\nfile = "toy.npz"\nwhen = "never"\n'
IDLE = f'fleet = "f"\ndevice = "d"\n[mqtt]\nport = 1\n{SILENT}'


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A systemd that wants to hear something every 0.2 s; called, it gives what it heard since."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

        def heard() -> int:
            found = 0
            while True:
                try:
                    found += sock.recv(4096) == b"WATCHDOG=1"
                except BlockingIOError:
                    return found

        yield heard


async def fed(heard, at_least: int) -> None:
    heard()
    count = 0
    async with asyncio.timeout(20):
        while count < at_least:
            await asyncio.sleep(0.02)
            count += heard()


async def hungry(heard) -> None:
    """Nothing comes any more: over ten times the pace at which it would."""
    async with asyncio.timeout(20):
        while True:
            heard()
            await asyncio.sleep(0.5)
            if heard() == 0:
                return


async def test_an_agent_with_silent_sensors_no_task_and_no_broker_is_fed_for_ever(tmp_path, systemd):
    agent = make(tmp_path, text=IDLE)
    life = asyncio.create_task(app.live(agent))
    await fed(systemd, 12)
    assert agent.progress.count == 0  # and it achieved nothing at all
    os.kill(os.getpid(), 15)
    assert await life == 0


async def test_a_message_that_is_never_handled_starves_it_and_the_log_names_it(tmp_path, systemd):
    agent = make(tmp_path, text=IDLE)
    for_ever = asyncio.Event()

    async def hang() -> None:
        with agent.progress.work("a message"):
            await for_ever.wait()
        raise Finished("enough")

    agent = replace(agent, dispatcher=SimpleNamespace(run=hang))
    with capture_logs() as logs:
        life = asyncio.create_task(app.live(agent))
        await hungry(systemd)
        assert any("a message hangs for" in entry.get("why", "") for entry in logs)
        for_ever.set()
        assert await life == 0


async def test_a_disk_that_does_not_answer_starves_it(systemd):
    lock = threading.Lock()

    class Spool:
        def pending(self):
            with lock:
                return []

    progress = Progress()

    async def until_hungry() -> None:
        await fed(systemd, 2)
        with lock:
            await hungry(systemd)
        await fed(systemd, 2)  # it answers again: nothing else was wrong

    with capture_logs() as logs:
        assert await supervise({"x": until_hungry}, alive=lambda s: hang_reason(progress, Spool(), s)) == 0
    assert [entry["why"] for entry in logs if "why" in entry] == ["no answer in 0.05 s whether all is well"]


async def test_a_disk_that_refuses_is_no_hang():
    class Spool:
        def pending(self):
            raise Misconfigured("read-only")

    assert await hang_reason(Progress(), Spool(), 1.0) == ""


def test_work_hangs_from_its_beginning_or_its_last_step_and_not_while_it_waits():
    now = [0.0]
    progress = Progress(lambda: now[0])
    now[0] = 1000.0
    assert progress.hanging(10) == ""
    with progress.work("cutting windows"):
        now[0] += 9
        assert progress.hanging(10) == ""
        progress.tick("cutting windows")
        now[0] += 9
        progress.tick()  # of somebody else
        assert progress.hanging(10) == ""
        now[0] += 2
        assert progress.hanging(10) == "cutting windows hangs for 11 s"
    assert progress.hanging(10) == ""
    assert progress.count == 3


def test_work_that_fails_has_ended():
    progress = Progress(lambda: 0.0)
    with pytest.raises(ValueError, match="no"), progress.work("a message"):
        raise ValueError("no")
    assert progress.hanging(-1) == ""


async def test_without_a_watchdog_nobody_is_asked():
    asked = []

    async def alive(_: float) -> str:
        asked.append(1)
        return ""

    await supervise({"x": lambda: asyncio.sleep(0.05)}, notify=Notifier({}), alive=alive)
    assert asked == []
