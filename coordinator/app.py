"""Puts the coordinator together and runs it: the one TaskGroup lives in ``runtime.supervise``."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from coordinator.announcer import Announcer, absent
from coordinator.blobserver import BlobServer
from coordinator.config import CoordinatorSettings, load_task
from coordinator.deployment import Deployment
from coordinator.ingest import LANES, Ingest
from coordinator.jobs import Jobs, WorkerJobs
from coordinator.journal import Journal
from coordinator.ledger import Ledger
from coordinator.links import Post, Running
from coordinator.metrics import Exporter
from coordinator.receive import Receiver
from coordinator.registry import Registry
from coordinator.roster import Roster
from coordinator.rounds.driver import Driver
from coordinator.rounds.reading import replay
from coordinator.rounds.states import Rules
from coordinator.rounds.work import Workshop
from coordinator.store import Store
from coordinator.telling import SENDERS, Teller
from coordinator.traffic import Traffic
from coordinator.uploads import Uploads
from models.contract import Server
from protocol.errors import LichenError, Misconfigured
from protocol.messages import encode
from protocol.task import Task
from protocol.topics import Kind, broadcast_topic, coordinator_filters
from runtime import logs
from runtime.blobs import BlobStore
from runtime.clock import Clock, SystemClock
from runtime.files import disk_errors
from runtime.mqtt import Link, Will
from runtime.supervise import Finished, supervise

log = structlog.get_logger(__name__)

DATABASE: Final = "coordinator.sqlite3"
_FINAL_WAIT_S: Final = 15.0
_LINGER_TIMES: Final = 20


class Coordinator:
    """All parts of one coordinator.

    Args:
        settings: where and how.
        task: what the fleet learns.
        server: the method's half.
        jobs: work for child processes; None makes the real thing.
        clock: the time.
        link: the broker; None makes the real thing.

    Raises:
        Misconfigured: the state folder cannot be written or belongs to another task.
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
    ) -> None:
        root = settings.state_dir
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.clock = clock or SystemClock()
        self.store = Store(root / DATABASE)
        try:
            own_task(self.store, task, settings)
            state, _ = replay(self.store.journal())
        except LichenError:
            self.store.close()
            raise
        last_words = encode(absent(task, rules_of(task, settings), state))
        self.link: Running = link or Link(
            settings.mqtt,
            f"coordinator-{settings.fleet}",
            filters=[(f, 1) for f in coordinator_filters(settings.fleet)],
            will=Will(broadcast_topic(settings.fleet, Kind.ROUND), last_words),
            on_connect=self._on_connect,
        )
        self.jobs = jobs or WorkerJobs(task, root / "jobs", settings.evaluation.data, settings.worker)
        self._assemble(task, server)

    def _assemble(self, task: Task, server: Server) -> None:
        settings, store, clock = self.settings, self.store, self.clock
        root, post = settings.state_dir, Post(self.link, settings.fleet)
        blobs, journal = BlobStore(root / "blobs"), Journal(store, root / "updates")
        self.roster = Roster(store, clock.wall)
        self.traffic = Traffic(store, self.link.counters)
        self.ledger = Ledger(store, clock)
        self.teller = Teller(post, self.ledger, task.name)
        self.deployment = Deployment(store, blobs, post, task.name, clock)
        registry = Registry(store, blobs, task)
        self.announcer = Announcer(
            post=post,
            store=store,
            roster=self.roster,
            registry=registry,
            deployment=self.deployment,
            traffic=self.traffic,
            clock=clock,
            offer_every_s=settings.offer_every_s,
        )
        self.driver = Driver(
            task=task,
            rules=rules_of(task, settings),
            store=store,
            journal=journal,
            roster=self.roster,
            clock=clock,
            listener=self.announcer,
        )
        self.driver.may_select = lambda: self.link.connected
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
        )
        self.receiver = Receiver(
            task=task,
            server=server,
            driver=self.driver,
            workshop=self.workshop,
            journal=journal,
            roster=self.roster,
            uploads=Uploads(
                root / "uploads", settings.uploads.per_device_bytes, settings.uploads.total_bytes
            ),
            teller=self.teller,
        )
        self.server = BlobServer(blobs, post, self.teller.say, settings.mqtt.window, clock)
        self.ingest = Ingest(
            fleet=settings.fleet,
            messages=self.link.messages,
            roster=self.roster,
            driver=self.driver,
            receiver=self.receiver,
            server=self.server,
            teller=self.teller,
            ledger=self.ledger,
        )

    async def _on_connect(self) -> None:
        await self.announcer.greet()

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
        self.store.close()

    def _services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        lanes = {f"lane-{n}": partial(self.ingest.run_lane, n) for n in range(LANES)}
        return {
            "link": self._connected,
            "ingest": self.ingest.run,
            **lanes,
            **{f"teller-{n}": self.teller.run for n in range(SENDERS)},
            "ledger": self.ledger.run,
            "driver": self.driver.run,
            "work": self.workshop.run,
            "rounds": self.announcer.run_rounds,
            "offers": self.announcer.run_offers,
            "blobs": self.server.run,
            "exit": self._leave_when_done,
        }

    async def _connected(self) -> None:
        """The link; however this process ends in order, it takes leave before it disconnects."""
        link = asyncio.ensure_future(self.link.run())
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

    async def _leave_when_done(self) -> None:
        """After the last round: say so, let the fleet pull the last bundle, and end with status 0."""
        await self.driver.finished.wait()
        if not self.settings.exit_when_done:
            return
        deadline = self.clock.now() + _FINAL_WAIT_S
        while not (await self.announcer.say_round() and await self.deployment.announce()):
            if self.clock.now() > deadline:
                log.warning("the end could not be announced", waited_s=_FINAL_WAIT_S)
                break
            await self.clock.sleep(0.5)
        await self._linger()
        raise Finished("all rounds are over")

    async def _linger(self) -> None:
        linger, start = self.settings.exit_linger_s, self.clock.now()
        while self.clock.now() - max(start, self.server.asked_at) < linger:
            if self.clock.now() - start > _LINGER_TIMES * linger:
                return
            await self.clock.sleep(min(0.2, linger))


