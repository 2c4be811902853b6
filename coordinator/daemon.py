"""A coordinator that was built: its parts, and how they run together."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from coordinator.admission.access import Guard
from coordinator.admission.operator_decisions import Admission
from coordinator.admission.quarantine import Standing
from coordinator.config.coordinator import CoordinatorSettings
from coordinator.delivery.fleet_bundle import Deploying
from coordinator.delivery.rollout_service import RolloutService
from coordinator.fleet.device_registry import Roster
from coordinator.fleet.device_removal import Forgetting
from coordinator.ingest.dispatcher import Dispatcher
from coordinator.ingest.state_receiver import StateReceiver
from coordinator.ingest.update_receiver import Receiver
from coordinator.messaging.blob_server import BlobServer
from coordinator.messaging.receipts import Teller
from coordinator.messaging.sender import Running
from coordinator.messaging.state_requests import RollCall
from coordinator.messaging.traffic import Traffic
from coordinator.recovery.integrity_check import Audit
from coordinator.recovery.state_folder import Storage
from coordinator.rounds.announcer import Announcer
from coordinator.rounds.driver import Driver
from coordinator.rounds.outlook import FleetView
from coordinator.rounds.worker import Workshop
from coordinator.status.prometheus import serve_metrics
from coordinator.trust.signer import Vouching
from coordinator.wires import Wires
from coordinator.workers.encoder_models import Graphs
from coordinator.workers.jobs import Jobs
from runtime.clock import Clock
from runtime.metrics import HasMetrics
from runtime.process.daemon import supervise

Service = Callable[[], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    """As :func:`coordinator.wiring.build` makes it; its parts are here for who looks inside."""

    settings: CoordinatorSettings
    storage: Storage
    jobs: Jobs
    link: Running
    clock: Clock
    admission: Admission
    announcer: Announcer
    audit: Audit
    deployment: Deploying
    dispatcher: Dispatcher
    driver: Driver
    fleet: FleetView
    forgetting: Forgetting
    graphs: Graphs
    guard: Guard
    receiver: Receiver
    rollcall: RollCall
    rollout: RolloutService | None
    roster: Roster
    server: BlobServer
    standing: Standing
    states: StateReceiver
    teller: Teller
    traffic: Traffic
    vouching: Vouching
    wires: Wires
    workshop: Workshop
    always: Mapping[str, Service]
    """Services that every coordinator of these settings runs."""
    measured: tuple[HasMetrics, ...]
    """Parts with metrics."""

    async def run(self) -> int:
        """Run until a signal, or until all is done where the settings say so; the exit status."""
        await self.driver.open()
        return await self.serve()

    async def serve(self) -> int:
        """As :meth:`run`, once the driver is open."""
        with serve_metrics(self.settings.metrics, self.measured):
            return await supervise(self.services(), on_stop=self._goodbye)

    def services(self) -> dict[str, Service]:
        """All that is to be run; the port where devices enrol is taken now."""
        return {**self.always, **self.admission.services()}

    async def _goodbye(self) -> None:
        await asyncio.to_thread(self.traffic.save)

    def close(self) -> None:
        """End the threads, and let the book of identities go."""
        self.admission.close()
        self.driver.threads.close()
