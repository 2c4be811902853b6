"""Starts an agent from its configuration file, and returns its exit status."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings, read, read_task
from edge_agent.inference.serving.in_process import all_ended
from edge_agent.inference.serving.zygote_client import IDLE_S, ZygoteClient
from edge_agent.labels.requests import SOCKET
from edge_agent.opening import make_folders, open_agent, open_device
from edge_agent.sources.registry import open_sources
from edge_agent.status.liveness import hang_reason
from edge_agent.tasks.config_warnings import require_output
from models.worker.job_loop import one_arena, trim_memory
from protocol.errors import Misconfigured
from runtime import logs
from runtime.clock import SystemClock
from runtime.diagnosis.recent_lines import RecentLines
from runtime.process import daemon
from runtime.settings.load import LogSettings
from runtime.tracing.settings import tracer_of

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
    if settings.tasks:
        return settings, open_device(settings, config, clock, zygote=zygote, recent=recent)
    task = None if settings.task_file is None else read_task(settings.task_file, config)
    sources = open_sources(settings, config, task, clock)
    require_output(settings, config)
    make_folders(settings, config)
    return settings, open_agent(
        settings,
        sources,
        clock,
        zygote=zygote,
        local_socket=settings.cache_dir / SOCKET,
        recent=recent,
        tracer=tracer_of(settings.tracing, "lichen-agent", settings.device),
    )


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
            alive=partial(hang_reason, agent.progress, agent.storage.spool, others=agent.others),
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
