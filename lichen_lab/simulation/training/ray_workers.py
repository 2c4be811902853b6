"""The devices' half of a simulation on a Ray cluster: each actor holds a shard of the devices.

A device keeps its state between rounds, the version is sent once a round, and results are in the devices'
order, as in :mod:`lichen_lab.simulation.training.workers`: the bytes are those of one process. Each result
brings the device's new state with it, so the devices of a lost actor go on from their last round in the other
actors.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from coordinator.compute.cluster import Cluster, ProcessLost
from lichen_lab.simulation.training.device import TRAIN, DeviceResult, Site, VirtualDevice
from lichen_lab.simulation.training.workers import limit_to_one_thread
from models.contract import Blobs, Tensors
from protocol.errors import Misconfigured, Transient

OPTION: Final = "--ray"
_NAMED: Final = 8
_LOSSES: Final = 3
"""How often a device's round is begun again after its process was lost."""

Outcome = tuple[DeviceResult, Tensors, Tensors]
"""A device's result, and its private tensors and error carry after it."""

log = structlog.get_logger(__name__)


class Shard:
    """Some devices, in a process of the cluster."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._devices: dict[str, VirtualDevice] = {}

    def add(self, devices: Sequence[VirtualDevice]) -> None:
        """Take over devices with their state."""
        self._devices |= {device.name: device for device in devices}
        if any(device.role == TRAIN for device in devices):
            limit_to_one_thread()

    def train(self, state: Blobs, round_: int, chosen: Sequence[str]) -> list[Outcome] | Misconfigured:
        """The outcomes of the chosen devices; an error in their input is returned, not raised."""
        try:
            devices = [self._devices[name] for name in chosen]
            return [(self._site.deliver(one, state, round_), one.private, one.carry) for one in devices]
        except Misconfigured as error:
            return error


@dataclass
class _Actor:
    """A shard's process, and the devices in it."""

    handle: Any
    names: list[str] = field(default_factory=list)


class RayWorkers:
    """Devices dealt to actors with one torch thread each; see :class:`Crew`.

    Args:
        site: as for one process.
        devices: dealt in turn; brought up to date with each result.
        address: of the cluster, as ``compute.ray``.
        count: actors; None: one for each CPU of the cluster. At most one a device.

    Raises:
        Misconfigured: the cluster cannot be used.
        Transient: it cannot be reached.
    """

    def __init__(
        self, site: Site, devices: Sequence[VirtualDevice], address: str, count: int | None = None
    ) -> None:
        self._site, self._devices, self._round = site, {device.name: device for device in devices}, 0
        self._cluster = Cluster(address, OPTION)
        many = min(count or self._cluster.cpus, len(devices))
        if many > self._cluster.cpus:
            self._cluster.close()
            raise Misconfigured(
                f"--workers {many}: {OPTION} {address} has {self._cluster.cpus} CPUs, one for each worker"
            )
        self._state: Any = None
        """The version of the round, in the cluster."""
        self._busy: dict[Any, tuple[_Actor, list[str]]] = {}
        """Calls that are not answered: the actor, and the devices that train in it."""
        self._losses: Counter[str] = Counter()
        self._actors = [self._started() for _ in range(many)]
        self._deal(list(self._devices), ())

    def _started(self) -> _Actor:
        return _Actor(self._cluster.actor(Shard, self._site))

    def _deal(self, names: Sequence[str], training: Collection[str]) -> None:
        """Give devices to the actors in turn; some of them train at once."""
        for number, actor in enumerate(self._actors):
            if own := names[number :: len(self._actors)]:
                actor.handle.add.remote([self._devices[name] for name in own])
                actor.names += own
                self._train(actor, [name for name in own if name in training])

    def _train(self, actor: _Actor, names: list[str]) -> None:
        if names:
            self._busy[actor.handle.train.remote(self._state, self._round, names)] = actor, names

    def start(self, state: Blobs, round_: int, chosen: Collection[str] | None = None) -> None:
        """See :class:`Crew`."""
        self._round, self._state, self._losses = round_, self._cluster.put(state), Counter()
        for actor in self._actors:
            self._train(actor, [name for name in actor.names if chosen is None or name in chosen])

    def finish(self) -> list[DeviceResult]:
        """See :class:`Crew`.

        Raises:
            Misconfigured: a device's input is wrong.
            Transient: processes with the same devices were lost several times, or the cluster is gone.
            RuntimeError: a bug of this program.
        """
        done: dict[str, DeviceResult] = {}
        while self._busy:
            call = self._cluster.first_of(list(self._busy))
            actor, _ = self._busy[call]
            try:
                found = self._cluster.result(call)
            except ProcessLost as error:
                self._replace(actor, error)
                continue
            del self._busy[call]
            if isinstance(found, Misconfigured):
                raise found
            for result, kept, carry in found:
                done[result.device] = result
                device = self._devices[result.device]
                device.private, device.carry = kept, carry
        return [done[name] for name in self._devices if name in done]

    def _replace(self, lost: _Actor, error: ProcessLost) -> None:
        """Deal the devices of a lost actor to the others, and let those train that had not finished.

        Raises:
            Transient: that has happened too often in this round.
        """
        calls = [call for call, (actor, _) in self._busy.items() if actor is lost]
        training = [name for call in calls for name in self._busy.pop(call)[1]]
        names = ", ".join(training[:_NAMED]) + (" ..." if len(training) > _NAMED else "")
        self._losses.update(training)
        if max(self._losses.values()) > _LOSSES:
            raise Transient(
                f"simulation, round {self._round}: the process with devices {names} was lost {_LOSSES + 1} "
                f"times; the usual cause is too little memory: {error}"
            ) from None
        log.warning(
            "process_lost", round=self._round, devices=names, why=str(error), then="trained elsewhere"
        )
        self._actors.remove(lost)
        self._actors = self._actors or [self._started()]
        self._deal(lost.names, set(training))

    def private(self) -> dict[str, Tensors]:
        """See :class:`Crew`."""
        return {name: device.private for name, device in self._devices.items()}

    def close(self) -> None:
        """See :class:`Crew`. A local cluster ends."""
        self._cluster.close()
