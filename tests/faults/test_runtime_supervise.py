"""How daemons end: real processes, real signals, true exit statuses."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol.errors import Misconfigured, Transient
from runtime.process import daemon as module
from runtime.process.daemon import Finished, Progress, report, run, supervise
from runtime.process.systemd_notify import Notifier

ROOT = Path(__file__).parents[2]


@pytest.fixture
def daemon():
    started = []

    def start(what: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.support.processes.daemon", what],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _until(process: subprocess.Popen[str], line: str) -> None:
    """Read up to a line: the daemon is that far."""
    assert any(line in said for said in process.stdout), line


def _rest(process: subprocess.Popen[str]) -> str:
    """The output up to the end; ``communicate`` loses what came together with a line that was read before."""
    output = process.stdout.read()
    process.wait(15)
    return output


def _after(process: subprocess.Popen[str], *signals: signal.Signals) -> tuple[int, str, float]:
    """Exit status, output and seconds from the first signal to the end."""
    _until(process, "running")
    began = time.monotonic()
    for number in signals:
        process.send_signal(number)
        time.sleep(0.1)
    output = _rest(process)
    return process.returncode, output, time.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(daemon, number):
    status, output, seconds = _after(daemon("idle"), number)
    assert status == 0
    assert output.index("goodbye\n") < output.index("ended")
    assert seconds < 2


@pytest.mark.parametrize(
    ("what", "wanted", "words"),
    [
        ("misconfigured", 78, "agent.toml: mqtt.host: wrong"),
        ("crash", 70, "ZeroDivisionError: boom"),
        ("finished", 0, "all rounds are done"),
    ],
)
def test_the_exit_status_is_true(daemon, what, wanted, words):
    status, output, _ = _after(daemon(what))
    assert status == wanted
    assert words in output
    assert "ended" in output
    assert ("goodbye" in output) == (what == "finished")


def test_misconfigured_before_the_services_is_78_too(daemon):
    process = daemon("early")
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 78
    assert "before anything ran" in output
    assert "Traceback" not in output


def test_a_goodbye_that_hangs_is_cut_off(daemon):
    status, output, seconds = _after(daemon("slow-goodbye"), signal.SIGTERM)
    assert status == 0
    assert "goodbye_timed_out" in output
    assert seconds < 2


def test_a_second_signal_cuts_the_goodbye_short(daemon):
    status, output, seconds = _after(daemon("slow-goodbye"), signal.SIGTERM, signal.SIGTERM)
    assert status == 0
    assert "goodbye_timed_out" in output
    assert seconds < 0.9


def test_a_service_that_will_not_stop_and_a_thread_that_hangs_cannot_hold_it(daemon):
    stubborn, thread = daemon("stubborn"), daemon("thread")
    for process in (stubborn, thread):
        _until(process, "at work")
        process.send_signal(signal.SIGTERM)
    output = _rest(stubborn)
    assert stubborn.returncode == 70
    assert "services_did_not_stop" in output
    output = _rest(thread)
    assert thread.returncode in (0, 70)
    assert "a thread did not end" in output


@pytest.fixture
def systemd(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        address = str(tmp_path / "notify")
        sock.bind(address)
        sock.setblocking(False)

        def heard() -> list[str]:
            found = []
            while True:
                try:
                    found.append(sock.recv(4096).decode())
                except BlockingIOError:
                    return found

        yield address, heard


def test_systemd_hears_ready_and_stopping(daemon, systemd):
    address, heard = systemd
    process = daemon("idle", NOTIFY_SOCKET=address)
    assert "running" in process.stdout.readline()
    time.sleep(0.2)
    assert heard() == ["READY=1"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert heard() == ["STOPPING=1"]


async def test_the_watchdog_is_fed_only_while_there_is_progress(systemd):
    address, heard = systemd
    notify = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "80000", "WATCHDOG_PID": str(os.getpid())})
    progress = Progress()
    counts = []

    async def work() -> None:
        await asyncio.sleep(0)
        heard()
        for busy in (True, False, True):
            for _ in range(20):
                if busy:
                    progress.tick()
                await asyncio.sleep(0.01)
            counts.append(heard().count("WATCHDOG=1"))

    assert await supervise({"work": work}, notify=notify, progress=progress) == 0
    assert counts[0] >= 4
    assert counts[1] <= 1  # what was achieved just before
    assert counts[2] >= 4


async def test_without_a_progress_counter_the_turning_loop_counts(systemd):
    address, heard = systemd
    notify = Notifier({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "40000"})
    await supervise({"work": lambda: asyncio.sleep(0.15)}, notify=notify)
    assert heard().count("WATCHDOG=1") >= 4


def test_notifier_status_abstract_socket_other_process_and_nobody(systemd):
    address, heard = systemd
    Notifier({"NOTIFY_SOCKET": address}).status("round 3\nof 5")
    assert heard() == ["STATUS=round 3 of 5"]
    assert Notifier({"WATCHDOG_USEC": "100", "WATCHDOG_PID": "1"}).watchdog_s is None
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": "/no/such/socket"}).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"lichen-test-{os.getpid()}"
        sock.bind("\0" + name)
        sock.settimeout(2)
        Notifier({"NOTIFY_SOCKET": "@" + name}).watchdog()
        assert sock.recv(100) == b"WATCHDOG=1"


async def test_one_that_returns_is_done_and_the_others_go_on():
    order = []

    async def short() -> None:
        order.append("short")

    async def longer() -> None:
        await asyncio.sleep(0.05)
        order.append("longer")

    assert await supervise({"short": short, "longer": longer}) == 0
    assert order == ["short", "longer"]


async def test_finished_says_goodbye_first():
    said = []

    async def work() -> None:
        raise Finished

    async def goodbye() -> None:
        said.append("goodbye")

    assert await supervise({"work": work}, on_stop=goodbye) == 0
    assert said == ["goodbye"]


async def test_a_goodbye_that_fails_does_not_change_the_status():
    async def goodbye() -> None:
        raise Transient("not connected")

    async def work() -> None:
        raise Finished

    assert await supervise({"work": work}, on_stop=goodbye) == 0


async def test_supervise_itself_cancelled_takes_its_services_with_it():
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    task = asyncio.create_task(supervise({"work": work}))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task], timeout=5)
    assert task.cancelled()
    assert ended == [True]


def test_report_looks_into_groups():
    nested = ExceptionGroup("a", [ValueError("x"), ExceptionGroup("b", [Misconfigured("key")])])
    assert report(nested) == 78
    assert report(ExceptionGroup("a", [Transient("x")])) == 75
    assert report(ExceptionGroup("a", [Transient("x"), ValueError("y")])) == 70


def test_run_returns_the_status_on_uvloop_or_without(monkeypatch):
    async def main() -> int:
        return 3

    assert run(main) == 3
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert module.loop_factory() is None
    assert run(main) == 3


async def test_what_is_no_error_of_a_service_goes_through_to_whoever_runs_it() -> None:
    """As the limit of time of a test, which must not look as if a simulated device had failed."""

    class LimitOfTimeError(BaseException):
        pass

    async def work() -> None:
        raise LimitOfTimeError

    with pytest.raises(BaseExceptionGroup) as found:
        await supervise({"work": work})
    assert found.group_contains(LimitOfTimeError)
