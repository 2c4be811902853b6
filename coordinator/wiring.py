"""Builds every part of a coordinator, in the order in which they need each other.

No part gets anything after its construction. A part that changes something sets a signal, which the waiting
part has as well (:mod:`coordinator.wires`); what is only called while a service runs is an argument of its
``run``.
"""

from functools import partial

from coordinator.admission.access import AccessControl
from coordinator.admission.operator_decisions import OperatorDecisions
from coordinator.admission.operator_orders import OperatorOrders
from coordinator.admission.quarantine import Quarantine
from coordinator.aggregation.current_model import CurrentModel
from coordinator.aggregation.device_weight_store import DeviceWeightStore
from coordinator.aggregation.round_fold import FoldRunner, LocalFolds
from coordinator.aggregation.screen_baseline import ScreenBaseline
from coordinator.aggregation.secure.factory import secure_rounds_of
from coordinator.aggregation.traced_folds import TracedFolds
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.daemon import Coordinator, Service
from coordinator.delivery.factory import build_delivery
from coordinator.delivery.rollout_service import RolloutService
from coordinator.diagnosis.log_receiver import LogReceiver
from coordinator.evaluations.recorder import EvaluationRecorder
from coordinator.exit_when_done import exit_when_done
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.device_removal import Forgetting
from coordinator.fleet.limits import roster_bounds
from coordinator.fleet.secret_mismatch import SecretMismatchMonitor
from coordinator.fleet.serving_routes import TrainingRoutes, routing
from coordinator.ingest.arrivals import leader_services
from coordinator.ingest.chunked_uploads import Uploads
from coordinator.ingest.dispatcher import Dispatcher
from coordinator.ingest.metric_receiver import MetricReceiver
from coordinator.ingest.state_receiver import StateReceiver
from coordinator.ingest.update_receiver import UpdateReceiver
from coordinator.intake.intake_table import IntakeTable
from coordinator.intake.outside_updates import OutsideUpdates
from coordinator.lease.keeper import LeaseKeeper
from coordinator.messaging.blob_server import BlobServer, FetchBudget
from coordinator.messaging.log_rate_limit import LogRateLimiter
from coordinator.messaging.receipts import ReceiptSender
from coordinator.messaging.sender import Sender
from coordinator.messaging.state_requests import StateRequester
from coordinator.messaging.traffic import Traffic
from coordinator.messaging.withdrawals import Withdrawals
from coordinator.privacy.account_store import AccountStore
from coordinator.recovery import bucket_watch
from coordinator.recovery.folder_owner import rules_of
from coordinator.recovery.integrity_check import IntegrityCheck
from coordinator.recovery.state_backup import back_up_databases
from coordinator.recovery.state_folder import Storage
from coordinator.rounds.announcer import Announcer, stay_connected
from coordinator.rounds.driver import RoundDriver
from coordinator.rounds.late_bundles import LateBundles
from coordinator.rounds.offers import OfferAnnouncer
from coordinator.rounds.outlook import RoundView
from coordinator.rounds.worker import RoundWorker
from coordinator.selection.selector import DeviceSelector
from coordinator.status.prometheus import DiskUse
from coordinator.storage.model_registry import ModelRegistry
from coordinator.storage.private_blobs import BlobOwnership
from coordinator.telemetry.recorder import TelemetryRecorder
from coordinator.telemetry.round_tracing import RoundTracing
from coordinator.trust.signer import pointer_signer_of, resign_periodically
from coordinator.trust.work_signer import WorkSigner
from coordinator.wires import Wires
from coordinator.workers.encoder_models import EncoderModels
from coordinator.workers.jobs import Jobs
from models.contract import Server
from protocol.tasks.task import Task
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.mqtt.running_link import RunningLink
from runtime.storage import sqlite
from runtime.tracing.spans import OFF, Tracer


