"""One agent: its parts, and their lives.

Queues: the link's inbox is bounded by the link; offers, pointers and wants keep the newest; chunks and
windows have the bounds that their services state. A message is acknowledged after it was handled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.service import DeploymentService
from edge_agent.identity.renewal_service import Renewal
from edge_agent.inference.service import Inference
from edge_agent.messaging.dispatcher import Dispatcher
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.messaging.state_reporter import StateReporter
from edge_agent.ports import AgentLink
from edge_agent.publish.service import Publishing
from edge_agent.sources.base import Source
from edge_agent.status.model_status import ModelStatus
from edge_agent.status.report import StatusReport
from edge_agent.storage.agent_storage import AgentStorage
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.training.learner import Learner
from edge_agent.windows.collector import Collector
from edge_agent.work_receiver import WorkReceiver
from protocol.tasks.task import Task
from runtime.process.daemon import Progress
from runtime.storage.blob_fetcher import Fetcher

Service = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Agent:
    """One device, as :func:`edge_agent.wiring.build` makes it; ``first_task``: with which it begins."""

    settings: AgentSettings
    sources: list[Source]
    storage: AgentStorage
    link: AgentLink
    fetcher: Fetcher
    tasks: CurrentTask
    collector: Collector
    inference: Inference
    deployment: DeploymentService
    models: ModelStatus
    learner: Learner
    outbox: Outbox
    metrics: RoundMetrics
    work: WorkReceiver
    dispatcher: Dispatcher
    reporter: StateReporter
    publishing: Publishing | None
    renewal: Renewal
    report: StatusReport
    progress: Progress
    services: Mapping[str, Service]
    """Name -> run, for the one TaskGroup."""
    first_task: Task | None = None

    async def start(self) -> None:
        """Begin with the task that is known, if any."""
        await asyncio.to_thread(self.storage.blobs.collect, (), self.settings.blob_budget_bytes)
        await self.tasks.start(self.first_task)

    async def stop(self) -> None:
        """Say goodbye while the link is up."""
        if self.publishing is not None:
            await self.publishing.goodbye()
        await self.deployment.executor.stop()
        await self.reporter.goodbye()

    def close(self) -> None:
        """After all services have ended."""
        self.tasks.close()
        self.storage.close()

    def status(self) -> dict[str, Any]:
        """What it does, and what it waits for."""
        return self.report.status()
