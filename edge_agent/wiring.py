"""The parts of one agent, in order of their dependencies."""

import random
from collections import Counter
from functools import partial
from pathlib import Path

from edge_agent.agent import Agent
from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.service import DeploymentService
from edge_agent.drift.service import DriftService
from edge_agent.evaluation.service import EvaluationService
from edge_agent.features.backbones import Backbones
from edge_agent.identity.files import folder_of
from edge_agent.identity.renewal_service import Renewal
from edge_agent.inference.providers.accelerators import Accelerators
from edge_agent.inference.question_service import QuestionService
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.knowledge_graph.watcher import KnowledgeGraphWatcher
from edge_agent.labels.local_server import LocalServer
from edge_agent.labels.service import LabelService
from edge_agent.labels.site_labels import SiteLabels
from edge_agent.messaging.contact import Contact
from edge_agent.messaging.device_trace import DeviceTrace
from edge_agent.messaging.dispatcher import Handler, MessageDispatcher, commands
from edge_agent.messaging.log_sender import LogSender
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.messaging.state_reporter import StateReporter
from edge_agent.ports import OtherTasks, TaskLink, Trainer
from edge_agent.publish.service import Publishing
from edge_agent.secure_aggregation.service import MaskingService
from edge_agent.sources.base import Source
from edge_agent.status.model_status import ModelStatus
from edge_agent.status.report import DataStatus, StatusReport
from edge_agent.storage.agent_storage import AgentStorage
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.tasks.task_store import TASK_FILE, saved_task_mismatch
from edge_agent.telemetry.reporter import TelemetryReporter
from edge_agent.training.learner import Learner
from edge_agent.training.offer_schedule import OfferSchedule
from edge_agent.training.turns import TrainingTurns
from edge_agent.trust.updater import trust_of
from edge_agent.trust.work_verifier import WorkVerifier
from edge_agent.windows.collector import Collector
from edge_agent.work_receiver import WorkReceiver
from protocol.messages import Command
from protocol.secure_aggregation.messages import is_secure
from protocol.tasks.task import Task
from protocol.topics import Kind, Route
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.diagnosis.recent_lines import RecentLines
from runtime.mqtt.link import Link
from runtime.process.daemon import Progress
from runtime.storage.blob_fetcher import Download, Fetcher
from runtime.tracing.spans import OFF, Tracer
from runtime.waits import StatusPart, StatusText


def build(
    settings: AgentSettings,
    sources: list[Source],
    clock: Clock,
    *,
    storage: AgentStorage,
    link: TaskLink,
    publish_link: Link | None,
    first_task: Task | None,
    worker: Trainer | None = None,
    zygote: ZygoteClient | None = None,
    rng: random.Random | None = None,
    inference: Inference | None = None,
    local_socket: Path | None = None,
    recent: RecentLines | None = None,
    tracer: Tracer = OFF,
    task_mismatch: str = "",
    turns: TrainingTurns | None = None,
    others: OtherTasks | None = None,
) -> Agent:
    """Make every part, after the parts it depends on.

    Args:
        settings: checked; of one task, if the device has several.
        sources: opened.
        clock: of all services.
        storage: opened for this agent.
        link: to the coordinator.
        publish_link: to the broker for predictions; None: predictions are not published.
        first_task: the task to begin with; None waits for an announcement.
        worker: trains; None uses a child process as configured.
        zygote: starts model processes; None starts one when needed.
        rng: jitter; None creates one.
        inference: runs models; None uses ONNX Runtime as configured.
        local_socket: of the local interface; None: there is none.
        recent: the last log lines; None: none are stored.
        tracer: takes spans of rounds and models.
        task_mismatch: why the task of ``task_file`` cannot be done; empty if it can.
        turns: of the tasks of a device that learn; None: there is one task.
        others: the further tasks of the device, for the main one.

    Raises:
        Misconfigured: ``trust_file`` is missing, or no root.
    """
    changed, state_wanted, progress, metrics = Signal(), Signal(), Progress(), RoundMetrics()
    contact, learning, refused = (
        Contact(clock),
        StatusText(clock, storage.ledger.first_status()),
        Counter[str](),
    )
    zygote = zygote or ZygoteClient(settings.log)
    trace = DeviceTrace(tracer, settings.fleet, settings.device, clock)

    fetcher = Fetcher(
        link.publish, settings.fleet, settings.device, storage.blobs, lambda: link.chunk_bytes,
        window=settings.mqtt.window, download=_download(settings),
    )  # fmt: skip

    # From sensors or files to the current task's data.
    main = settings.task_name is None
    accelerators = Accelerators(settings.infer, settings.cache_dir / "engines", clock)
    inference = inference or Inference(
        settings.infer, clock, storage.private, zygote, accelerators, ends_zygote=main
    )
    backbones = Backbones(settings, storage.blobs, fetcher, zygote, clock, changed, storage.shared)
    collector = Collector(
        settings, sources, clock=clock, listener=inference.enqueue, changed=changed, progress=progress,
        features=backbones,
    )  # fmt: skip
    graph = KnowledgeGraphWatcher(settings, clock, changed, progress)
    tasks = CurrentTask(
        settings, sources, windows=collector, graph=graph, changed=changed, clock=clock,
        task_mismatch=task_mismatch or saved_task_mismatch(settings.state_dir / TASK_FILE),
    )  # fmt: skip

    # From an offer to an update with a receipt.
    outbox = Outbox(
        link, storage.spool, storage.ledger, settings, clock, learning=learning, contact=contact,
        state_wanted=state_wanted, changed=changed, rng=rng, trace=trace,
    )  # fmt: skip
    masking = MaskingService(settings, link, clock, learning)
    learner = Learner(
        settings, tasks, outbox, storage=storage, fetcher=fetcher, clock=clock, learning=learning,
        metrics=metrics, contact=contact, worker=worker, zygote=zygote, trace=trace,
        turns=turns or TrainingTurns(), masking=masking,
    )  # fmt: skip

    schedule = OfferSchedule(settings.device, learner, link, clock, learning)

    # From a pointer to the active model.
    trust = trust_of(settings, fetcher, clock)
    deployment = DeploymentService(
        settings.state_dir / "models", fetcher, inference, tasks, fetch_timeout_s=settings.fetch_timeout_s,
        changed=changed, clock=clock, trust=trust, settings=settings.deploy, trace=trace,
    )  # fmt: skip
    models = ModelStatus(settings, tasks, inference, deployment)
    questions = _questions(settings, inference, storage, tasks, clock)
    labels = LabelService(collector, inference, clock, changed, settings.infer.min_quality)
    publishing = _publishing(settings, publish_link, clock, rng, labels)
    evaluation = EvaluationService(settings, link, collector, inference, clock)
    drift = DriftService(settings.drift, settings.state_dir, clock)
    local = None if local_socket is None else LocalServer(local_socket, labels, clock, recent)

    # Messages from the coordinator, and reports to it.
    verifier = WorkVerifier(trust, settings.state_dir, clock)
    work = WorkReceiver(verifier, tasks, learner, schedule, deployment, changed=changed, refused=refused)
    reporter = StateReporter(
        settings, link, tasks=tasks, models=models, verifier=verifier, clock=clock,
        withdrawn=outbox.confirmed, changed=changed, wanted=state_wanted, metrics=metrics,
        backbones=backbones,
    )  # fmt: skip
    telemetry = TelemetryReporter(
        settings,
        link,
        spool=storage.spool,
        collector=collector,
        inference=inference,
        drift=drift,
        clock=clock,
        rng=rng,
    )
    logs = LogSender(settings, link, recent, clock)
    dispatcher = MessageDispatcher(
        link, _handlers(fetcher, outbox, work, deployment, reporter, logs=logs, masking=masking),
        contact=contact,
        refused=refused, progress=progress, clock=clock,
    )  # fmt: skip
    renew_link = partial(link.reconnect, "the certificate was renewed")
    renewal = Renewal(folder_of(settings.device_dir), clock, renew_link, rng=rng) if main else None
    parts: list[StatusPart | None] = [
        renewal, tasks, verifier, DataStatus(tasks), backbones, learner, masking, collector, storage,
        outbox, models, accelerators, inference, publishing, questions, labels, evaluation, drift,
        dispatcher, logs, trace, others,
    ]  # fmt: skip
    report = StatusReport(settings.device, link, [part for part in parts if part is not None])
    return Agent(
        settings=settings, sources=sources, clock=clock, storage=storage, link=link, fetcher=fetcher,
        tasks=tasks, collector=collector, graph=graph, inference=inference, deployment=deployment,
        models=models, learner=learner, masking=masking, schedule=schedule, outbox=outbox, metrics=metrics,
        work=work,
        dispatcher=dispatcher, reporter=reporter, telemetry=telemetry, logs=logs, publishing=publishing,
        questions=questions, backbones=backbones, evaluation=evaluation, drift=drift, local=local,
        renewal=renewal, report=report, progress=progress, first_task=first_task, trace=trace, tracer=tracer,
        others=others,
    )  # fmt: skip


