"""The embedded broker as its own process: ready line, SIGTERM, loopback only, a port in use."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lichen_lab.simulation.processes import embedded_broker as module
from runtime.mqtt.link import Link
from tests.support.network.links import quick, running
from tests.support.services import until


@pytest.fixture
def start():
    started = []

    def launch(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lichen_lab.simulation.processes.embedded_broker", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


async def test_it_says_when_it_is_ready_serves_and_ends_on_sigterm_with_0(start):
    process = start("--port", "0")
    line = process.stdout.readline()
    assert line.startswith(f"{module.READY} 127.0.0.1:")
    port = int(line.rsplit(":", 1)[1])
    async with running(Link(quick(port), "one", filters=[("a/#", 1)])) as link:
        await link.publish("a/b", b"x")
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.to_thread(process.communicate, timeout=5)
    assert process.returncode == 0
    assert (out, err) == ("", "")  # rumqttd would report every packet


def test_only_the_loopback_is_bound(start):
    process = start("--port", "0")
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    tables = [table.read_text() for table in Path("/proc/net").glob("tcp*")]
    rows = [row.split() for row in "".join(tables).splitlines() if f":{port:04X} " in row and " 0A " in row]
    assert {row[1].split(":")[0] for row in rows} == {"0100007F"}


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--port", "99999"], 2, "'99999' is not a port"),
        (["--port", "-1"], 2, "--port"),
        (["--port", "1883", "--port-v3", "1883"], 2, "needs a port of its own"),
        (["--port", "0", "--state", "/dev/null/x"], 73, "--state: .*/dev/null/x"),
    ],
)
def test_a_wrong_option_is_said_in_words(start, options, status, words):
    process = start(*options)
    _, err = process.communicate(timeout=10)
    assert process.returncode == status
    assert re.search(words, err)
    assert "Traceback" not in err


def test_a_port_in_use_is_said_and_unavailable(start):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        process = start("--port", str(port))
        _, err = process.communicate(timeout=10)
    assert process.returncode == 69
    assert f"127.0.0.1:{port}" in err


async def test_more_than_a_hundred_retained_messages_reach_a_wildcard(broker):
    async with running(Link(quick(broker.port), "one", filters=[])) as link:
        await asyncio.gather(*(link.publish(f"s/{i}", b"x", retain=True) for i in range(150)))
    async with running(Link(quick(broker.port), "two", filters=[("s/#", 0)])) as link:
        await until(lambda: link.counters.messages_in == 150, 5)


def test_it_dies_at_sigkill_and_the_port_is_free_again(broker):
    pid = broker.pid
    broker.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    broker.start()
    broker.restart()
