"""Which delivery a coordinator has: of one bundle or of one for each route, with rollouts or without."""

from functools import partial

from coordinator.admission.access import DenialCheck
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.delivery.bundle_catalog import BundleCatalog
from coordinator.delivery.fleet_bundle import BundleDelivery, FleetBundle
from coordinator.delivery.rollout_service import RolloutService
from coordinator.delivery.route_bundles import RouteBundles
from coordinator.delivery.staged import StagedBundles, StagedDeployment, StagedRoutes
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.serving_routes import ServingRoutes
from coordinator.messaging.sender import Sender
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.storage.database import Database
from coordinator.trust.signer import PointerSigner
from models.contract import RoutedServer
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.storage.blob_store import BlobStore


def build_delivery(
    settings: CoordinatorSettings,
    task: Task,
    routed: RoutedServer | None,
    *,
    store: Database,
    blobs: BlobStore,
    post: Sender,
    roster: DeviceRegistry,
    barred: DenialCheck,
    vouching: PointerSigner,
    rollouts: RolloutRecorder | None,
    changes: Signal,
    clock: Clock,
) -> tuple[BundleDelivery, RolloutService | None]:
    """What brings bundles to devices, and the loop of the rollouts; None: each export goes to all at once.

    Args:
        settings: of the coordinator.
        task: what is learned.
        routed: the method's half, where the method is routed.
        store: versions and bundles.
        blobs: where the bundles are.
        post: to the devices.
        roster: the devices.
        barred: who gets nothing.
        vouching: who signs.
        rollouts: decides, if anything is to be decided.
        changes: set at each decision.
        clock: the time.
    """
    bundles = StagedBundles(store, blobs, settings.state_dir, settings.keep_versions)
    delivery: StagedDeployment | StagedRoutes
    if routed is None:
        fleet = FleetBundle(store, blobs, post, task.name, clock, vouching)
        if rollouts is None:
            return fleet, None
        delivery = StagedDeployment(
            fleet,
            rollouts,
            bundles,
            post=post,
            roster=roster,
            task=task.name,
            clock=clock,
            vouching=vouching,
        )
    else:
        needs, most = ServingRoutes(task, routed, store, roster, barred), settings.export.max_routes
        shelf = (
            partial(BundleCatalog.exported, store)
            if rollouts is None
            else partial(BundleCatalog.decided, rollouts.course)
        )
        routes = RouteBundles(needs, store, blobs, post, roster, clock, most, vouching, shelf)
        if rollouts is None:
            return routes, None
        delivery = StagedRoutes(routes, rollouts, bundles, store)
    return delivery, RolloutService(
        rollouts,
        delivery,
        bundles,
        roster=roster,
        barred=barred,
        link=post.link,
        changes=changes,
        clock=clock,
    )