def _download(settings: AgentSettings) -> Download | None:
    if not settings.download.hosts:
        return None
    # Only with hosts: HTTP and TLS take memory.
    from edge_agent.messaging.blob_download import download_of  # noqa: PLC0415

    return download_of(settings)


def _publishing(
    settings: AgentSettings, link: Link | None, clock: Clock, rng: random.Random | None, labels: LabelService
) -> Publishing | None:
    publish = settings.infer.mqtt
    if link is None or publish is None:
        return None
    controls = SiteLabels(labels, settings, publish, clock) if publish.labels else None
    return Publishing(settings, publish, link, clock, rng, controls=controls)


def _questions(
    settings: AgentSettings, inference: Inference, storage: AgentStorage, tasks: CurrentTask, clock: Clock
) -> QuestionService | None:
    graph = settings.graph
    if graph is None or graph.queries is None:
        return None
    return QuestionService(graph.queries, inference, storage.private, tasks, clock=clock, poll_s=graph.poll_s)


def _handlers(
    fetcher: Fetcher,
    outbox: Outbox,
    work: WorkReceiver,
    deployment: DeploymentService,
    reporter: StateReporter,
    *,
    logs: LogSender,
    masking: MaskingService,
) -> dict[Kind, Handler]:
    """The handler of each kind of message."""

    async def on_answer(route: Route, payload: bytes) -> None:
        await (masking.on_answer if is_secure(payload) else outbox.on_answer)(route, payload)

    async def on_chunk(route: Route, payload: bytes) -> None:
        fetcher.on_chunk(route.digest or "", route.index or 0, payload)

    def on_url(command: Command) -> None:
        if command.digest is not None and command.url is not None:
            fetcher.on_url(command.digest, command.url)

    def on_no_such_blob(command: Command) -> None:
        if command.digest is not None:
            fetcher.on_no_such_blob(command.digest)

    return {
        Kind.DOWN_BLOB: on_chunk,
        Kind.RECEIPT: on_answer,
        Kind.OFFER: work.on_offer,
        Kind.TASK: work.on_task,
        Kind.MODEL: deployment.on_pointer,
        Kind.FLEET_MODEL: deployment.on_pointer,
        Kind.CMD: commands(
            {
                "no_such_blob": on_no_such_blob,
                "send_state": reporter.on_request,
                "send_logs": logs.on_request,
                "download": on_url,
            }
        ),
    }
