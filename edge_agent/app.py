"""Starts an agent from its configuration file, and returns its exit status."""

import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings, read, read_task
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.in_process import all_ended
from edge_agent.inference.serving.zygote_client import IDLE_S, ZygoteClient
from edge_agent.labels.requests import SOCKET
from edge_agent.ports import Trainer
from edge_agent.publish.service import predictions_link
from edge_agent.sources.base import Source
from edge_agent.sources.registry import open_sources
from edge_agent.status.liveness import hang_reason
from edge_agent.storage.agent_storage import AgentStorage, open_storage
from edge_agent.tasks.config_warnings import require_output
from edge_agent.tasks.roles import learning_role
from edge_agent.tasks.task_store import first_task
from edge_agent.wiring import build
from models.worker.job_loop import one_arena, trim_memory
from protocol.errors import Misconfigured
from protocol.topics import device_filters, ping_topic
from runtime import logs
from runtime.clock import Clock, SystemClock
from runtime.diagnosis.recent_lines import RecentLines
from runtime.mqtt.link import Link
from runtime.process import daemon
from runtime.settings.load import LogSettings
from runtime.storage.files import disk_errors
from runtime.tracing.settings import tracer_of
from runtime.tracing.spans import OFF, Tracer

_log = structlog.get_logger(__name__)
_PATIENCE_S: Final = 5.0
"""Seconds to wait at exit for a model that still computes in a thread."""


def load(config: Path, zygote: ZygoteClient | None = None) -> tuple[AgentSettings, Agent]:
    """Read and check everything, and make the agent; ``zygote`` starts the model processes.

    Raises:
        Misconfigured: names file and key.
    """
    settings = read(config)
    recent = RecentLines()
    logs.configure(settings.log, recent)
    clock = SystemClock()
    task = None if settings.task_file is None else read_task(settings.task_file, config)
    sources = open_sources(settings, config, task, clock)
    require_output(settings, config)
    for key in ("state_dir", "cache_dir"):
        folder: Path = getattr(settings, key)
        try:
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        except Misconfigured as error:
            raise Misconfigured(f"{config}: {key}: {error}") from None
    return settings, open_agent(
        settings,
        sources,
        clock,
        zygote=zygote,
        local_socket=settings.cache_dir / SOCKET,
        recent=recent,
        tracer=tracer_of(settings.tracing, "lichen-agent", settings.device),
    )


def open_agent(
    settings: AgentSettings,
    sources: list[Source],
    clock: Clock,
    *,
    storage: AgentStorage | None = None,
    make_link: Callable[..., Any] = Link,
    worker: Trainer | None = None,
    zygote: ZygoteClient | None = None,
    rng: random.Random | None = None,
    inference: Inference | None = None,
    local_socket: Path | None = None,
    recent: RecentLines | None = None,
    tracer: Tracer = OFF,
) -> Agent:
    """Open the agent's files, and make its parts; :meth:`Agent.close` closes them.

    Args:
        settings: checked.
        sources: opened.
        clock: of all services.
        storage: opened for this agent; None opens it.
        make_link: makes a link, as the constructor of ``runtime.mqtt.link.Link``.
        worker: as for :func:`edge_agent.wiring.build`, and so are the others.
        zygote: see there.
        rng: see there.
        inference: see there.
        local_socket: see there.
        recent: see there.
        tracer: takes spans; closed with the agent.

    Raises:
        Misconfigured: another agent runs on this state_dir, or a folder or file of it is invalid.
    """
    task = first_task(settings, sources)
    storage = storage or open_storage(settings, clock)
    fleet, device = settings.fleet, settings.device
    try:
        link = make_link(
            settings.mqtt,
            f"agent-{fleet}-{device}",
            filters=list(device_filters(fleet, device, learns=learning_role(settings) is not None)),
            ping_topic=ping_topic(fleet, device),
        )
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
        )
    except BaseException:
        storage.close()
        raise


async def main(config: Path, zygote: ZygoteClient | None = None) -> int:
    """Run until a signal. Returns the exit status."""
    _, agent = load(config, zygote)
    return await live(agent)


async def live(agent: Agent) -> int:
    """Run one agent from its start to its exit status."""
    try:
        await agent.start()
        trim_memory()  # free what imports and reading old files left behind: 6 MB
        return await daemon.supervise(
            agent.services(),
            on_stop=agent.stop,
            alive=partial(hang_reason, agent.progress, agent.storage.spool),
        )
    finally:
        agent.close()


def run(config: Path) -> int:
    """``lichen agent run``."""
    one_arena()
    logs.configure(LogSettings())  # until the file has been read; errors in it go to stderr too
    zygote = fork_zygote(config)
    try:
        status = daemon.run(lambda: main(config, zygote))
    finally:
        zygote.close()
    if not all_ended(_PATIENCE_S):
        _log.warning("model_thread_left_behind", detail="a model still computes in a thread")
        sys.stderr.flush()
        os._exit(status)
    return status


def fork_zygote(config: Path) -> ZygoteClient:
    """Fork the process that starts model processes, before any thread, lock or socket exists to be shared.

    The rest of the configuration may be invalid; that is reported later.
    """
    try:
        settings = read(config)
    except Misconfigured:
        return ZygoteClient()
    zygote = ZygoteClient(settings.log, idle_s=None if settings.infer.isolation == "process" else IDLE_S)
    if settings.infer.enabled:
        logs.configure(settings.log)
        zygote.fork()
    return zygote
