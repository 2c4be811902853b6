"""One agent: its parts, and their start and end.

Queues: the link's inbox is bounded by the link; offers, pointers and wants keep the newest; chunks and
windows have the bounds stated by their services. A message is acknowledged after it was handled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.events import DeploymentPhase
from edge_agent.deployment.service import DeploymentService
from edge_agent.drift.service import DriftService
from edge_agent.evaluation.service import EvaluationService
from edge_agent.features.backbones import Backbones
from edge_agent.identity.renewal_service import Renewal
from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.question_service import QuestionService
from edge_agent.inference.service import Inference
from edge_agent.knowledge_graph.watcher import KnowledgeGraphWatcher
from edge_agent.labels.local_server import LocalServer
from edge_agent.messaging.device_trace import DeviceTrace
from edge_agent.messaging.dispatcher import MessageDispatcher
from edge_agent.messaging.log_sender import LogSender
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.messaging.state_reporter import StateReporter, will
from edge_agent.ports import OtherTasks, TaskLink
from edge_agent.publish.service import Publishing
from edge_agent.secure_aggregation.service import MaskingService
from edge_agent.sources.base import Source
from edge_agent.status.model_status import ModelStatus
from edge_agent.status.report import StatusReport
from edge_agent.status.status_file import STATUS_FILE, keep
from edge_agent.storage.agent_storage import AgentStorage
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.telemetry.reporter import TelemetryReporter
from edge_agent.training.learner import Learner
from edge_agent.training.offer_schedule import OfferSchedule
from edge_agent.windows.collector import Collector
from edge_agent.work_receiver import WorkReceiver
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.process.daemon import Progress
from runtime.storage import sqlite
from runtime.storage.blob_fetcher import Fetcher
from runtime.tracing.spans import Tracer

Service = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Agent:
    """One device, as :func:`edge_agent.wiring.build` makes it; ``first_task`` is the task to begin with."""

    settings: AgentSettings
    sources: list[Source]
    clock: Clock
    storage: AgentStorage
    link: TaskLink
    fetcher: Fetcher
    tasks: CurrentTask
    collector: Collector
    graph: KnowledgeGraphWatcher
    inference: Inference
    deployment: DeploymentService
    models: ModelStatus
    learner: Learner
    masking: MaskingService
    schedule: OfferSchedule
    outbox: Outbox
    metrics: RoundMetrics
    work: WorkReceiver
    dispatcher: MessageDispatcher
    reporter: StateReporter
    telemetry: TelemetryReporter
    logs: LogSender
    publishing: Publishing | None
    questions: QuestionService | None
    backbones: Backbones
    evaluation: EvaluationService
    drift: DriftService
    local: LocalServer | None
    renewal: Renewal | None
    report: StatusReport
    progress: Progress
    trace: DeviceTrace
    tracer: Tracer
    first_task: Task | None = None
    others: OtherTasks | None = None

    async def start(self) -> None:
        """Begin with the known task, if any."""
        await self.tasks.start(self.first_task)  # first: it pins the blobs that the task needs
        if self.tasks.withheld:
            self.learner.outbox.rest()
        await asyncio.to_thread(self.storage.blobs.collect, (), self.settings.blob_budget_bytes)

    def services(self) -> dict[str, Service]:
        """Name -> coroutine function, for the one TaskGroup."""
        publishing, executor, status = self.publishing, self.deployment.executor, self.report
        return {
            "link": partial(self.link.run, on_connect=self._on_connect, will=will(self.settings)),
            "router": self.dispatcher.run,
            "verifier": self.work.run,
            "collector": self.collector.run,
            "backbones": self.backbones.run,
            "graph": self.graph.run,
            "outbox": self.outbox.run,
            "session": self.reporter.run,
            "inference": partial(
                self.inference.run,
                publish=self.trace.publishing(None if publishing is None else publishing.offer),
                observe=self._observe,
            ),
            **({"queries": self.questions.run} if self.questions else {}),
            **({"local": self.local.run} if self.local else {}),
            **(publishing.services() if publishing else {}),
            "learner": self.learner.run,
            "secure": self.masking.run,
            "offers": self.schedule.run,
            "deployment": self.deployment.run,
            "rollout": executor.run,
            "evaluation": self.evaluation.run,
            "drift": self.drift.run,
            "metrics": self.reporter.run_metrics,
            **({"telemetry": self.telemetry.run} if self.settings.telemetry.every_s else {}),
            "logs": self.logs.run,
            "state": partial(sqlite.watch, self.storage.spool.require_there, self.clock),
            "status": partial(
                keep,
                self.settings.cache_dir / STATUS_FILE,
                status.status,
                self.clock,
                last_words=status.last_status,
            ),
            **{
                f"source[{i}]": partial(self.collector.run_source, source)
                for i, source in enumerate(self.sources)
            },
            **(self.renewal.services() if self.renewal else {}),
            **(self.others.services() if self.others else {}),
        }

    def _observe(self, seen: BatchObservation) -> None:
        """A trial watches its model, and after it drift is watched: both see each batch once."""
        self.deployment.executor.observe(seen)
        if self.deployment.executor.phase is DeploymentPhase.COMMITTED:
            self.drift.observe(seen)

    async def _on_connect(self) -> None:
        await self.reporter.send_online()
        self.outbox.send_all()
        self.fetcher.on_connected(resumed=self.link.resumed)

    async def stop(self) -> None:
        """Send the last state while the link is up."""
        if self.publishing is not None:
            await self.publishing.send_offline()
        await self.deployment.executor.stop()
        await self.reporter.send_stopped()
        if self.others is not None:
            await self.others.stop()

    def close(self) -> None:
        """Close everything, after all services have ended."""
        self.tasks.close()
        self.storage.close()
        if self.settings.task_name is None:  # the tasks of a device share it
            self.tracer.close()

    def status(self) -> dict[str, Any]:
        """What the agent does, and what it waits for."""
        return self.report.status()
