"""``lichen coordinator ingest``: accepts updates and serves blobs; any number of processes, without keys.

The parts are those of ``serve``. What they ask the round machine, a copy of it answers
(:mod:`coordinator.cluster.round_replica`); what they write for it, the leader counts
(:mod:`coordinator.intake.intake_table`). A process has no state of its own: it may be killed at any time.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from coordinator.admission.access import AccessControl
from coordinator.admission.operator_decisions import OperatorDecisions
from coordinator.admission.quarantine import Quarantine
from coordinator.aggregation.current_model import CurrentModel
from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.cluster.known_devices import KnownDevices
from coordinator.cluster.round_replica import RoundReplica
from coordinator.cluster.shared_rounds import SharedRounds
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Service
from coordinator.diagnosis.log_receiver import LogReceiver
from coordinator.evaluations.recorder import EvaluationRecorder
from coordinator.ingest.chunked_uploads import Uploads
from coordinator.ingest.dispatcher import Dispatcher
from coordinator.ingest.metric_receiver import MetricReceiver
from coordinator.ingest.update_receiver import UpdateReceiver
from coordinator.intake.intake_table import IntakeTable
from coordinator.messaging.blob_server import BlobServer, FetchBudget
from coordinator.messaging.log_rate_limit import LogRateLimiter
from coordinator.messaging.receipts import ReceiptSender
from coordinator.messaging.sender import Sender
from coordinator.privacy.account_store import AccountStore
from coordinator.recovery.state_folder import Storage
from coordinator.status.prometheus import DiskUse
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.private_blobs import BlobOwnership
from coordinator.telemetry.recorder import TelemetryRecorder
from coordinator.telemetry.round_tracing import RoundTracing
from coordinator.wires import Wires
from models.contract import Server
from protocol.tasks.task import Task
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.concurrency.threads import Threads
from runtime.metrics import HasMetrics
from runtime.mqtt.running_link import RunningLink
from runtime.storage import sqlite
from runtime.tracing.spans import OFF, Tracer


def client_id(fleet: str) -> str:
    """The MQTT client id of one process: each has its own, and a new one at each start."""
    return f"ingest-{fleet}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class IngestWorker:
    """Made by :func:`build`; call :meth:`open`, then run :attr:`services`."""

    replica: RoundReplica
    devices: KnownDevices
    admission: OperatorDecisions
    threads: Threads
    device_logs: LogReceiver
    dispatcher: Dispatcher
    receiver: UpdateReceiver
    receipts: ReceiptSender
    services: Mapping[str, Service]
    measured: tuple[HasMetrics, ...]

    async def open(self) -> None:
        """Read the rounds, the devices and the operator's decisions.

        Raises:
            Transient: the database cannot be read now.
        """
        self.admission.open()
        await self.replica.refresh()
        await self.devices.open()

    def close(self) -> None:
        """End the threads, and close the identity store."""
        self.admission.close()
        self.device_logs.close()
        self.threads.close()


def build(
    settings: CoordinatorSettings,
    task: Task,
    server: Server,
    *,
    storage: Storage,
    link: RunningLink,
    clock: Clock,
    wires: Wires,
    tracer: Tracer = OFF,
) -> IngestWorker:
    """Build a process that accepts updates; nothing runs yet.

    Args:
        settings: where and how.
        task: what devices may see of the task.
        server: the method's server half.
        storage: open, shared with the leader.
        link: the broker, with the filters of :func:`protocol.topics.ingest_filters`.
        clock: the time.
        wires: the signals between parts.
        tracer: takes spans of updates.
    """
    store, journal, blobs, ledger = storage.store, storage.journal, storage.blobs, storage.ledger
    post, voice, threads = Sender(link, settings.fleet), LogRateLimiter(clock.now), Threads("journal", 2)
    devices = KnownDevices(store, clock, threads)
    replica = RoundReplica(store, clock, threads, wires.changes)
    rounds = SharedRounds(
        replica=replica,
        table=IntakeTable(store, journal),
        journal=journal,
        devices=devices,
        threads=threads,
        clock=clock,
    )

    admission = OperatorDecisions(settings, clock, reads_only=True)
    quarantine = Quarantine(
        store,
        ledger,
        clock.wall,
        settings.quarantine,
        released_at=admission.released_at,
        known=lambda device: device in devices or admission.active(device),
    )
    access = AccessControl(clock, (admission.denial, quarantine.denial))
    receipts = ReceiptSender(post, ledger, quarantine, task.name, wires.answers, clock.now)

    registry, quota = ModelRegistry(store, blobs, task), settings.uploads
    receiver = UpdateReceiver(
        task=task,
        server=server,
        driver=rounds,
        model=CurrentModel(task, registry, lambda: rounds.state.manifest, settings.max_update_bytes),
        note=_unused,
        journal=journal,
        roster=devices,
        uploads=Uploads(
            storage.stores.chunks, quota.per_device_bytes, quota.total_bytes, clock.now, shared=True
        ),
        receipts=receipts,
        access=access,
        tracing=RoundTracing(tracer, store, settings.fleet, task.name, clock),
        accounts=AccountStore(store),
    )
    budget, owners = FetchBudget(settings.fetch.device_bytes_a_day, devices), BlobOwnership(task, blobs)
    blob_server = BlobServer(
        blobs,
        post,
        receipts.enqueue,
        settings.mqtt.window,
        clock,
        budget,
        voice,
        may_fetch=owners.may_fetch,
        links=storage.stores.links,
    )
    telemetry = TelemetryRecorder(store, ledger, task.modality_names, settings.devices, clock)
    evaluations = EvaluationRecorder(store, task, settings.devices.histories, clock)
    metrics = MetricReceiver(
        rounds, journal, ledger, roster=devices, telemetry=telemetry, evaluations=evaluations, now=clock.now
    )
    device_logs = LogReceiver(settings.location, devices, clock)
    dispatcher = Dispatcher(
        fleet=settings.fleet,
        messages=link.messages,
        handlers={
            Kind.UPDATE: receiver.on_update,
            Kind.UP_BLOB: receiver.on_update,
            Kind.METRIC: metrics.on_metric,
            Kind.LOG: device_logs.on_log,
            Kind.FETCH: blob_server.on_fetch,
        },
        roster=devices,
        access=access,
        receipts=receipts,
        ledger=ledger,
        voice=voice,
        now=clock.now,
    )
    services: dict[str, Service] = {
        "link": link.run,
        **dispatcher.services(),
        **receipts.services(),
        "ledger": ledger.run,
        "telemetry": telemetry.run,
        "evaluations": evaluations.run,
        "rounds": replica.run,
        "devices": devices.run,
        "blobs": blob_server.run,
        "decisions": admission.refresh_for_ever,
        "standing": partial(quarantine.follow, clock),
        "state": partial(sqlite.watch, store.require_there, clock),
    }
    return IngestWorker(
        replica=replica,
        devices=devices,
        admission=admission,
        threads=threads,
        device_logs=device_logs,
        dispatcher=dispatcher,
        receiver=receiver,
        receipts=receipts,
        services=services,
        measured=(
            quarantine,
            access,
            receipts,
            dispatcher,
            blob_server,
            receiver,
            telemetry,
            DiskUse(storage.root),
            tracer,
        ),
    )


def _unused(_digest: str, _measures: Magnitudes) -> None:
    """The leader measures the norms of an update when it folds it: it runs in another process."""
