"""Protected rounds of one world: the observer, what strikes at a stage, and devices that lie."""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from typing import Any, Final, Protocol
from unittest.mock import patch

import numpy as np

from coordinator.daemon import Coordinator
from coordinator.storage.model_registry import ModelRegistry
from edge_agent.training import learner
from edge_agent.training.secure_update import fetched_vector
from edge_agent.training.update_encoding import encode_update
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop
from lichen_lab.simulation.deterministic.machine.node import Node, Surroundings
from lichen_lab.simulation.deterministic.machine.process_life import LIFE
from lichen_lab.simulation.deterministic.outcome import JournalBytes
from lichen_lab.simulation.deterministic.protected.hostile import Forger
from lichen_lab.simulation.deterministic.protected.plan import VERSION
from lichen_lab.simulation.deterministic.protected.private_truth import PrivateTruth
from lichen_lab.simulation.deterministic.protected.secure_truth import SecureTruth
from lichen_lab.simulation.deterministic.protected.shared_truth import SharedTruth
from lichen_lab.simulation.deterministic.scenario.coordinator_state import Violation
from lichen_lab.simulation.deterministic.scenario.scenario import FaultKind, Protection, ScheduledFault
from models.privacy.shared_noise import SharedNoise
from protocol.secure_aggregation.messages import SecureMessage, decode, is_secure
from protocol.secure_aggregation.ring import Words
from protocol.tasks.task import Task
from protocol.topics import Kind, parse

_GARBAGE: Final = 0.3
"""Share of the vectors of a hostile device that are random numbers."""
_LONGER: Final = 40.0
"""Times that a hostile device lengthens its update."""


class ProtectedWorld(Surroundings, Protocol):
    """What this needs of its world."""

    nodes: dict[str, Node]

    @property
    def app(self) -> Coordinator | None:
        """The coordinator that runs now."""

    def strike(self, fault: ScheduledFault) -> None:
        """Carry a fault out."""


