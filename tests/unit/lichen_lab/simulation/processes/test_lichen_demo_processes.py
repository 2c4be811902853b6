"""Children are restarted when they die by themselves, not when killed on purpose, and none is left behind."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from lichen_lab.simulation.processes.fleet_files import FleetFiles
from lichen_lab.simulation.processes.process import Child
from lichen_lab.simulation.processes.testbed import BROKER, COORDINATOR, Testbed
from protocol.errors import Transient

WAIT_S = 10.0


async def until(what: str, holds) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"waited {WAIT_S:g} s for {what}"
        await asyncio.sleep(0.02)


SLEEP = "import time; time.sleep(60)"


def words(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
async def bed(tmp_path: Path, said: list[str]) -> AsyncIterator[Testbed]:
    async with Testbed(FleetFiles(tmp_path, 1, "f"), pause_s=0.1, restarts=2, say=said.append) as made:
        yield made
    assert [child.pid for child in made.children.values() if child.pid is not None] == []


async def test_a_process_that_dies_is_started_again_and_prepared(bed: Testbed, said: list[str]) -> None:
    prepared: list[int] = []
    bed.before_restart["one"] = lambda: prepared.append(1)
    one = await bed.start("one", words(SLEEP))
    one.signal(signal.SIGKILL)
    await until("the restart", lambda: one.starts == 2)
    assert prepared == [1]
    assert "one died" in said[0]
    assert bed.deaths == ["one ended by itself with status -9: "]
    assert bed.kills == {}


async def test_a_configuration_error_is_not_tried_again(bed: Testbed) -> None:
    one = await bed.start("one", words("import sys; print('agent.toml: mqtt.hosst'); sys.exit(78)"))
    with pytest.raises(Transient, match="exit status 78") as error:
        await bed.until("nothing", lambda: False, WAIT_S)
    assert "mqtt.hosst" in str(error.value), "the end of its log is shown"
    assert one.starts == 1


async def test_a_process_is_not_started_again_for_ever(bed: Testbed) -> None:
    one = await bed.start("one", words("import sys; sys.exit(3)"))
    with pytest.raises(Transient, match="one ended with exit status 3"):
        await bed.until("nothing", lambda: False, WAIT_S)
    assert one.starts == 3


async def test_status_0_is_an_end_where_the_process_may_end(bed: Testbed) -> None:
    for restart in ("no", "on-failure"):
        await bed.start(restart, words("pass"), restart=restart)
        await bed.until("its end", lambda restart=restart: bed.ended(restart), WAIT_S)
    daemon = await bed.start("always", words("pass"))
    await bed.until("another start", lambda: daemon.starts > 1, WAIT_S)
    assert {death.split()[0] for death in bed.deaths} == {"always"}


async def test_what_is_not_kept_and_fails_ends_every_wait(bed: Testbed) -> None:
    one = await bed.start("one", words("import sys; sys.exit(1)"), restart="no")
    with pytest.raises(Transient, match="one ended with exit status 1"):
        await bed.until("nothing", lambda: False, WAIT_S)
    assert one.starts == 1


async def test_a_wait_has_an_end_and_shows_the_logs(bed: Testbed) -> None:
    await bed.start("one", words("print('I wait for a sensor', flush=True); import time; time.sleep(60)"))
    await bed.until("its first words", lambda: "sensor" in bed.said("one"), WAIT_S)
    with pytest.raises(
        Transient, match=r"(?s)waited 0\.1 s for pigs to fly; .*--- one:\nI wait for a sensor"
    ):
        await bed.until("pigs to fly", lambda: False, 0.1)


async def test_a_broker_that_does_not_come_up_is_told(bed: Testbed) -> None:
    with pytest.raises(Transient, match=r"(?s)the broker does not listen; .*address in use"):
        await bed.start(BROKER, words("print('address in use')"), restart="no")


async def test_who_is_killed_on_purpose_stays_dead_until_started_again(bed: Testbed, said: list[str]) -> None:
    one = await bed.start("one", words(SLEEP))
    assert await bed.kill("one")
    await asyncio.sleep(0.2)
    assert (one.pid, said, bed.deaths) == (None, [], [])
    assert not await bed.kill("one"), "it does not run any more"
    assert await bed.start("one") is one
    assert one.pid is not None
    one.signal(signal.SIGKILL)
    await until("the restart after the return", lambda: one.starts == 3)
    assert bed.kills == {"one": 1}


async def test_a_stubborn_child_and_its_children_do_not_survive(bed: Testbed) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    one = await bed.start("one", words(stubborn), restart="no")
    await until("the grandchild", lambda: bool(one.log.read_text().strip()))
    grandchild = int(one.log.read_text())
    await one.stop(grace_s=0.2)
    assert one.pid is None
    await until(
        "the grandchild's end",
        lambda: (
            not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
        ),
    )


async def test_agents_are_stopped_before_the_coordinator_and_the_broker_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    stop = Child.stop

    async def noted(self: Child, grace_s: float = 8.0) -> int | None:
        ended.append(self.name)
        return await stop(self, grace_s)

    monkeypatch.setattr(Child, "stop", noted)
    async with Testbed(FleetFiles(tmp_path, 1, "f")) as bed:
        monkeypatch.setattr(bed, "_listening", lambda _: asyncio.sleep(0))
        for name in (BROKER, COORDINATOR, "one"):
            await bed.start(name, words(SLEEP))
    assert ended == ["one", COORDINATOR, BROKER]


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
