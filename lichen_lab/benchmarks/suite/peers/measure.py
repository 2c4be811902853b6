"""Measures of both frameworks: CPU and memory of process trees, bytes of each device's TCP stream."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self, get_args

from lichen_lab.benchmarks.support.fleet import cpu_seconds
from lichen_lab.simulation.processes.environment import memory_mb
from lichen_lab.simulation.processes.tcp_proxy import Proxy, Way
from protocol.errors import Transient

_LOOK_S: Final = 0.2
_SAMPLE_S: Final = 0.5


class MeasuredFleet(Protocol):
    """A fleet of one framework that runs."""

    def rounds(self) -> int:
        """Rounds that are over."""

    def devices(self) -> Sequence[int]:
        """Process id of each device."""

    def servers(self) -> Sequence[int]:
        """Process ids of the server's side, the broker included."""

    def trained_cpu_s(self) -> float:
        """CPU seconds inside the training call so far, of all devices."""

    def failure(self) -> str:
        """Why it cannot go on; empty if it can."""


class Meters:
    """A relay that counts for each device; a context."""

    def __init__(self, target: int, devices: int) -> None:
        self._meters = [Proxy(target) for _ in range(devices)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for meter in self._meters:
            self._stack.enter_context(meter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def ports(self) -> list[int]:
        """Where each device connects."""
        return [meter.port for meter in self._meters]

    def bytes(self) -> tuple[int, int]:
        """Sent and received by all devices so far."""
        up, down = (sum(one.bytes_taken(way) for one in self._meters) for way in get_args(Way))
        return up, down


@dataclass(frozen=True)
class Reading:
    """All counters at one moment."""

    at: float
    rounds: int
    device_cpu_s: float
    server_cpu_s: float
    trained_cpu_s: float
    up: int
    down: int

    @classmethod
    def take(cls, fleet: MeasuredFleet, meters: Meters) -> Self:
        """Read them."""
        up, down = meters.bytes()
        return cls(
            time.monotonic(),
            fleet.rounds(),
            sum(map(cpu_seconds, fleet.devices())),
            sum(map(cpu_seconds, fleet.servers())),
            fleet.trained_cpu_s(),
            up,
            down,
        )


class PeakMemory:
    """The largest proportional set size of the first device and of the server side, sampled; a context."""

    def __init__(self, fleet: MeasuredFleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self.device_mb = self.server_mb = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.device_mb = max(self.device_mb, memory_mb(self._fleet.devices()[0])[0])
            self.server_mb = max(self.server_mb, sum(memory_mb(pid)[0] for pid in self._fleet.servers()))


def wait_rounds(fleet: MeasuredFleet, count: int, timeout_s: float) -> None:
    """Until so many rounds are over.

    Raises:
        Transient: they are not, in this time, or a process failed.
    """
    until = time.monotonic() + timeout_s
    while fleet.rounds() < count:
        if (words := fleet.failure()) or time.monotonic() > until:
            raise Transient(f"waited for round {count}: {words or f'not over in {timeout_s:g} s'}")
        time.sleep(_LOOK_S)


def measure(
    fleet: MeasuredFleet, meters: Meters, rounds: int, say: Callable[[str], None]
) -> Mapping[str, float]:
    """Figures of the rounds after the first, up to ``rounds``, by name.

    The fleet has one round more. Both readings are taken where one round ends and the next one begins: what
    the next one has already done is in both.

    Raises:
        Transient: the fleet did not get there.
    """
    wait_rounds(fleet, 1, 240.0)
    first = Reading.take(fleet, meters)
    say("round 1 is over")
    with PeakMemory(fleet) as peak:
        wait_rounds(fleet, rounds, 120.0 * rounds)
    last = Reading.take(fleet, meters)
    say(f"round {rounds} is over")
    return figures(first, last, len(fleet.devices())) | {
        "device: memory, peak PSS MB": peak.device_mb,
        "server: memory, peak PSS MB": peak.server_mb,
    }


def figures(first: Reading, last: Reading, devices: int) -> dict[str, float]:
    """What lies between two readings, a device and round."""
    done = last.rounds - first.rounds
    each = done * devices
    trained = last.trained_cpu_s - first.trained_cpu_s
    return {
        "device: CPU s a round beyond training": (last.device_cpu_s - first.device_cpu_s - trained) / each,
        "device: CPU s a round in training": trained / each,
        "device: kB a round sent": (last.up - first.up) / each / 1e3,
        "device: kB a round received": (last.down - first.down) / each / 1e3,
        "server: CPU s a round": (last.server_cpu_s - first.server_cpu_s) / done,
        "s a round": (last.at - first.at) / done,
    }
