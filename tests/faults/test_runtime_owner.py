"""The lock on a state_dir outlives nobody."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import Misconfigured
from runtime.storage.folder_lock import FolderLock, is_locked

ROOT = Path(__file__).parents[2]
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from runtime.storage.folder_lock import FolderLock
owner = FolderLock(Path(sys.argv[1]), "agent")
child = subprocess.Popen(["sleep", "60"], close_fds=False)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_one_at_a_time_and_it_is_given_back(tmp_path):
    path = tmp_path / "agent.lock"
    assert is_locked(path) is False
    first = FolderLock(path, "agent")
    assert is_locked(path) is True
    with pytest.raises(Misconfigured, match=r"agent\.lock: another agent runs on this state_dir"):
        FolderLock(path, "agent")
    first.close()
    first.close()
    assert is_locked(path) is False
    FolderLock(path, "agent").close()


def test_sigkill_frees_it_although_a_child_lives_on(tmp_path):
    path = tmp_path / "agent.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert holder.stdout is not None
    with holder.stdout:
        grandchild = int(holder.stdout.readline())
        try:
            assert is_locked(path) is True
            holder.kill()
            holder.wait(10)
            os.kill(grandchild, 0)
            assert is_locked(path) is False
            FolderLock(path, "agent").close()
        finally:
            os.kill(grandchild, signal.SIGKILL)
