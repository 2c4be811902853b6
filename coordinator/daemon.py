"""The coordinator daemon: its parts, and how they run together."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from coordinator.admission.access import AccessControl
from coordinator.admission.operator_decisions import OperatorDecisions
from coordinator.admission.operator_orders import OperatorOrders
from coordinator.admission.quarantine import Quarantine
from coordinator.aggregation.current_model import CurrentModel
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.delivery.rollout_service import RolloutService
from coordinator.diagnosis.log_receiver import LogReceiver
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.device_removal import Forgetting
from coordinator.ingest.dispatcher import Dispatcher
from coordinator.ingest.state_receiver import StateReceiver
from coordinator.ingest.update_receiver import UpdateReceiver
from coordinator.messaging.blob_server import BlobServer
from coordinator.messaging.receipts import ReceiptSender
from coordinator.messaging.traffic import Traffic
from coordinator.recovery.integrity_check import IntegrityCheck
from coordinator.recovery.state_folder import Storage
from coordinator.rounds.announcer import Announcer
from coordinator.rounds.driver import RoundDriver
from coordinator.rounds.outlook import RoundView
from coordinator.rounds.worker import RoundWorker
from coordinator.status.prometheus import serve_metrics
from coordinator.trust.signer import PointerSigner
from coordinator.wires import Wires
from coordinator.workers.encoder_models import EncoderModels
from coordinator.workers.jobs import Jobs
from runtime.clock import Clock
from runtime.metrics import HasMetrics
from runtime.mqtt.running_link import RunningLink
from runtime.process.daemon import supervise

Service = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """Made by :func:`coordinator.wiring.build`; its parts are attributes for tests and tools."""

    settings: CoordinatorSettings
    storage: Storage
    jobs: Jobs
    link: RunningLink
    clock: Clock
    admission: OperatorDecisions
    orders: OperatorOrders
    announcer: Announcer
    audit: IntegrityCheck
    deployment: BundleDelivery
    device_logs: LogReceiver
    dispatcher: Dispatcher
    driver: RoundDriver
    fleet: RoundView
    forgetting: Forgetting
    encoder_models: EncoderModels
    model: CurrentModel
    access: AccessControl
    receiver: UpdateReceiver
    rollout: RolloutService | None
    roster: DeviceRegistry
    server: BlobServer
    quarantine: Quarantine
    states: StateReceiver
    receipts: ReceiptSender
    traffic: Traffic
    pointer_signer: PointerSigner
    wires: Wires
    round_worker: RoundWorker
    always: Mapping[str, Service]
    """Services that every coordinator of these settings runs."""
    measured: tuple[HasMetrics, ...]
    """Parts with metrics."""

    async def run(self, beside: Mapping[str, Service] | None = None, *measured: HasMetrics) -> int:
        """Run until a signal, or until all rounds are over if the settings say so; the exit status.

        Args:
            beside: further services, or others in the place of those with the same name.
            measured: further parts with metrics.
        """
        await self.driver.open()
        return await self.serve(beside, *measured)

    async def serve(self, beside: Mapping[str, Service] | None = None, *measured: HasMetrics) -> int:
        """As :meth:`run`, once the driver is open."""
        with serve_metrics(self.settings.metrics, (*self.measured, *measured)):
            return await supervise({**self.services(), **(beside or {})}, on_stop=self.goodbye)

    def services(self) -> dict[str, Service]:
        """All services to run; the enrolment port is taken now."""
        self.orders.open()  # before a round is opened: they may be held
        return {**self.always, **self.admission.services()}

    async def goodbye(self) -> None:
        """What is written once at an orderly end."""
        await asyncio.to_thread(self.traffic.save)

    def close(self) -> None:
        """End the threads, and close the identity store."""
        self.admission.close()
        self.orders.close()
        self.device_logs.close()
        self.driver.threads.close()
        self.server.close()
