"""The machines of a coordinator of several processes, all observed."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import sqlalchemy as sa

from coordinator.cluster.app import Outer, run_ingest, run_lead
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator
from coordinator.lease.keeper import LeaseKeeper
from coordinator.recovery import open_stores
from coordinator.storage.engines.postgres_address import PostgresSchema
from coordinator.storage.location import Location
from coordinator.wires import Wires
from lichen_lab.simulation.deterministic.cluster.bucket import SimBucket
from lichen_lab.simulation.deterministic.cluster.server import OBSERVED, SimServer, simulated_engines
from lichen_lab.simulation.deterministic.machine.daemons import (
    WatchedAnswers,
    WatchedSignal,
    coordinator_settings,
)
from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop
from lichen_lab.simulation.deterministic.machine.node import Node, Surroundings
from lichen_lab.simulation.deterministic.machine.threads import kill_threads, simulated_locks
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario
from lichen_lab.simulation.deterministic.scenario.toy_method import ToyJobs
from protocol.base import Wire
from protocol.messages import Receipt
from runtime import exit_codes

_STOPS_WITHIN_S: Final = 10.0
"""Of a daemon; then it ends with status 70."""
_URL: Final = sa.make_url("postgresql+psycopg://lichen@store/lichen")
_BUCKET: Final = "s3://simulated/lichen/"


class SimulatedSettings(CoordinatorSettings):
    """Settings of a coordinator on a cluster; the address needs no driver."""

    @property
    def location(self) -> Location:
        """See the base class."""
        return Location(self.state_dir, PostgresSchema(_URL, OBSERVED))


def cluster_settings(scenario: Scenario, root: Path) -> CoordinatorSettings:
    """Settings as in the field, with shorter waits."""
    given = coordinator_settings(scenario, root).model_dump(exclude_unset=True)
    given["mqtt"]["protocol"] = "5"
    given["storage"] = {"blobs": _BUCKET}
    return SimulatedSettings.model_validate(given)


class SharedStorage:
    """The database and the bucket of one world, as an observer sees them.

    Args:
        server: the database.
        bucket: blobs and accepted updates.
    """

    def __init__(self, server: SimServer, bucket: SimBucket) -> None:
        self.server, self.bucket = server, bucket

    def rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        """See ``scenario.coordinator_state.Outside``."""
        return self.server.rows(query)

    def blob(self, digest: str) -> bytes | None:
        """See ``scenario.coordinator_state.Outside``."""
        return self.bucket.look(f"blobs/{digest[:2]}/{digest}")

    def is_durable(self, round_: int, file: str) -> bool:
        """See ``scenario.coordinator_state.Outside``."""
        return self.bucket.look(f"frames/{round_}/{file}") is not None

    @contextmanager
    def installed(self, seed: int) -> Iterator[None]:
        """Let the coordinator's processes use them instead of real ones; and seeded names."""
        rng = Random(f"names {seed}")  # noqa: S311 - a seed, not a secret
        with (
            patch.object(secrets, "token_hex", lambda nbytes=None: rng.randbytes(nbytes or 8).hex()),
            patch.object(
                open_stores, "open_bucket", lambda settings: self.bucket if settings.blobs else None
            ),
            simulated_locks(),
            simulated_engines(self.server),
        ):
            try:
                yield
            finally:
                self.server.close()


class ClusterNode(Node):
    """A machine with one process of the coordinator."""

    interleaves = True
    most_tasks = 220

    def __init__(self, world: Surroundings, name: str, loop: SimLoop, storage: SharedStorage) -> None:
        super().__init__(world, name, loop)
        self.storage = storage

    def begin(self) -> None:
        """See the base class; the process's threads end with it."""
        before = self.life
        super().begin()
        if self.life is not before:
            self.life.on_end.append(self._end_threads)

    def _end_threads(self, _: str) -> None:
        self.loop.call_soon(kill_threads, self.life, context=Context())

    def may_end(self, status: int) -> str:
        """A process that lost the lease or the database ends, and starts again.

        Its orderly end takes too long if it is stopped meanwhile, or its database does not answer.
        """
        late = self.was_frozen or self.storage.server.stood_still(_STOPS_WITHIN_S)
        if status == exit_codes.SOFTWARE and self.stopping and late:
            return " on an orderly end"
        return " for now" if status == exit_codes.TEMPFAIL else super().may_end(status)

    def may_rot(self, path: Path) -> bool:
        """Nothing: it holds copies alone."""
        del path
        return False

    def outer(self, wires: Wires) -> dict[str, Any]:
        """What every process takes from the world."""
        return {"clock": self.clock, "make_link": self.world.link_maker(self), "wires": wires}

    def on_answer(self, device: str, message: Wire) -> None:
        """A message to a device was queued."""
        if isinstance(message, Receipt):
            words = f"{message.status} round {message.round} {message.digest[:8]}"
            self.world.say(f"{self.name} tells {device}: {words}")
            self.aside(lambda: self.world.truth.told(self.storage, device, message))


class IngestNode(ClusterNode):
    """A machine that accepts updates."""

    async def run(self) -> int:
        """See the base class."""
        world = self.world
        settings = cluster_settings(world.scenario, self._root)
        wires = Wires(answers=WatchedAnswers(self.on_answer))
        return await run_ingest(settings, world.task, world.truth.server, Outer(**self.outer(wires)))


class LeadNode(ClusterNode):
    """A machine that leads, or waits for the lease."""

    app: Coordinator | None = None
    lease: LeaseKeeper | None = None

    def __init__(self, *where: Any, newest: Callable[[], int]) -> None:
        super().__init__(*where)
        self._newest = newest

    @property
    def leads(self) -> bool:
        """Whether it has the newest lease."""
        return self.is_up and self.lease is not None and self.lease.epoch == self._newest()

    async def run(self) -> int:
        """See the base class."""
        world, clock = self.world, self.clock
        scenario, task = world.scenario, world.task
        self.app = self.lease = None
        settings = cluster_settings(scenario, self._root)
        jobs = ToyJobs(task, scenario.head, clock, self.rng("jobs"), scenario.work_fails)
        wires = Wires(changes=WatchedSignal(self.on_change), answers=WatchedAnswers(self.on_answer))
        outer = Outer(jobs=jobs, rng=self.rng("run id"), opened=self._opened, **self.outer(wires))
        return await run_lead(settings, task, world.truth.server, outer)

    def _opened(self, app: Coordinator, lease: LeaseKeeper) -> None:
        self.app, self.lease = app, lease
        self.world.say(f"{self.name} leads, epoch {lease.epoch}")
        self.aside(lambda: self.world.truth.changed(app, self.storage, reopened=True))

    @property
    def epoch(self) -> int | None:
        """Of the lease that this life has, or had; None: it has not led yet."""
        return None if self.lease is None or self.life.dead else self.lease.epoch

    def on_change(self) -> None:
        """The round machine's state may have changed."""
        app = self.app
        if app is None or not self.leads:
            return
        state = app.driver.state
        self.world.say(f"round {state.round}.{state.attempt} {state.phase.value} {tuple(state.delivered)}")
        self.aside(lambda: self.world.truth.changed(app, self.storage))
