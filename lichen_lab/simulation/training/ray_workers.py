"""The devices' half of a simulation on a Ray cluster: each actor holds a shard of the devices.

A device keeps its state between rounds, the version is sent once a round, and results are in the devices'
order, as in :mod:`lichen_lab.simulation.training.workers`: the bytes are those of one process.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.compute.cluster import Cluster, ProcessLost
from lichen_lab.simulation.training.device import TRAIN, DeviceResult, Site, VirtualDevice
from lichen_lab.simulation.training.workers import one_thread
from models.contract import Blobs, Tensors
from protocol.errors import Misconfigured, Transient

OPTION: Final = "--ray"
_NAMED: Final = 8


class Shard:
    """Some devices, in a process of the cluster."""

    def __init__(self, site: Site, devices: Sequence[VirtualDevice]) -> None:
        self._site, self._devices = site, devices
        if any(device.role == TRAIN for device in devices):
            one_thread()

    def train(self, state: Blobs, round_: int, chosen: Collection[str]) -> list[DeviceResult] | Misconfigured:
        """The results of the chosen devices; an error in their input is returned, not raised."""
        try:
            takes_part = [device for device in self._devices if device.name in chosen]
            return [self._site.deliver(device, state, round_) for device in takes_part]
        except Misconfigured as error:
            return error

    def private(self) -> dict[str, Tensors]:
        """Each device's private tensors."""
        return {device.name: device.private for device in self._devices}


@dataclass
class _Actor:
    """A shard's process, and the devices in it."""

    handle: Any
    names: list[str]
    work: Any = field(default=None)


class RayWorkers:
    """Devices dealt to actors with one torch thread each; see :class:`Crew`.

    Args:
        site: as for one process.
        devices: dealt in turn.
        address: of the cluster, as ``compute.ray``.
        count: actors; None: one for each CPU of the cluster. At most one a device.

    Raises:
        Misconfigured: the cluster cannot be used.
        Transient: it cannot be reached, or one of its processes ended.
    """

    def __init__(
        self, site: Site, devices: Sequence[VirtualDevice], address: str, count: int | None = None
    ) -> None:
        self._names, self._round = [device.name for device in devices], 0
        self._cluster = Cluster(address, OPTION)
        many = min(count or self._cluster.cpus, len(devices))
        if many > self._cluster.cpus:
            self._cluster.close()
            raise Misconfigured(
                f"--workers {many}: {OPTION} {address} has {self._cluster.cpus} CPUs, one for each worker"
            )
        shares = [list(devices[first::many]) for first in range(many)]
        self._actors = [
            _Actor(self._cluster.actor(Shard, site, share), [device.name for device in share])
            for share in shares
        ]

    def start(self, state: Blobs, round_: int, chosen: Collection[str] | None = None) -> None:
        """See :class:`Crew`."""
        self._round, shared = round_, self._cluster.put(state)
        for actor in self._actors:
            own = tuple(name for name in actor.names if chosen is None or name in chosen)
            actor.work = actor.handle.train.remote(shared, round_, own) if own else None

    def finish(self) -> list[DeviceResult]:
        """See :class:`Crew`.

        Raises:
            Misconfigured: a device's input is wrong.
            Transient: a process of the cluster ended, or the cluster is gone; the message names the devices.
            RuntimeError: a bug of this program.
        """
        done: dict[str, DeviceResult] = {}
        busy = [actor for actor in self._actors if actor.work is not None]
        while busy:
            first = self._cluster.first_of([actor.work for actor in busy])
            actor = next(one for one in busy if one.work == first)
            busy.remove(actor)
            found = self._result(actor, first)
            if isinstance(found, Misconfigured):
                raise found
            done |= {result.device: result for result in found}
        return [done[name] for name in self._names if name in done]

    def private(self) -> dict[str, Tensors]:
        """See :class:`Crew`."""
        found: dict[str, Tensors] = {}
        for actor in self._actors:
            found |= self._result(actor, self._cluster.first_of([actor.handle.private.remote()]))
        return {name: found[name] for name in self._names}

    def close(self) -> None:
        """See :class:`Crew`. A local cluster ends."""
        self._cluster.close()

    def _result(self, actor: _Actor, work: Any) -> Any:
        try:
            return self._cluster.result(work)
        except ProcessLost as error:
            names = ", ".join(actor.names[:_NAMED]) + (" ..." if len(actor.names) > _NAMED else "")
            raise Transient(
                f"simulation, round {self._round}: the process with devices {names} ended, with their state: "
                f"start again ({error})"
            ) from None
