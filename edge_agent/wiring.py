"""The parts of one agent, in the order in which they need each other."""

import random
from collections import Counter
from functools import partial

from edge_agent.agent import Agent, Service
from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.service import DeploymentService
from edge_agent.identity.files import folder_of
from edge_agent.identity.renewal_service import Renewal, service_of
from edge_agent.inference.question_service import QuestionService
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.zygote_client import ZygoteClient
from edge_agent.knowledge_graph.watcher import GraphWatcher
from edge_agent.messaging.contact import Contact
from edge_agent.messaging.dispatcher import Dispatcher, commands
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.round_metrics import RoundMetrics
from edge_agent.messaging.state_reporter import StateReporter, will
from edge_agent.ports import AgentLink, Trainer
from edge_agent.publish.service import Publishing
from edge_agent.sources.base import Source
from edge_agent.status.model_status import ModelStatus
from edge_agent.status.report import DataStatus, StatusReport
from edge_agent.status.status_file import STATUS_FILE, keep
from edge_agent.storage.agent_storage import AgentStorage
from edge_agent.tasks.current_task import CurrentTask
from edge_agent.tasks.task_store import TASK_FILE, kept_misfit
from edge_agent.training.learner import Learner
from edge_agent.trust.updater import trust_of
from edge_agent.trust.work_verifier import WorkVerifier
from edge_agent.windows.collector import Collector
from edge_agent.work_receiver import WorkReceiver
from protocol.messages import Command
from protocol.tasks.task import Task
from protocol.topics import Kind, Route
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress
from runtime.storage import sqlite
from runtime.storage.blob_fetcher import Fetcher
from runtime.waits import StatusPart, StatusText


