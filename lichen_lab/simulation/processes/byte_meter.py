"""A TCP relay that counts: every byte between an agent and its broker passes through it."""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from lichen_lab.simulation.processes.embedded_broker import HOST

_READ: Final = 65536
_STEP_S: Final = 0.2
_CONNECT_S: Final = 5.0


@dataclass
class ByteCount:
    """One direction: bytes of each read, about one MQTT packet at low traffic."""

    sizes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of the whole TCP stream so far."""
        return sum(self.sizes)


@dataclass
class Meter:
    """A context that relays ``port`` to the broker's port; ``up`` is what the agent sends.

    Attributes:
        target: the broker's port on this machine.
        up: from agent to broker.
        down: from broker to agent.
        port: where the agent connects.
    """

    target: int
    up: ByteCount = field(default_factory=ByteCount)
    down: ByteCount = field(default_factory=ByteCount)
    port: int = 0

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server((HOST, 0))
        self._server.settimeout(_STEP_S)
        self.port = self._server.getsockname()[1]
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _spawn(self, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                agent, _ = self._server.accept()
                self._spawn(self._relay, agent)

    def _relay(self, agent: socket.socket) -> None:
        """Both directions of one connection, until either side closes."""
        try:
            broker = socket.create_connection((HOST, self.target), _CONNECT_S)
        except OSError:
            agent.close()
            return
        closed = threading.Event()
        back = threading.Thread(target=self._pump, args=(broker, agent, self.down, closed), daemon=True)
        back.start()
        self._pump(agent, broker, self.up, closed)
        back.join()
        agent.close()
        broker.close()

    def _pump(
        self, source: socket.socket, sink: socket.socket, count: ByteCount, closed: threading.Event
    ) -> None:
        source.settimeout(_STEP_S)
        while not (self._over.is_set() or closed.is_set()):
            try:
                data = source.recv(_READ)
                if not data:
                    break
                count.sizes.append(len(data))
                sink.sendall(data)
            except TimeoutError:
                continue
            except OSError:
                break
        closed.set()