def rules_of(task: Task, settings: CoordinatorSettings) -> Rules:
    """What the round machine decides by."""
    return Rules.of(
        task,
        spread_s=settings.spread_s,
        evaluate=settings.evaluation.data is not None,
        evaluate_every=settings.evaluation.every_rounds,
        export=settings.export.enabled,
        export_every=settings.export.every_rounds,
    )


def own_task(store: Store, task: Task, settings: CoordinatorSettings) -> None:
    """Make the folder this fleet's and this task's, where it is nobody else's.

    Raises:
        Misconfigured: see :func:`check_owner`.
    """
    check_owner(store, task, settings)
    store.put_meta({"task": task.model_dump_json(), "fleet": settings.fleet})


def check_owner(store: Store, task: Task, settings: CoordinatorSettings) -> None:
    """Compare task and fleet with those the folder was begun with; rounds, uplink and seed may change.

    Raises:
        Misconfigured: another task or fleet; the message names the key that differs.
    """
    fleet = store.get_meta("fleet") or settings.fleet  # older folders do not say
    if fleet != settings.fleet:
        raise Misconfigured(
            f"fleet: the configuration says {settings.fleet!r}, but {store.path} was begun by {fleet!r}; "
            "use another state_dir (or change it back)"
        )
    known = store.get_meta("task")
    if known is not None:
        old = Task.model_validate_json(known)
        for key in ("name", "method", "labels", "modalities", "window", "network", "config"):
            if getattr(old, key) != getattr(task, key):
                raise Misconfigured(
                    f"{settings.task}: {key} differs from what {settings.state_dir} was begun with; "
                    "use another state_dir (or change it back)"
                )


async def serve(settings: CoordinatorSettings) -> int:
    """Run the coordinator that the settings describe.

    Raises:
        Misconfigured: the task, the method's options or the state folder.
    """
    logs.configure(settings.log)
    task, spec = load_task(settings)
    return await Coordinator(settings, task, spec.server()).run()
