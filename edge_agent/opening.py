"""Opens an agent: the one of a device, or one for each task of a device with several."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings
from edge_agent.further_tasks import DeviceTasks, FurtherTask
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.labels.requests import SOCKET
from edge_agent.messaging.link_views import SharedLink
from edge_agent.ports import OtherTasks, TaskLink, Trainer
from edge_agent.publish.service import predictions_link
from edge_agent.sources.base import Source
from edge_agent.sources.registry import open_source, open_sources
from edge_agent.sources.shared import DeviceSources
from edge_agent.storage.agent_storage import BLOBS, AgentStorage, open_storage
from edge_agent.storage.device_blobs import DeviceBlobs
from edge_agent.tasks.config_warnings import require_output
from edge_agent.tasks.roles import may_learn
from edge_agent.tasks.task_store import first_task
from edge_agent.training.turns import SharedWorker, TrainingTurns
from edge_agent.wiring import build
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from protocol.topics import device_filters, ping_topic
from runtime.clock import Clock
from runtime.diagnosis.recent_lines import RecentLines
from runtime.mqtt.link import Link
from runtime.process.worker import Worker
from runtime.storage.files import disk_errors
from runtime.tracing.settings import tracer_of
from runtime.tracing.spans import OFF, Tracer

_log = structlog.get_logger(__name__)


def make_folders(settings: AgentSettings, config: Path) -> None:
    """Make the folders of a task. Raises Misconfigured, Transient."""
    for key in ("state_dir", "cache_dir"):
        folder: Path = getattr(settings, key)
        try:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        except Misconfigured as error:
            raise Misconfigured(f"{config}: {key}: {error}") from None


def open_agent(
    settings: AgentSettings,
    sources: list[Source],
    clock: Clock,
    *,
    storage: AgentStorage | None = None,
    make_link: Callable[..., Any] = Link,
    link: TaskLink | None = None,
    worker: Trainer | None = None,
    zygote: ZygoteClient | None = None,
    rng: random.Random | None = None,
    inference: Inference | None = None,
    local_socket: Path | None = None,
    recent: RecentLines | None = None,
    tracer: Tracer = OFF,
    turns: TrainingTurns | None = None,
    others: OtherTasks | None = None,
) -> Agent:
    """Open the agent's files, and make its parts; :meth:`Agent.close` closes them.

    Args:
        settings: checked; of one task, if the device has several.
        sources: opened.
        clock: of all services.
        storage: opened for this agent; None opens it.
        make_link: makes a link, as the constructor of ``runtime.mqtt.link.Link``.
        link: to the coordinator; None makes one.
        worker: as for :func:`edge_agent.wiring.build`, and so are the others.
        zygote: see there.
        rng: see there.
        inference: see there.
        local_socket: see there.
        recent: see there.
        tracer: takes spans; closed with the agent.
        turns: see :func:`edge_agent.wiring.build`.
        others: see there.

    Raises:
        Misconfigured: another agent runs on this state_dir, or a folder or file of it is invalid.
    """
    storage = storage or open_storage(settings, clock)
    try:
        task, mismatch = _first_task(settings, sources)
        link = link or _link(settings, filters_of(settings), make_link)
        return build(
            settings,
            sources,
            clock,
            storage=storage,
            link=link,
            publish_link=predictions_link(settings, make_link),
            first_task=task,
            worker=worker,
            zygote=zygote,
            rng=rng,
            inference=inference,
            local_socket=local_socket,
            recent=recent,
            tracer=tracer,
            task_mismatch=mismatch,
            turns=turns,
            others=others,
        )
    except BaseException:
        storage.close()
        raise


def open_device(
    settings: AgentSettings,
    config: Path,
    clock: Clock,
    *,
    zygote: ZygoteClient | None,
    recent: RecentLines | None,
) -> Agent:
    """Open a device with several tasks: the agent of its main task, which runs the others beside it.

    They share the connection, sensors, the worker with turns, the processes of models, blobs that several of
    them need, and the account of privacy.

    Args:
        settings: of the whole device.
        config: its file, for messages.
        clock: of all services.
        zygote: starts model processes; None starts one when needed.
        recent: the last log lines; None: none are stored.

    Raises:
        Misconfigured: as :func:`open_agent`, of what the tasks share and of the main task.
    """
    own = settings.for_task(None)
    sources = DeviceSources(open_sources(own, config, None, clock))
    require_output(own, config)
    make_folders(own, config)
    names = [one.name for one in settings.tasks]
    filters = [one for name in (None, *names) for one in filters_of(settings.for_task(name))]
    link, turns = SharedLink(_link(own, filters, Link)), TrainingTurns()
    zygote = zygote or ZygoteClient(settings.log)
    worker = Worker(own.learn.module, idle_s=own.learn.worker_idle_s)
    tracer = tracer_of(settings.tracing, "lichen-agent", settings.device)
    shared = DeviceBlobs([settings.for_task(name).cache_dir / BLOBS for name in (None, *names)])
    storage = open_storage(own, clock, shared=shared)

    def further(name: str) -> Agent:
        one = settings.for_task(name)
        require_output(one, config)
        make_folders(one, config)
        folder = config.absolute().parent

        def opened(i: int) -> Source:
            return open_source(one.source[i], f"{config}: source[{i}]", folder, None, clock)

        return open_agent(
            one,
            sources.of_further(opened),
            clock,
            storage=open_storage(one, clock, privacy=storage.privacy, shared=shared),
            link=link.further(one.fleet, filters_of(one)),
            worker=SharedWorker(worker),
            zygote=zygote,
            local_socket=one.cache_dir / SOCKET,
            recent=recent,
            tracer=tracer,
            turns=turns,
        )

    return open_agent(
        own,
        sources.of_main(),
        clock,
        storage=storage,
        link=link.main(own.fleet),
        worker=worker,
        zygote=zygote,
        local_socket=own.cache_dir / SOCKET,
        recent=recent,
        tracer=tracer,
        turns=turns,
        others=DeviceTasks([FurtherTask(name, further, clock) for name in names], link.run),
    )


def filters_of(settings: AgentSettings) -> list[tuple[str, int]]:
    """The subscriptions of one task."""
    learns = may_learn(settings)
    return list(device_filters(settings.fleet, settings.device, learns=learns))


def _link(settings: AgentSettings, filters: list[tuple[str, int]], make_link: Callable[..., Any]) -> Any:
    """A link under the device's client id."""
    fleet, device = settings.fleet, settings.device
    ping = ping_topic(fleet, device)
    return make_link(settings.mqtt, f"agent-{fleet}-{device}", filters=filters, ping_topic=ping)


def _first_task(settings: AgentSettings, sources: list[Source]) -> tuple[Task | None, str]:
    """The task to begin with, and why the one of ``task_file`` cannot be done.

    On a device with several tasks a wrong file is no end of the others: this task waits for an announcement.

    Raises:
        Misconfigured: the device has one task.
    """
    try:
        return first_task(settings, sources), ""
    except Misconfigured as error:
        if not settings.tasks:
            raise
        _log.error("task_file_refused", task=settings.task_name or "main", why=str(error))
        return None, str(error)
