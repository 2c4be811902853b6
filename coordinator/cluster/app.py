"""``lichen coordinator lead`` and ``ingest``, from their settings to an exit status."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog

from coordinator.app import leader_link_of, open_coordinator
from coordinator.cluster import ingest_worker
from coordinator.cluster.ingest_worker import IngestWorker
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator
from coordinator.fleet.serving_routes import routing
from coordinator.lease.heartbeat import LEAD, ProcessHeartbeat
from coordinator.lease.keeper import LeaseKeeper, holder_name
from coordinator.lease.table import LeaseTable
from coordinator.recovery.state_folder import open_shared_storage
from coordinator.status.prometheus import serve_metrics
from coordinator.task import load_task
from coordinator.wires import Wires
from coordinator.workers import labelled_data
from coordinator.workers.jobs import Jobs
from models.contract import Server
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from protocol.topics import ingest_filters, ping_topic
from runtime import logs
from runtime.clock import Clock, SystemClock
from runtime.mqtt.link import Link
from runtime.mqtt.running_link import RunningLink
from runtime.process import garbage
from runtime.process.daemon import Finished, supervise
from runtime.storage.files import disk_errors
from runtime.tracing.settings import tracer_of

log = structlog.get_logger(__name__)

INGEST: Final = "ingest"
"""Role of the lease of the process that accepts updates where only one can."""
_KEEPALIVE_S: Final = 10
"""A process that hangs gets its share of the messages until the broker notices."""


def _unwatched(_coordinator: Coordinator, _lease: LeaseKeeper) -> None:
    """Nobody looks on."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """What a process takes from outside; tests and simulations bring their own.

    Attributes:
        clock: the time.
        make_link: makes the link to the broker, as the constructor of ``runtime.mqtt.link.Link``.
        jobs: work for child processes; None: real child processes.
        rng: draws the id of a training run; None: the system's random numbers.
        wires: the signals between parts.
        opened: is given a leader at work.
    """

    clock: Clock = field(default_factory=SystemClock)
    make_link: Callable[..., RunningLink] = Link
    jobs: Jobs | None = None
    rng: random.Random | None = None
    wires: Wires = field(default_factory=Wires)
    opened: Callable[[Coordinator, LeaseKeeper], None] = _unwatched


@contextmanager
def _lease(settings: CoordinatorSettings, role: str, clock: Clock) -> Iterator[LeaseKeeper]:
    """The lease of a role, on a connection of its own."""
    with disk_errors(settings.state_dir):
        settings.state_dir.mkdir(parents=True, exist_ok=True)
    with settings.location.database(alone=False) as store:
        table = LeaseTable(store, role, settings.cluster.lease_s)
        keeper = LeaseKeeper(table, role, clock, holder_name())
        try:
            yield keeper
        finally:
            keeper.close()


async def lead(settings: CoordinatorSettings) -> int:
    """Lead the rounds of the fleet while no other process does; else wait.

    Raises:
        Misconfigured: the task, the method's options or the state folder.
    """
    logs.configure(settings.log)
    garbage.collect_seldom()
    task, spec = load_task(settings)
    _require_plain(task, settings)
    return await run_lead(settings, task, spec.server())


def _require_plain(task: Task, settings: CoordinatorSettings) -> None:
    if task.secure_aggregation is not None:
        raise Misconfigured(
            f"{settings.task}: [secure_aggregation]: ingest processes do not know the stages of secure "
            "rounds; run one process (lichen coordinator serve)"
        )


async def run_lead(
    settings: CoordinatorSettings, task: Task, server: Server, outer: Outer | None = None
) -> int:
    """As :func:`lead`, with a task that is read already."""
    outer = outer or Outer()
    with _lease(settings, LEAD, outer.clock) as lease:
        return await supervise({LEAD: partial(_lead, settings, task, server, lease, outer)})


async def _lead(
    settings: CoordinatorSettings, task: Task, server: Server, lease: LeaseKeeper, outer: Outer
) -> None:
    await lease.take()
    try:
        async with open_coordinator(
            settings,
            task,
            server,
            jobs=outer.jobs,
            clock=outer.clock,
            link=leader_link_of(settings, lease, outer.make_link),
            rng=outer.rng,
            wires=outer.wires,
            lease=lease,
        ) as coordinator:
            await lease.renew()
            await coordinator.driver.open()
            outer.opened(coordinator, lease)
            with serve_metrics(settings.metrics, (*coordinator.measured, lease)):
                try:
                    await _run_all(coordinator.services())
                finally:
                    await coordinator.goodbye()
    finally:
        await lease.release()


async def ingest(settings: CoordinatorSettings) -> int:
    """Accept updates for the leader until a signal.

    Raises:
        Misconfigured: the task, the method's options, the state folder or the protocol of the broker.
    """
    logs.configure(settings.log)
    garbage.collect_seldom()
    task, spec = load_task(settings)
    _require_plain(task, settings)
    return await run_ingest(settings, task, spec.server())


async def run_ingest(
    settings: CoordinatorSettings, task: Task, server: Server, outer: Outer | None = None
) -> int:
    """As :func:`ingest`, with a task that is read already."""
    shared, outer = settings.cluster.shared_subscriptions, outer or Outer()
    if shared and settings.mqtt.protocol != "5":
        raise Misconfigured(
            "cluster.shared_subscriptions: shared subscriptions are a part of MQTT 5, and mqtt.protocol is "
            f'"{settings.mqtt.protocol}"; set cluster.shared_subscriptions = false, and one ingest process '
            "works at a time"
        )
    accepting = partial(_ingest, settings, task, server, outer)
    if shared:
        return await supervise({INGEST: accepting})
    with _lease(settings, INGEST, outer.clock) as lease:
        return await supervise({INGEST: partial(_alone, lease, accepting)})


async def _alone(lease: LeaseKeeper, accepting: Callable[[], Awaitable[None]]) -> None:
    """Without shared subscriptions each process would get every message."""
    await lease.take()
    try:
        await _run_all({"lease": lease.run, INGEST: accepting})
    finally:
        await lease.release()


async def _ingest(settings: CoordinatorSettings, task: Task, server: Server, outer: Outer) -> None:
    async with open_ingest(settings, task, server, outer) as worker:
        with serve_metrics(settings.metrics, worker.measured):
            await _run_all(worker.services)


@asynccontextmanager
async def open_ingest(
    settings: CoordinatorSettings, task: Task, server: Server, outer: Outer | None = None
) -> AsyncIterator[IngestWorker]:
    """Open what the leader shares, and build a process on it that accepts updates.

    Args:
        settings: where and how.
        task: as the operator wrote it.
        server: the method's server half.
        outer: the clock, the link and the signals.

    Raises:
        Misconfigured: the state belongs to another task.
        Transient: it cannot be read now.
    """
    outer = outer or Outer()
    clock = outer.clock
    keeps_messages = routing(server) is not None
    # No session at the broker: it would keep messages for a process that never returns.
    mqtt = settings.mqtt.model_copy(
        update={"session_expiry_s": 0, "keepalive_s": min(_KEEPALIVE_S, settings.mqtt.keepalive_s)}
    )
    filters = ingest_filters(settings.fleet, shared=settings.cluster.shared_subscriptions)
    link = outer.make_link(
        mqtt,
        ingest_worker.client_id(settings.fleet),
        filters=[(one, 1) for one in filters],
        ping_topic=ping_topic(settings.fleet),
    )
    with open_shared_storage(settings, task, clock, keeps_messages=keeps_messages) as storage:
        tracer = tracer_of(settings.tracing, "lichen-ingest", settings.fleet)
        worker = ingest_worker.build(
            settings,
            labelled_data.announced(task),
            server,
            storage=storage,
            link=link,
            clock=clock,
            wires=outer.wires,
            tracer=tracer,
        )
        heartbeat = ProcessHeartbeat(storage.store, holder_name(), clock, worker.threads)
        try:
            await worker.open()
            yield replace(worker, services={**worker.services, "heartbeat": heartbeat.run})
        finally:
            heartbeat.forget()
            worker.close()
            tracer.close()


async def _run_all(services: Mapping[str, Callable[[], Awaitable[None]]]) -> None:
    """Run services until one fails; if one has finished the work, end with that."""
    try:
        async with asyncio.TaskGroup() as group:
            for name, run in services.items():
                group.create_task(_named(name, run), name=name)
    except* Finished as done:
        raise Finished(str(done.exceptions[0])) from None


async def _named(name: str, run: Callable[[], Awaitable[None]]) -> None:
    try:
        await run()
    except Exception as error:
        error.add_note(f"in service {name!r}")
        raise
