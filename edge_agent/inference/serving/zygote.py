"""The zygote: a small process that has ONNX Runtime loaded, and forks a servant for each model.

Forked by the agent before it has a thread, a lock or a socket
(``edge_agent.inference.serving.zygote_client``), or started by ``python -P -m
edge_agent.inference.serving.zygote FD LOG``. It has one thread, so that it can fork at any time; it never
opens a model itself. One packet of CBOR for each request (``op``):

``ready``: load ONNX Runtime; answers with ``version`` and ``providers``, or ``why`` it cannot. ``fork`` with
a socket: answers ``{"pid": ..., "landlock": VERSION}`` or ``{"why": ...}``. ``fate`` of a ``pid``: answers
``{"status": ...}`` when it has ended; it is killed if it does not end. ``end`` of a ``pid``: killed, without
an answer.

It ends when the agent's end of the socket closes, and its servants end with it.
"""

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final

import cbor2

from edge_agent.inference.serving import model_server
from models.worker.job_loop import shed_memory
from runtime import logs
from runtime.process import landlock
from runtime.settings.load import LogSettings

PACKET: Final = 64 * 1024
_OOM: Final = Path("/proc/self/oom_score_adj")
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_GRACE_S: Final = 0.1
"""A socket closes a moment before its process ends."""
_PATIENCE_S: Final = 1.0
"""A killed process that still exists after this is stuck in the kernel."""
_MAX_ENDED: Final = 256


class Zygote:
    """Forks servants, and knows how they ended."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._children: set[int] = set()
        self._ended: dict[int, int] = {}

    def run(self) -> None:
        """Serve until the agent closes the socket."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, PACKET, 1)
            if not data:
                return
            answer = self._answer(cbor2.loads(data), fds)
            for fd in fds:
                os.close(fd)
            if answer is not None:
                self._sock.send(cbor2.dumps(answer))

    def _answer(self, asked: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        match asked["op"]:
            case "ready":
                return _ready()
            case "fork":
                ready = _ready()
                return ready if ready["why"] else self._fork(fds[0])
            case "fate":
                return {"status": self._end(asked["pid"], _GRACE_S)}
            case _:
                self._end(asked["pid"], 0.0)
                return None

    def _fork(self, fd: int) -> dict[str, Any]:
        shed_memory()  # present objects are libraries: a servant's collector must not write to shared pages
        mother = os.getpid()
        try:
            with warnings.catch_warnings():  # Python cannot know that a library's own threads are at rest
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            return {"why": f"no process can be started for the model: {error}"}
        if not pid:
            self._sock.close()
            _become("lichen-model", mother)
            model_server.live(socket.socket(fileno=fd))
        self._children.add(pid)
        return {"pid": pid, "landlock": landlock.version()}

    def _end(self, pid: int, grace_s: float) -> int | None:
        """Wait for one to end, then kill it. Its status, negative for a signal; None: unknown, or stuck."""
        if not self._gone(pid, grace_s):
            os.kill(pid, signal.SIGKILL)
            self._gone(pid, _PATIENCE_S)
        return self._ended.pop(pid, None)

    def _gone(self, pid: int, within_s: float) -> bool:
        """Whether it is no longer our child."""
        until = time.monotonic() + within_s
        self._reap()
        while pid in self._children and time.monotonic() < until:
            time.sleep(0.001)
            self._reap()
        return pid not in self._children

    def _reap(self) -> None:
        for pid in [*self._children]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._children.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)
        for pid in [*self._ended][:-_MAX_ENDED]:
            del self._ended[pid]


def _ready() -> dict[str, Any]:
    """Load ONNX Runtime; ``why`` it cannot be loaded."""
    try:
        import onnxruntime  # noqa: PLC0415 - here it may die of a signal and take only this process
    except ImportError as error:
        return {"why": str(error)}
    return {
        "why": "",
        "version": onnxruntime.__version__,
        "providers": onnxruntime.get_available_providers(),
    }


def _become(name: str, mother: int) -> None:
    """Become a servant: named, the first to be killed for memory, and ended with the zygote."""
    with contextlib.suppress(OSError):
        _OOM.write_text("1000", encoding="ascii")
    _named(name)
    gc.enable()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != mother:  # the zygote ended before this call
        os._exit(0)


def _named(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def live(sock: socket.socket) -> None:
    """Run the zygote. It ends by the socket: a signal to the whole group is handled by the agent."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _named("lichen-models")
    gc.disable()
    with contextlib.suppress(ConnectionError):
        Zygote(sock).run()


def main(arguments: list[str]) -> int:
    """``FD LOG``: the socket, and ``[log]`` as JSON."""
    fd, log = arguments
    logs.configure(LogSettings.model_validate_json(log))
    live(socket.socket(fileno=int(fd)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
