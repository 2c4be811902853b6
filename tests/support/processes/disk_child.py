"""A state folder on a disk of its own, and commands beside it: run in a mount namespace (``unshare -m``).

``make FOLDER``: the state of a coordinator that was killed. ``commands FOLDER COLUMN``: a disk in that state,
and the output of each command of the table, as JSON. One process for all of them: a Python start for each
would take ten times as long as the command.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from lichen.cli import main
from runtime.storage import sqlite
from tests.support.processes.disk_table import COMMANDS, DAEMONS, RUN, SERVE

BOOKS = ("coordinator.sqlite3", "identity.sqlite3", "rollout.sqlite3", "spool.sqlite3")
START_S = 40.0
_MB = 1024 * 1024


def make(folder: Path) -> None:
    """All state that the commands read; then SIGKILL, so that WALs remain."""
    from coordinator.config.coordinator import load_settings  # noqa: PLC0415 - only for this call
    from coordinator.recovery.folder_owner import own_task, rules_of  # noqa: PLC0415
    from coordinator.rollout.model import Create  # noqa: PLC0415
    from coordinator.rollout.store import RolloutStore  # noqa: PLC0415
    from coordinator.round_machine.events import Checkpoint, RoundState  # noqa: PLC0415
    from coordinator.storage.database import Database  # noqa: PLC0415
    from coordinator.task import load_task  # noqa: PLC0415 - only for this call
    from tests.support.coordinator.rollouts import plan, release  # noqa: PLC0415

    settings = load_settings(folder / "coordinator.toml")
    config, key = str(folder / "coordinator.toml"), str(folder / "root.pem")
    for words in (["init"], ["trust", "init", "--root-key", key]):
        assert call(["coordinator", *words, "-c", config])[0] == 0
    assert call(["device", "invite", "-c", config])[0] == 0
    task, _ = load_task(settings)
    store, book = Database(settings.state_dir / BOOKS[0]), RolloutStore(settings.state_dir)
    own_task(store, task, settings)
    store.append(Checkpoint(state=RoundState(), rules=rules_of(task, settings)), time.time())
    book.play(Create(release=release(1), plan=plan()), time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def call(words: list[str]) -> tuple[int, str]:
    """Run a command as the shell would: its exit status and output."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(words)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
    return status, said.getvalue()


def disk(folder: Path) -> Path:
    """An ext4 with blocks of 1 KiB, as on small disks, at ``disk`` below the folder."""
    image, place = folder / f"image-{os.getpid()}", folder / "disk"
    with image.open("wb") as file:
        file.truncate(16 * _MB)
    place.mkdir(exist_ok=True)
    run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "1024", str(image))
    run("mount", "-o", "loop", str(image), str(place))
    return place


def run(*words: str) -> None:
    path = "/usr/sbin:/sbin:/usr/bin:/bin"
    subprocess.run([shutil.which(words[0], path=path) or words[0], *words[1:]], check=True, timeout=60)


def fill(place: Path) -> Path:
    """Leave no block free; returns the file that took them."""
    balloon = place / "balloon"
    with contextlib.suppress(OSError), balloon.open("ab", buffering=0) as file:
        for size in (_MB, 1024, 64):
            with contextlib.suppress(OSError):
                while True:
                    os.write(file.fileno(), b"\0" * size)
    os.sync()
    return balloon


def trouble(place: Path, state: Path, column: str) -> list[sqlite3.Connection]:
    """Put the disk into a column's state; returns the objects that must stay open."""
    held = []
    match column:
        case "full":
            for book in BOOKS:
                (state / f"{book}-shm").unlink(missing_ok=True)  # the state after a copy, or a clean unmount
            fill(place)
        case "locked":
            for book in BOOKS:
                held.append(sqlite3.connect(state / book, isolation_level=None))
                held[-1].execute("BEGIN IMMEDIATE")
        case "read-only":
            run("mount", "-o", "remount,ro", str(place))
        case "vanished":
            shutil.rmtree(state)
    return held


def commands(folder: Path, column: str) -> None:
    """Exit status and output of each command, and of each daemon that is started there."""
    place = disk(folder)
    shutil.copytree(folder / "state", place / "state")
    sqlite.WAIT_S = 0.3
    held = trouble(place, place / "state", column)
    found = {name: call([word.format(folder) for word in words]) for name, words in COMMANDS.items()}
    if column == "vanished":
        shutil.rmtree(place / "state", ignore_errors=True)
    begun = {SERVE: place / "state/coordinator.sqlite3", RUN: place / "state/spool.sqlite3"}
    logs = {name: folder / f"{column}-{number}.log" for number, name in enumerate(DAEMONS)}
    daemons = {
        name: daemon([word.format(folder) for word in words], logs[name]) for name, words in DAEMONS.items()
    }
    for name, process in daemons.items():
        found[name] = (ended(process, begun[name], column), logs[name].read_text())
    for one in held:
        one.close()
    json.dump(found, sys.stdout)


def program(command: Iterable[str], log: Path) -> "subprocess.Popen[bytes]":
    """A process of this Python whose log is a file."""
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, *command], stdout=file, stderr=file)


def daemon(words: Iterable[str], log: Path) -> "subprocess.Popen[bytes]":
    """A daemon as its unit starts it, but with a shorter wait for other holders of a database."""
    code = (
        "import sys; from runtime.storage import sqlite; sqlite.WAIT_S = 0.5; "
        "from edge_agent.windows import store_file; store_file._WAIT_S = 0.5; "
        "from lichen.cli import main; main(sys.argv[1:])"
    )
    return program(["-c", code, *words], log)


def ended(process: "subprocess.Popen[bytes]", begun: Path, column: str) -> int | None:
    """Its exit status; None: it has started again, and was stopped by us."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        if column == "vanished" and begun.exists():
            process.terminate()
            process.wait(START_S)
            return None
        time.sleep(0.02)
    if process.poll() is None:
        process.kill()
    return process.wait()


if __name__ == "__main__":
    {"make": make, "commands": commands}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
