"""Runs one seed, from the first start of a real coordinator and real agents to the end of their task.

During the faults, promises are checked at every step of the round machine, every receipt and every spooled
update. After the last fault everything must end: the task done, no update without a receipt.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import Context
from pathlib import Path
from typing import Any, Final

from coordinator.daemon import Coordinator
from coordinator.rollout.model import RolloutState
from coordinator.round_machine.events import RoundPhase
from lichen_lab.simulation.deterministic import resource_bounds
from lichen_lab.simulation.deterministic.cluster.cluster import SimCluster
from lichen_lab.simulation.deterministic.machine import event_loop
from lichen_lab.simulation.deterministic.machine.daemons import ERRNO, CoordinatorNode, DeviceNode
from lichen_lab.simulation.deterministic.machine.disk import memory_folder
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop, Stuck
from lichen_lab.simulation.deterministic.machine.log_capture import capture_logs
from lichen_lab.simulation.deterministic.machine.node import Node
from lichen_lab.simulation.deterministic.network import network
from lichen_lab.simulation.deterministic.outcome import WorldOutcome
from lichen_lab.simulation.deterministic.protected.fleet import ProtectedFleet
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Violation
from lichen_lab.simulation.deterministic.scenario.invariants import GroundTruth
from lichen_lab.simulation.deterministic.scenario.rollout_truth import RolloutTruth
from lichen_lab.simulation.deterministic.scenario.scenario import (
    COORDINATOR,
    FaultKind,
    Scenario,
    ScheduledFault,
    draw,
)
from lichen_lab.simulation.deterministic.scenario.toy_method import first_state, server_half, toy_task

PATIENCE_S: Final = 1800.0
"""Virtual seconds after the last fault within which the task must be done."""
_LOOK_S: Final = 4.0
_ROT_S: Final = 20.0
_ROT_LOOK_S: Final = 0.2
_TRACE: Final = 40
"""Trace lines that are kept for a failing seed."""


class World:
    """Broker, machines, observers and the plan of one seed."""

    def __init__(
        self, scenario: Scenario, folder: Path, sim: SimLoop, trace: Callable[[str], None] | None
    ) -> None:
        self.scenario = scenario
        self.folder = folder
        self.loop = sim
        self.task = toy_task(scenario.rounds, scenario.uplink, scenario.seed % 2**31, scenario.protection)
        known: dict[str, Any] = {
            "task": self.task,
            "server": server_half(self.task, routed=scenario.routed, guided=scenario.guided),
            "first": first_state(self.task, scenario.head),
            "tolerant": scenario.rots,
            "time": None if scenario.leads or scenario.jumps_at(COORDINATOR) else sim.time,
            "rollouts": RolloutTruth(scenario.seed) if scenario.rollouts else None,
        }
        its = scenario.protection
        self.protected = None if its is None else ProtectedFleet(self, sim, its, known)
        self.truth = GroundTruth(**known) if self.protected is None else self.protected.truth
        self.sky = network.SimNetwork(scenario, self.say, self.fail)
        self.cluster = SimCluster(self, sim) if scenario.leads else None
        self.nodes: dict[str, Node] = {}
        self.nodes |= (
            self.cluster.nodes if self.cluster else {COORDINATOR: CoordinatorNode(self, COORDINATOR, sim)}
        )
        self.nodes |= {name: DeviceNode(self, name, sim) for name in scenario.devices}
        self.outcome = WorldOutcome(scenario.seed, scenario)
        self._mark = hashlib.sha256()
        self._trace = trace
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def app(self) -> Coordinator | None:
        """The coordinator that runs now; on a cluster the leader."""
        if self.cluster is not None:
            return self.cluster.leader
        node = self.nodes[COORDINATOR]
        assert isinstance(node, CoordinatorNode)  # noqa: S101 - made so above
        return node.app if node.is_up else None

    def link_maker(self, node: Node) -> Callable[..., Any]:
        """See ``nodes.Surroundings``."""
        make = self.sky.link_maker(node)
        return make if self.protected is None else self.protected.link_maker(node, make)

    def model_runs(self, device: str, digest: str) -> None:
        """See ``nodes.Surroundings``."""
        truth, app = self.truth.rollouts, self.app
        if truth is None:
            return
        if app is not None:
            self.truth.look_at_rollouts(app)
        truth.runs(device, digest, known=app is not None)

    def stable_digests(self) -> tuple[str, ...]:
        """See ``nodes.Surroundings``."""
        course = self._course()
        return () if course is None or course.stable is None else course.stable.release.digests

    def _course(self) -> RolloutState | None:
        """The decisions of the coordinator that runs now."""
        app = self.app
        if app is None or app.storage.rollouts is None:
            return None
        return app.storage.rollouts.last

    def say(self, words: str) -> None:
        """See ``nodes.Surroundings``."""
        if self.outcome.mark:
            return
        line = f"{self.loop.time():9.3f} s  {words}"
        self._mark.update(line.encode())
        self.outcome.trace.append(line)
        del self.outcome.trace[:-_TRACE]
        self.note(words)

    def note(self, words: str) -> None:
        """Write a comment into the trace."""
        if self._trace is not None and not self.outcome.mark:
            self._trace(f"{self.loop.time():9.3f} s  {words}")

    def count(self, what: str) -> None:
        """See ``nodes.Surroundings``."""
        self.outcome.faults[what] += 1

    def fail(self, error: BaseException) -> None:
        """See ``nodes.Surroundings``."""
        if self._failure is None and not self.outcome.mark:
            self._failure = error
            words = str(error) if isinstance(error, Violation) else f"{type(error).__name__}: {error}"
            self.outcome.violation = f"at {self.loop.time():.3f} s, step {self.loop.steps}: {words}"
            self.say(f"VIOLATION: {words}")
            self._over.set()

    async def run(self) -> None:
        """Run to the end, or to the first broken promise."""
        for node in self.nodes.values():
            node.begin()
        for fault in self.scenario.faults:
            self.loop.call_at(fault.at, self.strike, fault, context=Context())
        long = self.scenario.goes_on
        await self._until(lambda: self._at_end() or (not long and self._done()))
        if self._failure is None:
            self._calm()
            limit = self.loop.time() + PATIENCE_S
            await self._until(lambda: self._done() or self.loop.time() > limit)
            if self._failure is None and not self._done():
                self.fail(Violation(f"nothing is in the way for {PATIENCE_S:g} s, and still: {self._why()}"))
        if self.protected is not None and self._failure is None:
            self.protected.end()
        self.finish()

    def _at_end(self) -> bool:
        return self.loop.time() >= self.scenario.faults_end_s

    async def _until(self, true: Callable[[], bool]) -> None:
        while self._failure is None and not true():
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._over.wait()
            except TimeoutError:
                resource_bounds.of_loop(self.nodes.values())
                for node in self.nodes.values():
                    node.aside(lambda node=node: resource_bounds.check(node))  # type: ignore[misc] # the loop's own node

    def strike(self, fault: ScheduledFault) -> None:
        """Carry one fault out."""
        if self._failure is None and self._struck(fault):
            self.count(fault.kind.value)
            self.say(f"FAULT {fault.kind.value}: {fault.node} ({fault.span_s:.1f} s, {fault.amount:g})")

    def _struck(self, fault: ScheduledFault) -> bool:
        """Carry it out; whether it had an effect."""
        if self.sky.strike(fault) or (self.cluster is not None and self.cluster.strike(fault)):
            return True
        node, amount = self.nodes.get(fault.node), int(abs(fault.amount))
        if node is None:
            return False
        struck = True
        match fault.kind:
            case FaultKind.FREEZE:
                self.sky.silence(node.name, fault.span_s)
                struck = node.freeze(fault.span_s)
            case FaultKind.KILL | FaultKind.POWER:
                struck = node.kill(power=fault.kind is FaultKind.POWER, down_s=fault.span_s)
            case FaultKind.MOMENT:
                struck = node.kill_at(amount, fault.span_s, power=fault.amount > 0)
            case FaultKind.STOP:
                struck = node.stop(fault.span_s)
            case FaultKind.CLOCK:
                node.jump(fault.amount)
            case FaultKind.DISK_FULL | FaultKind.READ_ONLY:
                node.trouble(ERRNO[fault.kind.value])
                self.loop.call_later(fault.span_s, node.trouble, 0, context=Context())
            case FaultKind.ROT:
                struck = self._rotted(node, fault)
            case _:
                struck = False
        return struck

    def _rotted(self, node: Node, fault: ScheduledFault) -> bool:
        """If no file can rot now, the next one does: frames exist only briefly."""
        name = node.rot(int(fault.amount))
        if name:
            self.say(f"rotten: {fault.node} {name}")
        elif self.loop.time() < min(fault.at + _ROT_S, self.scenario.faults_end_s):
            self.loop.call_later(_ROT_LOOK_S, self.strike, fault, context=Context())
        return bool(name)

    def _calm(self) -> None:
        """End all faults: network and disks work."""
        self.say("the faults are over")
        self.sky.clear()
        for part in (self.cluster, self.protected):
            if part is not None:
                part.clear()
        for node in self.nodes.values():
            node.spare()
            node.trouble(0)

    def finish(self) -> WorldOutcome:
        """Write the result, once."""
        if not self.outcome.mark:
            outcome = self.outcome
            outcome.mark = self._mark.hexdigest()
            outcome.steps, outcome.threads, outcome.virtual_s = (
                self.loop.steps,
                self.loop.threads,
                self.loop.time(),
            )
            outcome.messages = self.sky.messages
            outcome.moments = sum(node.moments for node in self.nodes.values())
            outcome.faults += Counter({f"message: {k}": n for k, n in self.sky.weather.happened.items()})
            outcome.lost = len(self.truth.lost)
            if self.protected is not None:
                outcome.faults += self.protected.counts()
                outcome.journal = self.protected.journal
            outcome.counted = sum(len(digests) for digests in self.truth.counted.values())
        return self.outcome

    def _done(self) -> bool:
        app = self.app
        if app is None or app.driver.state.phase is not RoundPhase.DONE:
            return False
        devices = [node for node in self.nodes.values() if isinstance(node, DeviceNode)]
        if self.truth.unreported() or not self._rolled_out():
            return False
        return all(device.is_up and not device.waiting and device.settled for device in devices)

    def _rolled_out(self) -> bool:
        """No rollout goes on, or is about to."""
        course = self._course()
        return course is None or (course.open is None and course.waiting is None)

    def _why(self) -> str:
        app = self.app
        words = ["no coordinator" if app is None else f"{app.driver.state.phase.value}: {app.driver.why()}"]
        for node in self.nodes.values():
            if not node.is_up:
                words.append(f"{node.name} is down")
            elif isinstance(node, DeviceNode) and node.agent is not None:
                words.append(
                    f"{node.name}: {node.waiting} wait; {node.agent.learner.why}; {node.agent.link.why}"
                )
        return "; ".join([*words, *self.truth.unreported()])


def run_seed(
    seed: int, *, trace: Callable[[str], None] | None = None, scenario: Scenario | None = None
) -> WorldOutcome:
    """Run one seed.

    Args:
        seed: decides all.
        trace: is given every line.
        scenario: instead of the seed's own.

    Returns:
        The result; a broken promise is in ``violation``.
    """
    chosen = draw(seed) if scenario is None else scenario
    held: list[World] = []

    async def main(sim: SimLoop) -> None:
        world = World(chosen, Path(folder), sim, trace)
        held.append(world)
        with ExitStack() as stack:
            if world.cluster is not None:
                stack.enter_context(world.cluster.installed(seed))
            if world.protected is not None:
                stack.enter_context(world.protected.installed())
            await world.run()

    def note(words: str) -> None:
        if held:
            held[0].note(words)

    with memory_folder() as folder, capture_logs(note, talk=trace is not None):
        try:
            event_loop.run(main, seed, max_virtual_s=chosen.faults_end_s + 2 * PATIENCE_S)
        except (Stuck, Violation) as error:
            held[0].fail(error)
    return held[0].finish()
