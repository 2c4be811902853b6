"""The parts of one agent, wired; and where each message goes.

Queues: the link's inbox is bounded by the link; offers, pointers and wants keep the newest; chunks and
windows have the bounds that their services state. A message is acknowledged after it was handled.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.deployment.service import Deployment
from edge_agent.identity.files import folder_of
from edge_agent.identity.renewal_service import Renewal, service_of
from edge_agent.inference.question_service import Queries
from edge_agent.inference.service import Inference
from edge_agent.inference.serving.zygote_client import Zygote
from edge_agent.knowledge_graph.watcher import GraphKeeper
from edge_agent.messaging.dispatcher import Router
from edge_agent.messaging.outbox import Outbox
from edge_agent.messaging.state_reporter import Session, offline, state_topic
from edge_agent.ports import AgentLink, Trainer
from edge_agent.publish.service import Publishing
from edge_agent.sources.base import Source
from edge_agent.status.model_status import hindrance
from edge_agent.status.report import report
from edge_agent.status.status_file import LOCK_FILE, STATUS_FILE, keep
from edge_agent.tasks.config_warnings import warnings
from edge_agent.tasks.private_tensors import PrivateTensors
from edge_agent.tasks.task_store import first_task
from edge_agent.tasks.workspace import Workspace
from edge_agent.training.learner import Learner
from edge_agent.training.round_ledger import Ledger
from edge_agent.trust.updater import trust_of
from edge_agent.trust.work_verifier import WorkVerifier
from edge_agent.windows.collector import Collector, Judged
from protocol.messages import Offer
from protocol.tasks.task import Task
from protocol.topics import device_filters, ping_topic
from runtime.clock import Clock
from runtime.mqtt.link import Link, Will
from runtime.process.daemon import Progress
from runtime.storage import sqlite
from runtime.storage.blob_fetcher import Fetcher
from runtime.storage.blob_store import BlobStore
from runtime.storage.files import sweep_below
from runtime.storage.folder_lock import Owner
from runtime.storage.spool import Spool

_log = structlog.get_logger("edge_agent")

SPOOL = "spool.sqlite3"
"""In the state folder: updates that wait for their receipt."""


class Agent:
    """One device.

    Args:
        settings: checked.
        sources: opened.
        clock: of all services.
        make_link: makes the link, as the constructor of ``runtime.mqtt.link.Link``.
        worker: trains; None makes the child process of the settings.
        zygote: makes the processes of models; None starts one when it is needed.
        rng: jitter; None takes any.

    Raises:
        Misconfigured: another agent runs on this state_dir, or a folder is closed to us.
    """

    def __init__(
        self,
        settings: AgentSettings,
        sources: list[Source],
        clock: Clock,
        *,
        make_link: Callable[..., AgentLink] = Link,
        worker: Trainer | None = None,
        zygote: Zygote | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.sources = sources
        self._clock = clock
        self.started = clock.wall()
        self.progress = Progress()
        self._first_task = first_task(settings, sources)
        self._owner = Owner(settings.state_dir / LOCK_FILE, "agent")
        sweep_below(settings.state_dir)
        self.link = make_link(
            settings.mqtt,
            f"agent-{settings.fleet}-{settings.device}",
            filters=[(topic, 1) for topic in device_filters(settings.fleet, settings.device)],
            ping_topic=ping_topic(settings.fleet, settings.device),
        )
        self.blobs = BlobStore(settings.cache_dir / "blobs")
        self.spool = Spool(settings.state_dir / SPOOL, settings.outbox.budget_bytes, wall=clock.wall)
        ledger = Ledger(settings.state_dir / "rounds.json", clock, settings.outbox.resend_s)
        link, fleet, device = self.link, settings.fleet, settings.device
        self.fetcher = Fetcher(
            link.publish, fleet, device, self.blobs, lambda: link.chunk_bytes, window=settings.mqtt.window
        )
        private = PrivateTensors(settings.state_dir / "private")
        zygote = zygote or Zygote(settings.log)
        self.inference = Inference(settings.infer, clock, private, zygote)
        self.publishing: Publishing | None = None
        if settings.infer.mqtt is not None and settings.infer.enabled:
            self.publishing = Publishing(settings, settings.infer.mqtt, clock, make_link=make_link, rng=rng)
            self.inference.said = self.publishing.offer
        self.collector = Collector(
            settings, sources, clock=clock, listener=self._on_windows, progress=self.progress
        )
        self.trust = trust_of(settings, self.fetcher, clock)
        self.verifier = WorkVerifier(self.trust, settings.state_dir, clock)
        self.session = Session(
            settings,
            sources,
            link,
            clock=clock,
            workspace=self.workspace,
            model_digest=self._model_digest,
            reconnect=link.reconnect,
            verifier=self.verifier,
        )
        self.keeper = GraphKeeper(settings, clock, self.session.touch, self.progress)
        graph = settings.graph
        self.queries: Queries | None = None
        if graph is not None and graph.queries is not None:
            self.queries = Queries(
                graph.queries, self.inference, private, self.workspace, clock=clock, poll_s=graph.poll_s
            )
        self.outbox = Outbox(link, self.spool, settings, clock, rng)
        self.learner = Learner(
            settings,
            self.workspace,
            blobs=self.blobs,
            fetcher=self.fetcher,
            spool=self.spool,
            ledger=ledger,
            clock=clock,
            on_spooled=self._on_spooled,
            worker=worker,
            zygote=zygote,
        )
        self.deployment = Deployment(
            settings.state_dir / "models",
            self.fetcher,
            self.inference,
            self.workspace,
            fetch_timeout_s=settings.fetch_timeout_s,
            changed=self.session.touch,
            clock=clock,
            trust=self.trust,
            settings=settings.deploy,
        )
        self.session.trial = self.deployment.report
        self.session.hindered = partial(hindrance, self)
        identity = folder_of(settings.state_dir)
        self.renewal = Renewal(
            identity, clock, partial(link.reconnect, "the certificate was renewed"), rng=rng
        )
        self._renewal_service = service_of(identity, self.renewal)
        self.router = Router(self, clock)
        self._metrics: asyncio.Queue[tuple[int | None, dict[str, float]]] = asyncio.Queue(16)

    def workspace(self) -> Workspace | None:
        """What belongs to the present task."""
        return self.keeper.workspace or self.collector.workspace

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Name -> run, for the one TaskGroup."""
        settings = self.settings
        services: dict[str, Callable[[], Awaitable[None]]] = {
            "link": partial(
                self.link.run,
                on_connect=self._connected,
                will=Will(state_topic(settings), offline(settings)),
            ),
            "router": self.router.run,
            "verifier": self.router.run_verified,
            "collector": self.collector.run,
            "graph": self.keeper.run,
            "outbox": self.outbox.run,
            "session": self.session.run,
            "inference": self.inference.run,
            **({} if self.queries is None else {"queries": self.queries.run}),
            **({} if self.publishing is None else self.publishing.services()),
            "learner": self.learner.run,
            "deployment": self.deployment.run,
            "rollout": self.deployment.keep,
            "metrics": self._send_metrics,
            "state": partial(sqlite.watch, self.spool.require_there, self._clock),
            "status": partial(
                keep,
                settings.cache_dir / STATUS_FILE,
                self.status,
                self._clock,
                last_words=partial(report, self, ended=True),
            ),
        }
        for i, source in enumerate(self.sources):
            services[f"source[{i}]"] = partial(self.collector.run_source, source)
        return services | self._renewal_service

    async def start(self) -> None:
        """Begin with the task that is known, if any."""
        for words in warnings(self.settings, self._first_task, self.sources):
            _log.warning("this may be wrong", why=words)
        await asyncio.to_thread(self.blobs.collect, (), self.settings.blob_budget_bytes)
        if self._first_task is not None:
            await self.use(self._first_task)

    async def use(self, task: Task) -> None:
        """Collect for this task from now on; its material is kept by one service or the other."""
        if task.graph is None:
            await self.keeper.leave()
            await self.collector.use(task)
        else:
            await self.collector.leave()
            await self.keeper.use(task)

    async def stop(self) -> None:
        """Say goodbye while the link is up."""
        if self.publishing is not None:
            await self.publishing.goodbye()
        await self.deployment.stop()
        await self.session.goodbye()

    def close(self) -> None:
        """After all services have ended."""
        self.spool.close()
        if (work := self.workspace()) is not None:
            work.close()
        self._owner.close()

    def _model_digest(self) -> str | None:
        return None if self.inference.model is None else self.inference.model.digest

    def _on_windows(self, judged: Judged) -> None:
        self.inference.offer(judged)
        self.session.touch()

    def _on_spooled(self, offer: Offer, metrics: dict[str, float]) -> None:
        self.outbox.kick()
        if not self._metrics.full():  # numbers for people: when the queue is full the new ones are dropped
            self._metrics.put_nowait((offer.round, metrics))

    async def _send_metrics(self) -> None:
        while True:
            await self.session.metric(*await self._metrics.get())

    async def _connected(self) -> None:
        await self.session.greet()
        self.outbox.kick()
        self.fetcher.on_connected(resumed=self.link.resumed)

    def status(self) -> dict[str, Any]:
        """What it does, and what it waits for."""
        return report(self)
