"""Every command and both daemons on disks that are full, held, read-only or gone: what each ends with.

Real disks (ext4 with blocks of 1 KiB, in a mount namespace of the test), the real command line, real
processes and a real broker. The table is ``tests/support/processes/disk_table.py``.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lichen_lab.benchmarks.fault_injection.harness import disks
from tests.support.network.brokers import BrokerProcess, free_port, mosquitto, mosquitto_process  # noqa: F401 - a fixture
from tests.support.processes.disk_table import COLUMNS, DAEMONS, RUNS, SERVES, TABLE, Cell
from tests.unit.coordinator.cli.test_coordinator_cli import TASK
from tests.unit.edge_agent.messaging.test_agent_session import BASIC, write_task, write_toy

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
if _WHY := disks.why_unavailable() or ("" if shutil.which("unshare") else "unshare is not installed"):
    pytest.skip(f"SKIPPED LOUDLY: no disk of their own for these tests: {_WHY}", allow_module_level=True)
ALONE = [name for name in TABLE if name not in {SERVES, RUNS}]
"""Rows of one process for a column; the others have one of their own for each cell."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[BrokerProcess]:
    process = mosquitto_process(tmp_path_factory.mktemp("broker")).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, broker: BrokerProcess) -> Path:
    """Configurations, and the state of a coordinator that was killed."""
    made = tmp_path_factory.mktemp("disks")
    mqtt = f"[mqtt]\nport = {broker.port}\n"
    head = f'state_dir = "{made}/disk/state"\n'
    (made / "task.toml").write_text(TASK)
    (made / "coordinator.toml").write_text(
        f'fleet = "alone"\n{head}task = "task.toml"\n[identity]\nport = {free_port()}\n{mqtt}'
    )
    (made / "running.toml").write_text(
        f'fleet = "test"\nstate_dir = "{made}/disk/coordinator"\ntask = "task.toml"\n'
    )
    write_toy(made, 30)
    (made / "agent.toml").write_text(f'{head}cache_dir = "{made}/disk/state/cache"\n{BASIC}{mqtt}')
    (made / "agent").mkdir()
    write_task(made / "agent")
    (made / "running-agent.toml").write_text(
        f'{head}cache_dir = "{made}/running-cache"\ntask_file = "agent/task.toml"\n{BASIC}'
        f"speed = 50.0\nloop = true\n[store]\ncommit_every_s = 0.2\n[infer]\nenabled = false\n{mqtt}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.disk_child", "make", str(made)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode < 0, done.stderr
    shutil.move(made / "disk/state", made / "state")
    (made / "state/cache").mkdir()
    status = {"pid": 0, "wall": time.time(), "waits": []}
    (made / "state/cache/status.json").write_text(json.dumps(status))
    return made


def _child(module: str, *words: str) -> Any:
    command = ["unshare", "-m", sys.executable, "-m", f"tests.support.processes.{module}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=COLUMNS)
def column(request, folder: Path) -> tuple[str, dict[str, tuple[int | None, str]]]:
    """A state of the disk, and what each command ended with and said there."""
    return request.param, _child("disk_child", "commands", str(folder), request.param)


@pytest.mark.parametrize("name", ALONE)
def test_each_command_ends_as_documented_and_names_the_disk(column, folder: Path, name: str) -> None:
    state, found = column
    _compare(TABLE[name][COLUMNS.index(state)], *found[name], folder / "disk/state")


def _compare(cell: Cell, status: int | None, said: str, state: Path) -> None:
    assert cell.fits(status, said, str(state)), (
        f"{cell} was expected, and status {status} came: {said[-1500:]}"
    )


@pytest.mark.parametrize("state", [*COLUMNS, "replaced"])
def test_a_coordinator_at_work_acknowledges_nothing_that_its_disk_does_not_hold(
    folder: Path,
    mosquitto: BrokerProcess,  # noqa: F811 - with no session of the coordinator before
    state: str,
) -> None:
    found = _child("disk_running", "coordinator", str(folder), state, str(mosquitto.port))
    index = COLUMNS.index("vanished" if state == "replaced" else state)
    _compare(TABLE[SERVES][index], found["status"], found["said"], Path(found["state"]))
    assert found["early"] == [], "no receipt for what is nowhere"
    if state in {"full", "locked"}:
        assert set(found["receipts"]) == {"accepted"}, "it goes on by itself"
    if state in {"full", "read-only"}:
        assert f"disk: the disk of {found['state']} is {state}" in found["why"][1]


@pytest.mark.parametrize("state", COLUMNS)
def test_an_agent_at_work_goes_on_or_ends_so_that_its_unit_starts_it_again(
    folder: Path, broker: BrokerProcess, state: str
) -> None:
    found = _child("disk_running", "agent", str(folder), state, str(broker.port))
    _compare(TABLE[RUNS][COLUMNS.index(state)], found["status"], found["said"], Path(found["state"]))
    assert found["recovered"] == (state in {"full", "locked"})


def test_the_daemons_of_the_table_are_those_of_the_units() -> None:
    for words, unit in zip(DAEMONS.values(), ("coordinator", "agent"), strict=True):
        text = (ROOT / f"systemd/lichen-{unit}.service").read_text()
        assert f"lichen {' '.join(words[:2])} --config" in text
        assert "Restart=on-failure" in text
        assert "RestartPreventExitStatus=78 2" in text, "75 is started again"
