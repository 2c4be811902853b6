"""A coordinator of several processes in one world: machines, database, bucket, and their faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from coordinator.daemon import Coordinator
from lichen_lab.simulation.deterministic.cluster.bucket import SimBucket
from lichen_lab.simulation.deterministic.cluster.cluster_truth import ClusterTruth
from lichen_lab.simulation.deterministic.cluster.machines import (
    ClusterNode,
    IngestNode,
    LeadNode,
    SharedStorage,
)
from lichen_lab.simulation.deterministic.cluster.server import SimServer
from lichen_lab.simulation.deterministic.cluster.session import ServerSession
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop
from lichen_lab.simulation.deterministic.machine.node import Surroundings
from lichen_lab.simulation.deterministic.scenario.scenario import FaultKind, ScheduledFault

_LONGEST_S: Final = 12.0
"""Of a database that does not answer: beyond that it is away as a whole, which is another fault."""


class SimCluster:
    """See the module.

    Args:
        world: with leads and ingest processes in its scenario.
        loop: the world's.
    """

    def __init__(self, world: Surroundings, loop: SimLoop) -> None:
        scenario = world.scenario
        self._world = world
        self.server = SimServer(world.folder, loop, scenario, self._committed, world.count)
        self.bucket = SimBucket(loop.time)
        self.storage = SharedStorage(self.server, self.bucket)
        self._truth = ClusterTruth(world.truth, self.storage)
        self._leads = [
            LeadNode(world, name, loop, self.storage, newest=self._newest) for name in scenario.leads
        ]
        ingests = [IngestNode(world, name, loop, self.storage) for name in scenario.ingests]
        self.nodes: dict[str, ClusterNode] = {node.name: node for node in (*self._leads, *ingests)}

    @contextmanager
    def installed(self, seed: int) -> Iterator[None]:
        """Let the processes use the simulated storage."""
        with self.storage.installed(seed):
            yield

    @property
    def leader(self) -> Coordinator | None:
        """The process that leads now; None: nobody does."""
        return next((node.app for node in self._leads if node.leads), None)

    def _newest(self) -> int:
        return self._truth.epoch

    def _committed(self, session: ServerSession) -> None:
        node = self.nodes.get(session.node)
        epoch = node.epoch if isinstance(node, LeadNode) and session.life is node.life else None
        try:
            self._truth.committed(set(session.tables), epoch)
        except Exception as error:  # noqa: BLE001 - a broken promise, or a fault of the observer
            self._world.fail(error)

    def strike(self, fault: ScheduledFault) -> bool:
        """Carry out a fault of the storage; False if it had no effect."""
        server, span = self.server, fault.span_s
        match fault.kind:
            case FaultKind.STORE_PAUSE:
                server.pause(min(span, _LONGEST_S))
            case FaultKind.STORE_FAILOVER:
                server.fail_over(span)
            case FaultKind.STORE_CUT:
                server.part(fault.node, span)
            case FaultKind.COMMIT_LOST:
                server.lose_answer(fault.node)
            case FaultKind.BUCKET_DOWN:
                self.bucket.fail(span)
            case _:
                return False
        return True

    def clear(self) -> None:
        """End all faults."""
        self.server.clear()
        self.bucket.clear()
