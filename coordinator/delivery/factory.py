"""Selects the exporter, and builds the delivery of bundles on it."""

from coordinator.admission.access import AccessControl
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.delivery.exporters import FleetExporter, RouteExporter
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.serving_routes import ServingRoutes
from coordinator.messaging.sender import Sender
from coordinator.objects.blobs import BlobStorage
from coordinator.rollout.recorder import RolloutRecorder
from coordinator.storage.database import Database
from coordinator.trust.signer import PointerSigner
from models.contract import RoutedServer
from protocol.tasks.task import Task
from runtime.clock import Clock


def build_delivery(
    settings: CoordinatorSettings,
    task: Task,
    routed: RoutedServer | None,
    rollouts: RolloutRecorder | None,
    *,
    store: Database,
    blobs: BlobStorage,
    post: Sender,
    roster: DeviceRegistry,
    access: AccessControl,
    signer: PointerSigner,
    clock: Clock,
) -> BundleDelivery:
    """Build the delivery of bundles: one bundle for all devices, or one for each route.

    Args:
        settings: where and how.
        task: what devices may see of the task.
        routed: the method's server half, if the method is routed.
        rollouts: decides what devices run; None: the newest export.
        store: the tables of bundles.
        blobs: the stored bundles.
        post: sends to devices.
        roster: the devices.
        access: a device that is denied has no route.
        signer: signs pointers.
        clock: the time.
    """
    exporter: FleetExporter | RouteExporter = FleetExporter(store, blobs, clock)
    if routed is not None:
        routes = ServingRoutes(task, routed, store, roster, access.denial)
        exporter = RouteExporter(routes, store, blobs, clock, settings.export.max_routes)
    return BundleDelivery(
        exporter,
        rollouts,
        task=task.name,
        store=store,
        blobs=blobs,
        state_dir=settings.state_dir,
        recent=settings.keep_versions,
        post=post,
        roster=roster,
        clock=clock,
        pointer_signer=signer,
    )
