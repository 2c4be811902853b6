"""Two tasks in one process over the real Mosquitto: one begins, both are killed, resume, and one ends."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from coordinator.status.history import read
from tests.support.coordinator.fake import FLEET, FakeDevice
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture
from tests.support.services import until
from tests.support.several_tasks_child import ROUNDS

pytestmark = [pytest.mark.mosquitto, pytest.mark.long]
ROOT = Path(__file__).resolve().parents[2]
SOUND = f"{FLEET}~sound"
TABLE = '[[tasks]]\nname = "sound"\ntask = "task.toml"\n'


class Process:
    """The coordinator's process; its file can change while it runs."""

    def __init__(self, folder: Path, port: int, alone: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.port = folder, port
        self._more = [] if alone is None else [alone]
        self.process: asyncio.subprocess.Process

    def write(self, *tables: str) -> None:
        (self.folder / "task.toml").write_text("")
        text = f'fleet = "{FLEET}"\nstate_dir = "state"\ntask = "task.toml"\nexit_when_done = true\n'
        text += "exit_linger_s = 0.0\noffer_every_s = 0.5\nspread_s = 0.0\naway_grace_s = 600.0\n"
        text += f"[mqtt]\nport = {self.port}\nbackoff_min_s = 0.05\nbackoff_max_s = 0.3\n"
        (self.folder / "coordinator.toml").write_text(text + "".join(tables))

    async def start(self) -> None:
        file = str(self.folder / "coordinator.toml")
        with (self.folder / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tests.support.several_tasks_child", file, *self._more),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def ends_well(self) -> None:
        async with asyncio.timeout(60):
            assert await self.process.wait() == 0, (self.folder / "log").read_text()[-5000:]


@asynccontextmanager
async def devices(port: int, fleet: str, session: str = "") -> AsyncIterator[list[FakeDevice]]:
    """Two devices of a task; the second one sends nothing until it may."""
    size = 64 if fleet == FLEET else 32
    async with AsyncExitStack() as stack:
        made = [
            FakeDevice(port, f"d{n}", value=float(n), size=size, mute=n == 2, fleet=fleet, session=session)
            for n in (1, 2)
        ]
        yield [await stack.enter_async_context(one) for one in made]


async def in_mid_round(found: list[FakeDevice]) -> None:
    first = found[0]
    await first.wait_for(lambda: any(r.accepted == ("d1",) for r in first.rounds), 60)


def let_all_send(found: list[FakeDevice]) -> None:
    found[1].mute = False


def versions(folder: Path) -> list[tuple[int, str]]:
    found = read(folder)
    assert found["phase"] == "done"
    assert [one["devices"] for one in found["versions"][1:]] == [["d1", "d2"]] * ROUNDS
    return [(one["version"], one["manifest"]) for one in found["versions"]]


async def alone(folder: Path, port: int, fleet: str, name: str | None) -> list[tuple[int, str]]:
    """The versions that a task makes in a process that runs nothing else."""
    process = Process(folder, port, name)
    process.write(*([] if name is None else [TABLE]))
    async with devices(port, fleet, "-alone") as found:
        let_all_send(found)
        await process.start()
        await process.ends_well()
    return versions(folder / "state" if name is None else folder / "state/tasks" / name)


async def test_a_task_starts_in_mid_round_of_another_and_both_survive_sigkill(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    folder = tmp_path / "both"
    process = Process(folder, mosquitto.port)
    process.write()
    async with devices(mosquitto.port, FLEET) as walk, devices(mosquitto.port, SOUND) as sound:
        await process.start()
        try:
            await in_mid_round(walk)
            process.write(TABLE)
            process.reload()
            await in_mid_round(sound)

            await process.kill()
            await process.start()
            let_all_send(sound)
            await sound[0].wait_for(lambda: any(r.phase == "done" for r in sound[0].rounds), 60)
            assert walk[0].rounds[-1].round == 1, "the main task is still in the round in which it was killed"
            assert process.process.returncode is None, "it ends when all tasks are done"
            let_all_send(walk)
            await process.ends_well()
        finally:
            await process.kill()
        assert {one.status for found in (walk, sound) for one in found[0].receipts} == {"accepted"}
        assert len({one.digest for one in walk[0].receipts}) == ROUNDS, "no work was done twice"

    state = folder / "state"
    assert versions(state) == await alone(tmp_path / "walk", mosquitto.port, FLEET, None)
    assert versions(state / "tasks/sound") == await alone(tmp_path / "sound", mosquitto.port, SOUND, "sound")


async def test_a_task_that_leaves_the_file_is_withdrawn_and_continues_when_it_comes_back(
    tmp_path: Path,
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    process = Process(tmp_path, mosquitto.port)
    process.write(TABLE)
    await process.start()
    try:
        async with devices(mosquitto.port, FLEET) as walk, devices(mosquitto.port, SOUND) as sound:
            await in_mid_round(walk)
            await in_mid_round(sound)
            process.write()
            process.reload()
            await until(lambda: "task_ended" in (tmp_path / "log").read_text(), seconds=30)
        async with devices(mosquitto.port, SOUND, "-later") as later:
            await asyncio.sleep(0.5)
            assert (later[0].tasks, later[0].rounds, later[0].offers) == ([], [], [])
            process.write(TABLE)
            process.reload()
            await later[0].wait_for(lambda: any(r.accepted == ("d1",) for r in later[0].rounds), 60)
            assert later[0].rounds[-1].round == 1, "it goes on in its round"
    finally:
        await process.kill()
