"""The steps of a round at which the matrix injects faults: how each is reached and held."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lichen_lab.benchmarks.fault_injection.harness.disks import FaultyDisk
from lichen_lab.benchmarks.fault_injection.harness.gates import StepGates
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from lichen_lab.simulation.processes.testbed import Testbed
from lichen_lab.simulation.processes.wire_observer import WireObserver
from protocol.topics import Kind

_TRICKLE_BYTES_S: Final = 4000.0
"""Slow enough that a model, or an update, takes seconds."""


class FaultyFleet(Protocol):
    """The fleet of one row of the matrix, as steps read it and faults harm it."""

    gates: StepGates
    stage: Testbed
    witness: WireObserver
    proxies: dict[str, Proxy]
    disks: dict[str, FaultyDisk]

    @property
    def target(self) -> str:
        """The observed agent."""

    def gate(self, name: str, round_: int) -> str:
        """A gate's name in that round."""

    def seen(self, kind: Kind) -> int:
        """Messages of that kind to or from the target since its step's round was prepared."""


def _nothing(_fleet: FaultyFleet, _round: int) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Step:
    """One column.

    Attributes:
        name: for the table.
        held: the gates that are held in its round; ``{round}``, ``{target}`` and ``{other}`` are filled in.
        there: whether the step is reached.
        before: called before its round opens.
        near: for a step without a gate of its own: called when a process waits at its gates, and opens them.
    """

    name: str
    held: tuple[str, ...]
    there: Callable[[FaultyFleet, int], bool]
    before: Callable[[FaultyFleet, int], None] = _nothing
    near: Callable[[FaultyFleet, int], None] | None = None


def at_gate(name: str) -> Callable[[FaultyFleet, int], bool]:
    """The step is reached when a process waits at this gate."""
    return lambda fleet, round_: fleet.gates.reached(fleet.gate(name, round_))


def _slow_down(fleet: FaultyFleet, _round: int) -> None:
    fleet.proxies[fleet.target].throttle(_TRICKLE_BYTES_S, "down")


def _slow_up(fleet: FaultyFleet, round_: int) -> None:
    fleet.proxies[fleet.target].throttle(_TRICKLE_BYTES_S, "up")
    fleet.gates.release(fleet.gate("train-{round}-{target}", round_))


def _idle(fleet: FaultyFleet, _round: int) -> bool:
    now, known = fleet.witness.view.round, fleet.witness.view.devices.get(fleet.target)
    waiting = now is not None and now.phase == "waiting_for_devices" and now.version == 0
    return waiting and known is not None and known.status == "online"


def _fetching(fleet: FaultyFleet, _round: int) -> bool:
    return fleet.seen(Kind.DOWN_BLOB) > 0


def _uploading(fleet: FaultyFleet, _round: int) -> bool:
    return fleet.seen(Kind.UP_BLOB) > 0


def _one_accepted(fleet: FaultyFleet, round_: int) -> bool:
    now = fleet.witness.view.round
    reached = at_gate("train-{round}-{other}")(fleet, round_)
    return reached and now is not None and now.round == round_ and now.accepted == (fleet.target,)


STEPS: Final = (
    Step("idle", (), _idle),
    Step("fetching the model", (), _fetching, before=_slow_down),
    Step("training", ("train-{round}-{target}",), at_gate("train-{round}-{target}")),
    Step("uploading chunks", ("train-{round}-{target}",), _uploading, near=_slow_up),
    Step("waiting for the receipt", ("check-{round}-{target}",), at_gate("check-{round}-{target}")),
    Step("collecting", ("train-{round}-{other}",), _one_accepted),
    Step("aggregating", ("aggregate-{round}",), at_gate("aggregate-{round}")),
    Step("evaluating", ("evaluate-{round}",), at_gate("evaluate-{round}")),
    Step("exporting", ("export-{round}",), at_gate("export-{round}")),
)
"""In this order: step n is harmed in round n."""
