"""The coordinator, from its settings to an exit status."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from coordinator.compute.runner import ClusterFolds, ClusterRunner
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.tasks import FOLDER
from coordinator.daemon import Coordinator
from coordinator.fleet.serving_routes import routing
from coordinator.lease.keeper import LeaseKeeper
from coordinator.messaging.leased_link import LeasedLink
from coordinator.recovery.folder_owner import within_epsilon
from coordinator.recovery.state_folder import Storage, open_storage
from coordinator.wires import Wires
from coordinator.wiring import build
from coordinator.workers import labelled_data
from coordinator.workers.jobs import Jobs, WorkerJobs, secrets_in
from models.contract import Server
from protocol.tasks.task import Task
from protocol.topics import coordinator_filters, leader_filters, ping_topic
from runtime.clock import Clock, SystemClock
from runtime.mqtt.link import Link
from runtime.mqtt.running_link import RunningLink
from runtime.process.worker_turns import WorkerTurns
from runtime.tracing.settings import tracer_of

T = TypeVar("T")


def link_of(settings: CoordinatorSettings, make: Callable[..., RunningLink] = Link) -> RunningLink:
    """Makes the link to the broker, as the constructor of ``runtime.mqtt.link.Link``."""
    return make(
        settings.mqtt,
        f"coordinator-{settings.fleet}",
        filters=[(one, 1) for one in coordinator_filters(settings.fleet)],
        ping_topic=ping_topic(settings.fleet),
    )


def leader_link_of(
    settings: CoordinatorSettings, lease: LeaseKeeper, make: Callable[..., RunningLink] = Link
) -> RunningLink:
    """Makes the link of the process that leads. All have one client id: the broker keeps the last one."""
    filters = [(one, 1) for one in leader_filters(settings.fleet)]
    ping = ping_topic(settings.fleet)
    link = make(settings.mqtt, f"coordinator-{settings.fleet}", filters=filters, ping_topic=ping)
    return LeasedLink(link, lease.holds)


def cluster_of(settings: CoordinatorSettings, storage: Storage) -> ClusterRunner | None:
    """Makes the client of a Ray cluster; None if the settings name none."""
    if not settings.compute.ray:
        return None
    return ClusterRunner(settings.compute, storage.root / "jobs", settings.worker.idle_s)


def jobs_of(
    settings: CoordinatorSettings,
    task: Task,
    storage: Storage,
    cluster: ClusterRunner | None = None,
    turns: WorkerTurns | None = None,
) -> Jobs:
    """Makes the jobs for child processes, or for a cluster."""
    test = settings.evaluation
    return WorkerJobs(
        within_epsilon(task),  # the last round may train more
        storage.root / "jobs",
        test.data,
        settings.worker,
        storage.labelled,
        int8=settings.export.int8,
        by=test.by,
        packages=settings.packages.allow,
        elsewhere=cluster,
        start=settings.start.weights,
        hidden=_of_others(settings),
        turns=turns,
    )


def _of_others(settings: CoordinatorSettings) -> list[Path]:
    """What child processes of this task may not open of the fleet's other tasks."""
    if settings.further_task is None:
        return [settings.state_dir.resolve() / FOLDER]
    return secrets_in(settings.main.state_dir)


@asynccontextmanager
async def open_coordinator(
    settings: CoordinatorSettings,
    task: Task,
    server: Server,
    *,
    jobs: Jobs | None = None,
    clock: Clock | None = None,
    link: RunningLink | None = None,
    rng: random.Random | None = None,
    wires: Wires | None = None,
    lease: LeaseKeeper | None = None,
    turns: WorkerTurns | None = None,
    in_threads: bool = False,
) -> AsyncIterator[Coordinator]:
    """Open the state folder and build a coordinator on it; :meth:`Coordinator.run` runs it.

    Args:
        settings: where and how.
        task: what the fleet learns.
        server: the method's server half.
        jobs: work for child processes; None: real child processes.
        clock: the time.
        link: the broker; None: a real link of a process that does everything.
        rng: draws the id of a training run; None takes the system's random numbers.
        wires: the signals between parts; None creates them.
        lease: held; other processes accept the updates. None: this process does everything.
        turns: limits the child processes; None: they have no limit.
        in_threads: open and close the state folder in threads, because others run on this event loop.

    Raises:
        Misconfigured: the state folder is not writable or belongs to another task, or the labelled windows
            cannot be used, or the cluster of ``compute.ray`` cannot be reached.
        Transient: the disk is full.
    """
    clock = clock or SystemClock()
    keeps_messages = routing(server) is not None
    opening = open_storage(settings, task, clock, keeps_messages=keeps_messages, rng=rng, lease=lease)
    async with AsyncExitStack() as stack:
        if in_threads:
            storage = await stack.enter_async_context(_in_threads(opening))
        else:
            storage = stack.enter_context(opening)
        task = labelled_data.announced(task)  # from here on: the part of the task that devices may see
        cluster = None if jobs is not None else cluster_of(settings, storage)
        jobs = jobs or jobs_of(settings, task, storage, cluster, turns)
        tracer = tracer_of(settings.tracing, "lichen-coordinator", settings.fleet)
        coordinator = build(
            settings,
            task,
            server,
            storage=storage,
            jobs=jobs,
            link=link or link_of(settings),
            clock=clock,
            wires=wires or Wires(),
            folds=None if cluster is None else ClusterFolds(cluster, settings.compute),
            lease=lease,
            tracer=tracer,
        )
        try:
            if cluster is not None:
                await cluster.require()
            yield coordinator
        finally:
            await jobs.close()
            coordinator.close()
            tracer.close()


async def run(settings: CoordinatorSettings, task: Task, server: Server, *, jobs: Jobs | None = None) -> int:
    """Run a coordinator until a signal, or until the end if the settings say so; the exit status."""
    async with open_coordinator(settings, task, server, jobs=jobs) as coordinator:
        return await coordinator.run()


@asynccontextmanager
async def _in_threads(blocking: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A context that blocks for a disk, entered and left in threads; a cancelled entry is undone."""
    entering = asyncio.ensure_future(asyncio.to_thread(blocking.__enter__))
    try:
        yield await asyncio.shield(entering)
    finally:
        await asyncio.wait([entering])
        if not entering.cancelled() and entering.exception() is None:
            await asyncio.to_thread(blocking.__exit__, None, None, None)