def build(
    settings: AgentSettings,
    sources: list[Source],
    clock: Clock,
    *,
    storage: AgentStorage,
    link: AgentLink,
    publish_link: AgentLink | None,
    first_task: Task | None,
    worker: Trainer | None = None,
    zygote: ZygoteClient | None = None,
    rng: random.Random | None = None,
) -> Agent:
    """Every part.

    Args:
        settings: checked.
        sources: opened.
        clock: of all services.
        storage: opened for this agent.
        link: to the coordinator.
        publish_link: to the broker of predictions; None: they are not published.
        first_task: what it begins with; None waits for an announcement.
        worker: trains; None makes the child process of the settings.
        zygote: makes the processes of models; None starts one when it is needed.
        rng: jitter; None takes any.

    Raises:
        Misconfigured: ``trust_file`` is not there, or no root.
    """
    changed, state_wanted, progress, metrics = Signal(), Signal(), Progress(), RoundMetrics()
    contact, learning, refused = Contact(clock), StatusText(clock, storage.ledger.at_start()), Counter[str]()
    zygote = zygote or ZygoteClient(settings.log)

    inference = Inference(settings.infer, clock, storage.private, zygote)
    collector = Collector(
        settings, sources, clock=clock, listener=inference.offer, changed=changed, progress=progress
    )
    graph = GraphWatcher(settings, clock, changed, progress)
    tasks = CurrentTask(
        settings, sources, windows=collector, graph=graph, changed=changed, clock=clock,
        misfit=kept_misfit(settings.state_dir / TASK_FILE),
    )  # fmt: skip
    fetcher = Fetcher(
        link.publish, settings.fleet, settings.device, storage.blobs, lambda: link.chunk_bytes,
        window=settings.mqtt.window,
    )  # fmt: skip
    outbox = Outbox(
        link, storage.spool, storage.ledger, settings, clock, learning=learning, contact=contact,
        state_wanted=state_wanted, changed=changed, rng=rng,
    )  # fmt: skip
    learner = Learner(
        settings, tasks, outbox, storage=storage, fetcher=fetcher, clock=clock, learning=learning,
        metrics=metrics, contact=contact, worker=worker, zygote=zygote,
    )  # fmt: skip
    trust = trust_of(settings, fetcher, clock)
    verifier = WorkVerifier(trust, settings.state_dir, clock)
    deployment = DeploymentService(
        settings.state_dir / "models", fetcher, inference, tasks, fetch_timeout_s=settings.fetch_timeout_s,
        changed=changed, clock=clock, trust=trust, settings=settings.deploy,
    )  # fmt: skip
    executor = deployment.executor
    models = ModelStatus(settings, tasks, inference, deployment)
    reporter = StateReporter(
        settings, link, tasks=tasks, models=models, verifier=verifier, clock=clock,
        withdrawn=outbox.confirmed, changed=changed, wanted=state_wanted, metrics=metrics,
    )  # fmt: skip
    publishing = None
    if publish_link is not None and settings.infer.mqtt is not None:
        publishing = Publishing(settings, settings.infer.mqtt, publish_link, clock, rng)
    queries = None
    if settings.graph is not None and settings.graph.queries is not None:
        queries = QuestionService(
            settings.graph.queries,
            inference,
            storage.private,
            tasks,
            clock=clock,
            poll_s=settings.graph.poll_s,
        )
    identity = folder_of(settings.state_dir)
    renewal = Renewal(identity, clock, partial(link.reconnect, "the certificate was renewed"), rng=rng)
    work = WorkReceiver(verifier, tasks, learner, deployment, changed=changed, refused=refused)

    async def on_chunk(route: Route, payload: bytes) -> None:
        fetcher.on_chunk(route.digest or "", route.index or 0, payload)

    def on_no_such_blob(command: Command) -> None:
        if command.digest is not None:
            fetcher.on_no_such_blob(command.digest)

    def on_send_state(_command: Command) -> None:
        state_wanted.set()
        changed.set()

    async def on_connect() -> None:
        await reporter.greet()
        outbox.kick()
        fetcher.on_connected(resumed=link.resumed)

    handlers = {
        Kind.DOWN_BLOB: on_chunk,
        Kind.RECEIPT: outbox.on_answer,
        Kind.OFFER: work.on_offer,
        Kind.TASK: work.on_task,
        Kind.MODEL: deployment.on_pointer,
        Kind.FLEET_MODEL: deployment.on_pointer,
        Kind.CMD: commands({"no_such_blob": on_no_such_blob, "send_state": on_send_state}),
    }
    dispatcher = Dispatcher(link, handlers, contact=contact, refused=refused, progress=progress, clock=clock)
    parts: list[StatusPart] = [
        renewal,
        tasks,
        verifier,
        DataStatus(tasks),
        learner,
        collector,
        storage,
        outbox,
    ]
    parts += [models, inference, *([publishing] if publishing else []), *([queries] if queries else [])]
    report = StatusReport(settings.device, link, [*parts, dispatcher])
    services: dict[str, Service] = {
        "link": partial(link.run, on_connect=on_connect, will=will(settings)),
        "router": dispatcher.run,
        "verifier": work.run,
        "collector": collector.run,
        "graph": graph.run,
        "outbox": outbox.run,
        "session": reporter.run,
        "inference": partial(
            inference.run,
            publish=None if publishing is None else publishing.offer,
            observe=deployment.executor.observe,
        ),
        **({"queries": queries.run} if queries else {}),
        **(publishing.services() if publishing else {}),
        "learner": learner.run,
        "deployment": deployment.run,
        "rollout": executor.run,
        "metrics": reporter.run_metrics,
        "state": partial(sqlite.watch, storage.spool.require_there, clock),
        "status": partial(
            keep, settings.cache_dir / STATUS_FILE, report.status, clock, last_words=report.last_status
        ),
        **{f"source[{i}]": partial(collector.run_source, source) for i, source in enumerate(sources)},
        **service_of(identity, renewal),
    }
    return Agent(
        settings=settings, sources=sources, storage=storage, link=link, fetcher=fetcher, tasks=tasks,
        collector=collector, inference=inference, deployment=deployment, models=models, learner=learner,
        outbox=outbox, metrics=metrics, work=work, dispatcher=dispatcher, reporter=reporter,
        publishing=publishing, renewal=renewal, report=report, progress=progress, services=services,
        first_task=first_task,
    )  # fmt: skip
