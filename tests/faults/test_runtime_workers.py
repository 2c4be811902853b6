"""Child processes that hang, die, are killed, shout and misbehave."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protocol.errors import Misconfigured, Reason, Refused
from runtime.process.worker import Worker, WorkerFailed, status_words
from tests.support.services import until

ROOT = Path(__file__).parents[2]
MODULE = "tests.support.processes.worker"


@pytest.fixture
def job(tmp_path):
    made = iter(range(100))

    def make(what: str) -> Path:
        folder = tmp_path / f"job-{next(made)}"
        folder.mkdir()
        (folder / "do").write_text(what)
        return folder

    return make


@pytest.fixture(params=["warm", "cold"])
async def worker(request):
    worker = Worker(MODULE, env={"PYTHONPATH": str(ROOT)}, warm=request.param == "warm")
    yield worker
    await worker.close()


@pytest.fixture
async def warm():
    worker = Worker(MODULE, env={"PYTHONPATH": str(ROOT)}, idle_s=60)
    yield worker
    await worker.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_a_warm_worker_is_one_process_for_many_jobs_one_at_a_time(warm, job):
    jobs = [job("ok") for _ in range(3)]
    await asyncio.gather(*(warm.run(j, 20) for j in jobs))
    pids = {(j / "pid").read_text() for j in jobs}
    assert pids == {str(warm.pid)}


async def test_what_a_library_prints_is_not_an_answer(worker, job):
    await worker.run(job("noisy"), 20)


async def test_killed_by_the_kernel_is_named_and_the_next_job_gets_a_new_one(worker, job):
    with pytest.raises(WorkerFailed, match=r"killed by SIGKILL \(out of memory\?\)") as caught:
        await worker.run(job("killed"), 20)
    assert "allocating a lot" in caught.value.detail
    assert worker.pid is None
    await worker.run(job("ok"), 20)


async def test_an_exit_is_told_with_its_status_and_last_words(worker, job):
    with pytest.raises(WorkerFailed, match=r"ended with exit status 3.*last words"):
        await worker.run(job("exit"), 20)


async def test_killed_while_idle_costs_nothing(warm, job):
    await warm.run(job("ok"), 20)
    first = warm.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: not _alive(first))
    await warm.run(job("ok"), 20)
    assert warm.pid != first


async def test_killed_while_idle_costs_nothing_before_anybody_was_told(warm, job):
    await warm.run(job("ok"), 20)
    first = warm.pid
    os.kill(first, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # a thread of the loop's was faster
        os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the loop must not run meanwhile
    await warm.run(job("ok"), 20)
    assert warm.pid != first


async def test_a_timeout_kills_the_whole_process_group(worker, job):
    hang = job("hang")
    with pytest.raises(WorkerFailed, match=r"did not finish in 1\.5 s and was killed"):
        await worker.run(hang, 1.5)
    for name in ("pid", "grandchild"):
        pid = int((hang / name).read_text())
        await until(lambda pid=pid: not _alive(pid), 5)
    await worker.run(job("ok"), 20)


async def test_cancelling_kills_the_whole_process_group(worker, job):
    hang = job("hang")
    running = asyncio.create_task(worker.run(hang, 60))
    await until((hang / "grandchild").exists)
    running.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()
    pid = int((hang / "grandchild").read_text() or 0) or int((hang / "pid").read_text())
    await until(lambda: not _alive(pid), 5)


async def test_stderr_is_bounded_to_its_end(warm, job):
    with pytest.raises(WorkerFailed, match="ValueError: boom") as caught:
        await warm.run(job("shout"), 20)
    assert caught.value.detail.endswith("the end")
    assert len(caught.value.detail) <= 4096
    assert warm.pid is not None  # it said what was wrong: it may stay


async def test_what_the_worker_says_is_raised_as_that_error(worker, job):
    with pytest.raises(Refused, match=r"head/w has shape") as caught:
        await worker.run(job("refuse"), 20)
    assert caught.value.reason is Reason.WRONG_TENSORS
    with pytest.raises(Misconfigured, match=r"config\.lr: must be positive"):
        await worker.run(job("misconfigured"), 20)


async def test_an_idle_worker_leaves_and_comes_back(job):
    worker = Worker(MODULE, env={"PYTHONPATH": str(ROOT)}, idle_s=0.1)
    await worker.run(job("ok"), 20)
    pid = worker.pid
    await until(lambda: worker.pid is None and not _alive(pid))
    await worker.run(job("ok"), 20)
    await worker.close()
    assert worker.pid is None


async def test_it_inherits_no_socket_no_notify_and_no_current_folder(worker, job, monkeypatch):
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    monkeypatch.chdir(ROOT / "tests")
    look = job("look")
    await worker.run(look, 20)
    server.close()
    found = json.loads((look / "found.json").read_text())
    assert len(found["fds"]) >= 3  # its standard streams
    assert not [fd for fd in found["fds"] if fd.startswith("socket:")]
    assert found["flags"]
    assert str(ROOT / "tests") not in found["path"]


async def test_it_cannot_speak_to_systemd_for_us(job, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    worker = Worker(MODULE, env={"PYTHONPATH": str(ROOT)}, warm=False)
    look = job("look")
    await worker.run(look, 20)
    env = json.loads((look / "found.json").read_text())["env"]
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(env)


async def test_a_missing_interpreter_is_a_failure_in_words(job):
    worker = Worker(MODULE, python="/no/such/python")
    with pytest.raises(WorkerFailed, match="could not be started"):
        await worker.run(job("ok"), 5)


async def test_close_cuts_off_a_running_job(warm, job):
    hang = job("hang")
    running = asyncio.create_task(warm.run(hang, 60))
    await until((hang / "grandchild").exists)
    began = time.monotonic()
    await warm.close()
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        await asyncio.wait_for(running, 5)
    assert time.monotonic() - began < 3


def test_status_words():
    assert status_words(0) == "ended with exit status 0"
    assert status_words(-signal.SIGILL) == "was killed by SIGILL"
    assert status_words(-250) == "was killed by signal 250"


@pytest.mark.skipif(sys.platform != "linux", reason="SKIPPED: only Linux tells a child of its parent's death")
@pytest.mark.parametrize("arguments", [["--serve"], ["."]])
def test_a_worker_in_the_middle_of_a_job_dies_with_a_daemon_that_was_killed(tmp_path, arguments):
    child = (
        "import os, pathlib, sys, time\nfrom models.worker.job_loop import main\n"
        "def do(folder):\n"
        "    pathlib.Path('pid.part').write_text(str(os.getpid()))\n"
        "    os.rename('pid.part', 'pid')\n"
        "    time.sleep(60)\n"
        "main(do, 'test', sys.argv[1:])"
    )
    daemon = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdin=subprocess.PIPE, "
        "start_new_session=True)\n"
        'p.stdin.write(b\'{"job": "."}\\n\')\np.stdin.flush()\ntime.sleep(60)'
    )
    command = [sys.executable, "-c", daemon, child, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as parent:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        parent.kill()
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while _alive(pid):
        assert time.monotonic() < deadline, "it finishes a job that nobody waits for"
        time.sleep(0.02)
