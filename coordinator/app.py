"""Puts the coordinator together and runs it: the one TaskGroup lives in ``runtime.process.daemon``."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from coordinator.admission.access import Guard
from coordinator.admission.operator_decisions import Admission
from coordinator.admission.quarantine import Standing
from coordinator.aggregation.device_weights import Weighings
from coordinator.aggregation.screen_baseline import References
from coordinator.announcing import announcer
from coordinator.config.coordinator import CoordinatorSettings, load_task
from coordinator.delivery import late_bundles
from coordinator.delivery.factory import Parts, deployed
from coordinator.fleet.secret_mismatch import SecretWatch
from coordinator.fleet.serving_routes import LearningRoutes, routing
from coordinator.front import forgetting_of, ingest, intake_services, roster_of, state_intake
from coordinator.ingest.chunked_uploads import Uploads
from coordinator.ingest.update_receiver import Receiver
from coordinator.leaving import leave_when_done
from coordinator.messaging.blob_server import BlobServer, FetchBudget
from coordinator.messaging.log_rate_limit import Voice
from coordinator.messaging.receipts import SENDERS, Teller
from coordinator.messaging.sender import Post, Running
from coordinator.messaging.state_requests import RollCall
from coordinator.messaging.traffic import Traffic
from coordinator.recovery.folder_owner import DATABASE, check_owner, own_task, rules_of
from coordinator.recovery.integrity_check import Audit
from coordinator.recovery.rebuild import open_store
from coordinator.recovery.state_backup import back_up_databases
from coordinator.rounds.driver import Driver
from coordinator.rounds.offline_announcement import absent
from coordinator.rounds.worker import Workshop
from coordinator.status.prometheus import Exporter
from coordinator.storage.model_registry import Registry
from coordinator.storage.private_blobs import Owners
from coordinator.storage.run_id import RunId
from coordinator.storage.update_journal import Journal
from coordinator.storage.write_behind import Ledger
from coordinator.trust.signer import again_and_again, vouching_of
from coordinator.workers import labelled_data
from coordinator.workers.encoder_models import Graphs
from coordinator.workers.jobs import Jobs, WorkerJobs
from models.contract import Server
from protocol.errors import LichenError
from protocol.messages import encode
from protocol.tasks.task import Task
from protocol.topics import Kind, broadcast_topic, coordinator_filters, ping_topic
from runtime import logs
from runtime.clock import Clock, SystemClock
from runtime.mqtt.link import Link, Will
from runtime.process.daemon import supervise
from runtime.storage import sqlite
from runtime.storage.blob_store import BlobStore
from runtime.storage.files import disk_errors

log = structlog.get_logger(__name__)
__all__ = ["DATABASE", "Coordinator", "check_owner", "own_task", "rules_of", "serve"]


class Coordinator:
    """All parts of one coordinator.

    Args:
        settings: where and how.
        task: what the fleet learns.
        server: the method's half.
        jobs: work for child processes; None makes the real thing.
        clock: the time.
        link: the broker; None makes one.
        make_link: makes the link, as the constructor of ``runtime.mqtt.link.Link``.
        rng: makes the id of a training run; None takes the system's random numbers.

    Raises:
        Misconfigured: the state folder cannot be written or belongs to another task, or the labelled windows
            cannot be used.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        task: Task,
        server: Server,
        *,
        jobs: Jobs | None = None,
        clock: Clock | None = None,
        link: Running | None = None,
        make_link: Callable[..., Running] = Link,
        rng: random.Random | None = None,
    ) -> None:
        root = settings.state_dir
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.clock = clock or SystemClock()
        own = labelled_data.read(settings, task)
        task = labelled_data.announced(task)  # from here on: what devices may know
        # What cannot be read is said, and mended where it can be, before anything runs.
        rules, routed = rules_of(task, settings), routing(server) is not None
        self.store = open_store(root / DATABASE, task, rules, self.clock.wall(), keeps_messages=routed)
        try:
            own_task(self.store, task, settings)
            with disk_errors(root):
                kept = labelled_data.keep(own, root)
        except LichenError:
            self.store.close()
            raise
        self.link: Running = link or make_link(
            settings.mqtt,
            f"coordinator-{settings.fleet}",
            filters=[(f, 1) for f in coordinator_filters(settings.fleet)],
            ping_topic=ping_topic(settings.fleet),
        )
        test, worker, int8 = settings.evaluation, settings.worker, settings.export.int8
        self.jobs = jobs or WorkerJobs(task, root / "jobs", test.data, worker, kept, int8=int8, by=test.by)
        self._assemble(task, server, RunId(root, rng))

    def _assemble(self, task: Task, server: Server, run: RunId) -> None:
        settings, store, clock = self.settings, self.store, self.clock
        root, post = settings.state_dir, Post(self.link, settings.fleet)
        blobs, routed = BlobStore(root / "blobs"), routing(server)
        journal = Journal(store, root / "updates", keeps_messages=routed is not None)
        self.roster = roster_of(self)
        self.traffic = Traffic(store, self.link.counters)
        self.ledger, self.voice = Ledger(store, clock), Voice(clock.now)
        self.teller = Teller(post, self.ledger, task.name, clock.now)
        self.standing = Standing(store, self.ledger, clock.wall, settings.quarantine)
        self.guard = Guard(clock, self.standing.barred)
        self.admission = Admission(settings, clock)
        self.guard.add(self.admission.barred)
        self.standing.released_at = self.admission.released_at
        # Whoever the operator let in counts before its first state too; made-up names are in neither list.
        self.standing.known = lambda device: device in self.roster or self.admission.active(device)
        self.teller.on_refusal = self.standing.refused
        vouching = self.vouching = vouching_of(settings, blobs, clock)
        parts = Parts(settings, store, blobs, post, self.roster, task, clock, vouching, self.guard.barred)
        self.deployed = deployed(parts, routed)
        self.deployment = self.deployed.deployment
        registry = Registry(store, blobs, task, run)
        self.graphs = Graphs(task, store, blobs, self.jobs, self.roster, clock, settings.worker.timeout_s)
        self.announcer = announcer(self, post, registry)
        self.driver = Driver(
            task=task,
            rules=rules_of(task, settings),
            store=store,
            journal=journal,
            roster=self.roster,
            clock=clock,
            listener=self.announcer,
        )
        self.graphs.changed = self.announcer.changed
        self.deployed.told_by(self.announcer)
        self.driver.terms = self.graphs.terms
        self.driver.barred = self.guard.barred
        self.driver.may_select = lambda: self.link.connected
        self.driver.chooser.route = LearningRoutes(task, server, self.roster)
        self.driver.broker_trouble = lambda: "" if self.link.connected else self.link.why
        self.announcer.watch(self.driver)
        self.workshop = Workshop(
            driver=self.driver,
            server=server,
            jobs=self.jobs,
            journal=journal,
            registry=registry,
            deployment=self.deployment,
            teller=self.teller,
            traffic=self.traffic,
            clock=clock,
            max_update_bytes=settings.max_update_bytes,
            keep_versions=settings.keep_versions,
            keep_updates=settings.keep_updates,
            budget_bytes=settings.history_bytes,
            references=References(store),
            weighings=Weighings(store),
            vouching=vouching,
        )
        self.workshop.back_up, self.workshop.held = partial(back_up_databases, root), self.graphs.held
        self.audit = Audit(self.driver, journal, self.workshop, self.link, clock)
        quota = settings.uploads
        self.receiver = Receiver(
            task=task,
            server=server,
            driver=self.driver,
            workshop=self.workshop,
            journal=journal,
            roster=self.roster,
            uploads=Uploads(root / "uploads", quota.per_device_bytes, quota.total_bytes, clock.now),
            teller=self.teller,
            guard=self.guard,
        )
        self.rollcall = RollCall(self.link, self.roster, self.teller, clock)
        budget = FetchBudget(settings.fetch.device_bytes_a_day, self.roster)
        window, say = settings.mqtt.window, self.teller.say
        self.server = BlobServer(blobs, post, say, window, clock, budget, self.voice)
        self.server.may_have = Owners(task, blobs).may_have
        secrets = SecretWatch(self.roster)
        self.forgetting = forgetting_of(self, secrets)
        self.states = state_intake(self, task, journal, secrets, self.forgetting)
        self.ingest = ingest(self, journal)

    def _last_words(self) -> Will:
        """What the broker says when we vanish; where the round stands is that of the last connect."""
        said = absent(self.driver.task, self.driver.rules, self.driver.state)
        return Will(broadcast_topic(self.settings.fleet, Kind.ROUND), encode(said))

    async def run(self) -> int:
        """Run until a signal, or until all is done where the settings say so; the exit status."""
        metrics = Exporter(self)
        try:
            await self.driver.open()
            metrics.start()
            return await supervise(self._services(), on_stop=self._goodbye)
        finally:
            metrics.stop()
            await self.jobs.close()
            self.close()

    def close(self) -> None:
        """Write what waits, and let the database go."""
        try:
            self.ledger.save()
        except LichenError as error:
            log.warning("not_written", why=str(error))
        self.admission.close()
        self.deployed.close()
        self.driver.threads.close()
        self.store.close()

    def _services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        again_s = self.settings.trust.again_hours * 3600
        return {
            "link": self._connected,
            **intake_services(self),
            **{f"teller-{n}": self.teller.run for n in range(SENDERS)},
            **self.admission.services(),
            "ledger": self.ledger.run,
            "driver": self.driver.run,
            "work": self.workshop.run,
            "rounds": self.announcer.run_rounds,
            "offers": self.announcer.run_offers,
            "blobs": self.server.run,
            "audit": self.audit.run,
            "graphs": self.graphs.run,
            "rollcall": self.rollcall.run,
            **self.deployed.services(),
            **late_bundles.services(self),
            "trust": partial(again_and_again, self.vouching, self._announce, self.clock, again_s),
            "state": partial(sqlite.watch, self.store.require_there, self.clock),
            "exit": partial(leave_when_done, self),
        }

    async def _announce(self) -> bool:
        await self.announcer.renew_signatures()
        return await self.deployment.announce(again=True)

    async def _connected(self) -> None:
        """The link; however this process ends in order, it takes leave before it disconnects."""
        link = asyncio.ensure_future(self.link.run(on_connect=self.announcer.greet, will=self._last_words))
        try:
            await asyncio.shield(link)
        except asyncio.CancelledError:
            if not link.done():
                await self.announcer.say_farewell()
            raise
        finally:
            link.cancel()
            await asyncio.wait([link])

    async def _goodbye(self) -> None:
        await asyncio.to_thread(self.traffic.save)


async def serve(settings: CoordinatorSettings) -> int:
    """Run the coordinator that the settings describe.

    Raises:
        Misconfigured: the task, the method's options or the state folder.
    """
    logs.configure(settings.log)
    task, spec = load_task(settings)
    return await Coordinator(settings, task, spec.server()).run()
