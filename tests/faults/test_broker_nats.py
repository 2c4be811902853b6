"""A small real fleet over three NATS nodes, of which two are killed, one after the other, in mid-round."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.trial import FaultTrial
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from lichen_lab.simulation.processes.testbed import COORDINATOR, Testbed
from protocol.topics import Kind
from tests.support.network.nats import NODES, NatsNodes

DEVICES = ("alectoria", "bryoria", "cetraria")
PLACES = (COORDINATOR, *DEVICES, "witness")
ROUNDS = 8


class NatsTrial(FaultTrial):
    """A fleet with a load balancer for each process: it leads to another node when the own one is dead."""

    def __init__(self, root: Path, cluster: NatsNodes, stack: ExitStack) -> None:
        self.cluster = cluster
        self.ways = {}
        for number, name in enumerate(PLACES):
            self.ways[name] = stack.enter_context(Proxy(cluster.nodes[number % NODES].port))
        files = small_fleet.files(root, 1, DEVICES, {name: way.port for name, way in self.ways.items()})
        files = replace(files, link={**files.link, "protocol": "3.1.1"})
        super().__init__(
            files, small_fleet.task(ROUNDS, len(DEVICES), 1, quorum=1.0), changes={}, gated=False, light=None
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Testbed]:
        async with self.stage as stage, self.witness.watching():
            yield stage

    async def until_round(self, number: int, kind: Kind) -> None:
        """The next message of this kind in that round or a later one: the middle of a round."""
        while self.round < number:
            self.witness.changed.clear()
            await self.witness.changed.wait()
        before = self.witness.count(kind)
        while self.witness.count(kind) == before:
            self.witness.changed.clear()
            await self.witness.changed.wait()

    def kill(self, victim: int) -> None:
        """SIGKILL; the load balancers send its clients to another node."""
        dead, other = self.cluster.nodes[victim], self.cluster.nodes[(victim + 1) % NODES]
        dead.kill()
        for way in self.ways.values():
            if way.upstream_port == dead.port:
                way.upstream_port = other.port

    async def back(self, victim: int) -> None:
        """Start the node again."""
        node = self.cluster.nodes[victim]
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(self.cluster.wait_ready, node)


@pytest.mark.long
@pytest.mark.mosquitto
async def test_a_fleet_on_nats_loses_nothing_when_nodes_die_in_mid_round(tmp_path) -> None:
    with NatsNodes(tmp_path / "nats") as cluster, ExitStack() as stack:
        trial = NatsTrial(tmp_path / "fleet", cluster, stack)
        async with trial.running() as bed:
            await bed.start(COORDINATOR, restart="on-failure")
            for name in DEVICES:
                await bed.start(name)
            async with asyncio.timeout(240):
                await trial.until_round(2, Kind.UPDATE)
                trial.kill(0)  # the coordinator's
                await trial.until_round(3, Kind.UPDATE)
                # A node needs some 10 s to join again, a round one: without a pause all rounds would be over.
                await bed.stop(COORDINATOR)
                await trial.back(0)
                await bed.start(COORDINATOR, restart="on-failure")
                await trial.until_round(4, Kind.UPDATE)
                trial.kill(1)
            await bed.until("the end of all rounds", trial.finished, 150)
        verdict = await trial.verdict()
    assert verdict.violations == []
    assert verdict.compared == ROUNDS + 1
    assert verdict.accepted == verdict.acknowledged
    assert verdict.accepted >= ROUNDS * (len(DEVICES) - 1)