class ProtectedFleet:
    """See the module.

    Args:
        world: with a protection in its scenario.
        loop: the world's.
        protection: of the scenario.
        known: what every observer knows; fields of :class:`GroundTruth`.
    """

    def __init__(
        self, world: ProtectedWorld, loop: SimLoop, protection: Protection, known: dict[str, Any]
    ) -> None:
        self._world, self._loop, self._its = world, loop, protection
        self._counts: Counter[str] = Counter()
        self._calm = False
        self._rng = random.Random(f"protected {world.scenario.seed}")  # noqa: S311 - a seed
        self.truth = self._observer(known)

    def _observer(self, known: dict[str, Any]) -> SecureTruth | PrivateTruth:
        its = self._its
        if its.secure is not None:
            known |= {"options": its.secure, "disks": self, "hostile": its.hostile, "reached": self._reached}
            if its.privacy is not None:
                noise = SharedNoise.of(its.privacy, its.secure)
                return SharedTruth(**known, privacy=its.privacy, noise=noise)
            return SecureTruth(**known)
        if its.privacy is not None:
            return PrivateTruth(**known, privacy=its.privacy, disks=self, floors=dict(its.floors))
        raise ValueError("a protection has at least one of the two tables")

    def read(self, node: str, name: str) -> bytes | None:
        """See ``secure_truth.Disks``."""
        return self._world.nodes[node].file(name)

    def is_durable(self, node: str, name: str) -> bool:
        """See ``secure_truth.Disks``."""
        return self._world.nodes[node].is_durable(name)

    def clear(self) -> None:
        """End what strikes at stages, and all lies."""
        self._calm = True

    def end(self) -> None:
        """Look at the whole; a broken promise ends the world."""
        if isinstance(self.truth, SecureTruth):
            try:
                self.truth.at_end()
            except Violation as violation:
                self._world.fail(violation)

    @property
    def journal(self) -> JournalBytes:
        """What the journal had of secure rounds."""
        return self.truth.journal if isinstance(self.truth, SecureTruth) else JournalBytes()

    def counts(self) -> Counter[str]:
        """What came about, by name."""
        truth = self.truth
        if isinstance(truth, SecureTruth):
            return Counter({"sum opened": truth.opened_sums, "sum stayed closed": len(truth.unopened)})
        return Counter({"fold repeated": truth.repeated})

    # ---- stages

    def _reached(self, stage: str, node: str) -> None:
        """A stage is reached once more: faults that wait for it strike."""
        self._counts[stage] += 1
        if self._calm:
            return
        for planned in self._its.stage_faults:
            if planned.stage == stage and planned.after == self._counts[stage]:
                self._strike(planned.fault, node)

    def _strike(self, fault: ScheduledFault, node: str) -> None:
        made = ScheduledFault(self._loop.time(), fault.kind, fault.node or node, fault.span_s, fault.amount)
        if fault.kind is FaultKind.MOMENT:  # of this process, in the middle of what it does
            self._world.strike(made)
        else:
            self._loop.call_soon(self._world.strike, made, context=Context())

    # ---- machines

    def link_maker(self, node: Node, make: Callable[..., Any]) -> Callable[..., Any]:
        """Makes links whose messages of secure rounds are seen, and forged if the device is hostile."""
        if self._its.secure is None:
            return make
        forger = Forger(node.rng("lies")) if node.name in self._its.hostile else None

        def made(*where: Any, **options: Any) -> "SecureLink":
            return SecureLink(self, node, make(*where, **options), forger)

        return made

    def sends(self, node: Node, message: SecureMessage) -> None:
        """A message of a secure round is about to leave a machine."""
        truth = self.truth
        if isinstance(truth, SecureTruth):
            node.aside(lambda: truth.sends(node.name, message))
            if not node.life.dead:
                self._reached(message.kind, node.name)  # type: ignore[attr-defined] # of each kind of message

    @property
    def lies(self) -> bool:
        """Whether hostile devices still do."""
        return not self._calm

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the observer see updates before they are masked and versions before they are recorded.

        Random bytes of the system follow the seed.
        """
        drawn = random.Random(f"system {self._world.scenario.seed}")  # noqa: S311 - a seed
        publish = ModelRegistry.publish

        async def seen(
            blobs: Any, offer: Any, task: Task, frame: bytes
        ) -> tuple[Words, dict[str, Any] | None]:
            vector_N, route = await fetched_vector(blobs, offer, task, frame)
            truth = self.truth
            if isinstance(truth, SecureTruth):
                device = truth.trains(frame)
                if device in self._its.hostile and self.lies and self._rng.random() < _GARBAGE:
                    return np.frombuffer(drawn.randbytes(vector_N.nbytes), vector_N.dtype).copy(), route
            return vector_N, route

        def lengthened(offer: Any, task: Task, who: Any, material: Any, result: Any, *, carry: Any) -> Any:
            if task.privacy is not None and who[0] in self._its.hostile and self.lies:
                factor = np.float32(_LONGER * max(1.0, task.privacy.clip))
                longer = {name: tensor * factor for name, tensor in result.tensors.items()}
                result = replace(result, tensors=longer)
                task = task.model_copy(update={"privacy": None})
            return encode_update(offer, task, who, material, result, carry=carry)

        def published(registry: ModelRegistry, version: int, state: Any, parent: str | None) -> Any:
            made = publish(registry, version, state, parent)
            self._published(version, parent, made[0])
            return made

        with (
            patch.object(learner, "fetched_vector", seen),
            patch.object(learner, "encode_update", lengthened),
            patch.object(ModelRegistry, "publish", published),
            patch.object(os, "urandom", drawn.randbytes),
        ):
            yield

    def _published(self, version: int, parent: str | None, digest: str) -> None:
        life, truth, app = LIFE.get(), self.truth, self._world.app
        if life is None or life.dead or app is None or not isinstance(truth, PrivateTruth):
            return
        try:
            truth.published(version, parent, tuple(app.driver.state.delivered), digest)
        except Violation as violation:
            self._world.fail(violation)
        self._reached(VERSION, life.node)


class SecureLink:
    """A link of a daemon, with an observer of the messages of secure rounds.

    Args:
        fleet: the observer.
        node: whose link it is.
        link: the real one.
        forger: of a hostile device.
    """

    def __init__(self, fleet: ProtectedFleet, node: Node, link: Any, forger: Forger | None) -> None:
        self._fleet, self._node, self._link, self._forger = fleet, node, link, forger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def publish(self, topic: str, payload: bytes, **how: Any) -> None:
        """Publish, after the observer has seen the message."""
        payloads = [payload]
        if payload and is_secure(payload) and parse(topic).kind in {Kind.UPDATE, Kind.RECEIPT}:
            self._fleet.sends(self._node, decode(payload, SecureMessage))
            if self._forger is not None and self._fleet.lies:
                payloads = self._forger.payloads(payload)
        for one in payloads:
            await self._link.publish(topic, one, **how)
