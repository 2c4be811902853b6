"""A PostgreSQL server for trials: a process of its own, on a port and in a folder of its own."""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg

from lichen_lab.simulation.processes.embedded_broker import HOST, free_port
from protocol.errors import Misconfigured

USER = "lichen"
START_S = 30.0
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of ours is made in it
_ROOM = 512 * 1024 * 1024
_SETTINGS = """
listen_addresses = '127.0.0.1'
shared_buffers = 16MB
max_connections = 60
logging_collector = off
"""


def programs() -> Path | None:
    """The folder of PostgreSQL's programs, the newest; None: it is not installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("[0-9]*/bin/postgres"), key=lambda path: int(path.parts[4])
    )
    there = str(found[-1]) if found else shutil.which("postgres")
    return Path(there).parent if there else None


def require_postgres() -> Path:
    """The folder of the programs.

    Raises:
        Misconfigured: PostgreSQL is not installed.
    """
    path = programs()
    if path is None:
        raise Misconfigured("PostgreSQL is not installed: apt-get install postgresql")
    return path


def _account() -> pwd.struct_passwd | None:
    """The user of the server: root must not run it. None: ourselves."""
    if os.geteuid() != 0:
        return None
    known = {one.pw_name: one for one in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


class PostgresServer:
    """A server; ``port`` stays the same over restarts. Its folder is in memory if there is room."""

    def __init__(self, *settings: str) -> None:
        self._programs = require_postgres()
        account = _account()
        self._as: dict[str, Any] = (
            {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        )
        memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
        self.folder = Path(tempfile.mkdtemp(prefix="lichen-postgres-", dir=_MEMORY if memory else None))
        if account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        atexit.register(self.remove)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        data = self.folder / "data"
        self._run("initdb", "-D", str(data), "-N", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C")
        with (data / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS + f"port = {self.port}\nunix_socket_directories = '{self.folder}'\n")
            file.write("\n".join(settings))

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            check=True, capture_output=True, cwd="/", **self._as,
        )  # fmt: skip

    def start(self) -> Self:
        """Start it, and return when it answers.

        Raises:
            RuntimeError: it does not; the message has the end of its log.
        """
        log = self.folder / "log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", str(self.folder / "data")],
                stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd="/", **self._as,
            )  # fmt: skip
        until = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.plain("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def crash(self) -> None:
        """As ``pg_ctl stop -m immediate``: no transaction ends in order."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """As ``pg_ctl stop -m fast``: sessions are ended."""
        self._end(signal.SIGINT)

    def freeze(self) -> None:
        """Stop answering, with all sessions open."""
        self._each(signal.SIGSTOP)

    def thaw(self) -> None:
        """Answer again."""
        self._each(signal.SIGCONT)

    def _each(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        found = psutil.Process(self._process.pid)
        for one in (found, *found.children(recursive=True)):
            one.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(START_S)

    def plain(self, database: str = USER) -> str:
        """The address for psycopg."""
        return f"postgresql://{USER}@{HOST}:{self.port}/{database}"

    def url(self, database: str = USER) -> str:
        """The address for ``storage.url``."""
        return self.plain(database).replace("postgresql:", "postgresql+psycopg:")

    def sql(self, *statements: str, database: str = USER) -> list[tuple[object, ...]]:
        """Run statements as the owner of the server; the rows of the last one."""
        with psycopg.connect(self.plain(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        """End the server, and remove its folder."""
        if self._process is not None:
            self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