def build(
    settings: CoordinatorSettings,
    task: Task,
    server: Server,
    *,
    storage: Storage,
    jobs: Jobs,
    link: RunningLink,
    clock: Clock,
    wires: Wires,
    folds: FoldRunner | None = None,
    lease: LeaseKeeper | None = None,
    tracer: Tracer = OFF,
) -> Coordinator:
    """Build a coordinator; nothing runs yet.

    Args:
        settings: where and how.
        task: what devices may see of the task.
        server: the method's server half.
        storage: open.
        jobs: work for child processes.
        link: the broker.
        clock: the time.
        wires: the signals between parts.
        folds: run the passes over a round's updates; None: in a thread.
        lease: held; other processes accept the updates. None: this process does everything.
        tracer: takes spans of rounds.

    Raises:
        Misconfigured: there is a root of trust, but the online key is missing.
    """
    store, journal, blobs, ledger = storage.store, storage.journal, storage.blobs, storage.ledger
    routed, rollouts, changes, offers = routing(server), storage.rollouts, wires.changes, wires.offers
    tracing = RoundTracing(tracer, store, settings.fleet, task.name, clock)
    post, voice = Sender(link, settings.fleet), LogRateLimiter(clock.now)
    traffic = Traffic(store, link.counters)

    # Registry and access control.
    admission, orders = OperatorDecisions(settings, clock), OperatorOrders(settings.location, clock)
    bounds = roster_bounds(enrolled=OperatorDecisions.enabled_by(settings), most=settings.devices.most)
    roster = DeviceRegistry(store, clock.wall, clock.now, bounds)
    quarantine = Quarantine(
        store,
        ledger,
        clock.wall,
        settings.quarantine,
        released_at=admission.released_at,
        known=lambda device: device in roster or admission.active(device),  # not invented names
    )
    access = AccessControl(clock, (admission.denial, quarantine.denial))  # revoked before offences
    receipts = ReceiptSender(post, ledger, quarantine, task.name, wires.answers, clock.now)

    # Rounds.
    encoder_models = EncoderModels(
        task, store, blobs, jobs, roster, clock, settings.worker.timeout_s, changes
    )
    rules = rules_of(task, settings)
    fleet = RoundView(task, roster, encoder_models.terms, access.denial, link, orders.hold)
    driver = RoundDriver(
        task=task,
        rules=rules,
        store=store,
        journal=journal,
        fleet=fleet,
        chooser=DeviceSelector(
            task, rules, roster, store, TrainingRoutes(task, server, roster), storage.noise.salt
        ),
        changes=changes,
        offers=offers,
        clock=clock,
        outside=None if lease is None else OutsideUpdates(IntakeTable(store, journal)),
    )

    # Delivery of bundles.
    pointer_signer = pointer_signer_of(settings, blobs, clock)
    delivery = build_delivery(
        settings,
        task,
        routed,
        rollouts,
        store=store,
        blobs=blobs,
        post=post,
        roster=roster,
        access=access,
        signer=pointer_signer,
        clock=clock,
    )
    rollout = None
    if rollouts is not None:
        rollout = RolloutService(
            rollouts, delivery, roster=roster, barred=access.denial, link=link, changes=changes, clock=clock
        )
    registry, weighings, secure = (
        ModelRegistry(store, blobs, task, storage.run_id), DeviceWeightStore(store), secure_rounds_of(
            settings, task, server, storage.root, rounds=lambda: driver.state, now=driver.now, link=link,
            clock=clock, store=store,
        ),
    )  # fmt: skip
    model = CurrentModel(task, registry, lambda: driver.state.manifest, settings.max_update_bytes)
    round_worker = RoundWorker(
        driver=driver, server=server, jobs=jobs, journal=journal, registry=registry, deployment=delivery,
        receipts=receipts, traffic=traffic, clock=clock, model=model, keep_versions=settings.keep_versions,
        keep_updates=settings.keep_updates, budget_bytes=settings.history_bytes,
        references=ScreenBaseline(store), weighings=weighings, noise=storage.noise,
        accounts=AccountStore(store), pointer_signer=pointer_signer,
        back_up=partial(back_up_databases, storage.root), held=encoder_models.held, secure=secure,
        folds=TracedFolds(folds or LocalFolds(), tracing) if tracing.on else folds, tracing=tracing,
    )  # fmt: skip
    signer = WorkSigner(pointer_signer, store, clock)
    offering = OfferAnnouncer(
        post=post, driver=driver, registry=registry, encoder_models=encoder_models, signer=signer,
        changes=offers, clock=clock, every_s=settings.offer_every_s, accounts=round_worker.accounts,
    )  # fmt: skip
    announcer = Announcer(
        post=post, driver=driver, store=store, roster=roster, registry=registry, deployment=delivery,
        rollouts=rollouts, traffic=traffic, signer=signer, changes=changes, offers=offering, clock=clock,
    )  # fmt: skip
    audit = IntegrityCheck(driver, journal, round_worker, link, clock)

    # Receiving messages.
    quota, secrets = settings.uploads, SecretMismatchMonitor(roster)
    receiver = UpdateReceiver(
        task=task,
        server=server,
        driver=driver,
        model=model,
        note=round_worker.note,
        journal=journal,
        roster=roster,
        uploads=Uploads(storage.stores.chunks, quota.per_device_bytes, quota.total_bytes, clock.now),
        receipts=receipts,
        access=access,
        tracing=tracing,
        accounts=round_worker.accounts,
        secure=secure,
    )
    telemetry, evaluations = (
        TelemetryRecorder(store, ledger, task.modality_names, settings.devices, clock),
        EvaluationRecorder(store, task, settings.devices.histories, clock),
    )
    forgetting = Forgetting(
        state_dir=storage.root,
        roster=roster,
        ledger=ledger,
        quarantine=quarantine,
        secrets=secrets,
        telemetry=telemetry,
        evaluations=evaluations,
        clock=clock,
        days=settings.devices.forget_days,
    )
    states = StateReceiver(
        task=task,
        roster=roster,
        driver=driver,
        ledger=ledger,
        receipts=receipts,
        access=access,
        deployment=delivery,
        voice=voice,
        withdrawals=Withdrawals(journal, receipts, task.name, clock),
        announcer=announcer,
        clock=clock,
        silent_s=settings.devices.silent_s,
        secrets=secrets,
        forgetting=forgetting,
    )
    budget, owners = FetchBudget(settings.fetch.device_bytes_a_day, roster), BlobOwnership(task, blobs)
    blob_server = BlobServer(
        blobs, post, receipts.enqueue, settings.mqtt.window, clock, budget, voice, may_fetch=owners.may_fetch,
        links=storage.stores.links,
    )  # fmt: skip
    metrics, device_logs = (
        MetricReceiver(
            driver,
            journal,
            ledger,
            roster=roster,
            telemetry=telemetry,
            evaluations=evaluations,
            now=clock.now,
        ),
        LogReceiver(settings.location, roster, clock),
    )
    dispatcher = Dispatcher(
        fleet=settings.fleet,
        messages=link.messages,
        handlers={
            Kind.UPDATE: receiver.on_update,
            Kind.UP_BLOB: receiver.on_update,
            Kind.STATE: states.on_state,
            Kind.METRIC: metrics.on_metric,
            Kind.LOG: device_logs.on_log,
            Kind.FETCH: blob_server.on_fetch,
        },
        roster=roster,
        access=access,
        receipts=receipts,
        ledger=ledger,
        voice=voice,
        now=clock.now,
    )

    again_s = settings.trust.again_hours * 3600
    services: dict[str, Service] = {
        "link": partial(stay_connected, link, announcer),
        **dispatcher.services(),
        "states": states.run,
        "forgetting": forgetting.run,
        **receipts.services(),
        "ledger": ledger.run,
        "telemetry": telemetry.run,
        "evaluations": evaluations.run,
        "driver": driver.run,
        "work": round_worker.run,
        "rounds": announcer.run_rounds,
        "offers": offering.run,
        "blobs": blob_server.run,
        "audit": audit.run,
        "graphs": encoder_models.run,
        "rollcall": StateRequester(link, roster, receipts, clock).run,
        "trust": partial(resign_periodically, pointer_signer, announcer.renew_signatures, clock, again_s),
        "orders": partial(orders.run, driver.end_rounds, receipts.enqueue),
        "state": partial(sqlite.watch, store.require_there, clock),
        **({} if secure is None else {"secure": partial(secure.run, round_worker.lose)}),
    }
    if storage.stores.bucket is not None:
        services["bucket"] = partial(bucket_watch.watch, storage.stores.bucket, store, clock)
    if lease is not None:
        services |= leader_services(lease, driver, roster, quarantine, clock)
    if rollout is not None:
        services["rollout"] = rollout.run
    if settings.export.enabled and routed is not None:
        export = round_worker.export_newest if rollouts is None else None
        services["late-bundles"] = LateBundles(driver, delivery, export, store, clock).run
    if settings.exit_when_done:
        services["exit"] = partial(
            exit_when_done, driver, announcer, delivery, blob_server, rollouts, settings.exit_linger_s, clock
        )
    return Coordinator(
        settings=settings,
        storage=storage,
        jobs=jobs,
        link=link,
        clock=clock,
        admission=admission,
        orders=orders,
        announcer=announcer,
        audit=audit,
        deployment=delivery,
        dispatcher=dispatcher,
        device_logs=device_logs,
        driver=driver,
        fleet=fleet,
        forgetting=forgetting,
        model=model,
        encoder_models=encoder_models,
        access=access,
        receiver=receiver,
        rollout=rollout,
        roster=roster,
        server=blob_server,
        quarantine=quarantine,
        states=states,
        receipts=receipts,
        traffic=traffic,
        pointer_signer=pointer_signer,
        wires=wires,
        round_worker=round_worker,
        always=services,
        measured=(
            driver, fleet, roster, quarantine, access, admission, traffic, receipts, dispatcher, telemetry,
            evaluations, blob_server, states, receiver, weighings, announcer, DiskUse(storage.root), tracer,
            *filter(None, [rollouts]),
        ),
    )  # fmt: skip
