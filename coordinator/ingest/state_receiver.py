"""State messages of devices: bounded in bytes and rate for each device; the last state counts.

A state changes which devices can be selected, so it costs work, and any member may send as many as it likes.
Each device has a burst and then one in two seconds; of faster states the last one is applied when its turn
comes, so a device that alternates between "offline" and "online" ends in its last state. States of barred
devices are dropped; when such a device is admitted again, it is asked for its state.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.admission.access import AccessControl
from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.fleet.device_removal import Forgetting
from coordinator.fleet.secret_mismatch import SecretMismatchMonitor
from coordinator.messaging.log_rate_limit import LogRateLimiter, more
from coordinator.messaging.receipts import ReceiptSender
from coordinator.messaging.withdrawals import Withdrawals
from coordinator.rounds.announcer import Announcer
from coordinator.rounds.driver import RoundDriver
from coordinator.storage import schema
from coordinator.storage.write_behind import WriteBehindBuffer
from protocol.errors import LichenError, Reason, Refused, Transient
from protocol.messages import MAX_MESSAGE_BYTES, Command, State, decode
from protocol.tasks.task import Task
from protocol.topics import Kind, Route
from runtime.clock import Clock
from runtime.metrics import MetricFamily, counter
from runtime.mqtt.link import Message
from runtime.pacing import TokenBuckets

log = structlog.get_logger(__name__)

BURST: Final = 10.0
A_SECOND: Final = 0.5
"""States of one device that are applied in a second, after its burst."""
_POLL_S: Final = 0.5
_HUSH_S: Final = 30.0
_MAX_NAMES: Final = 8
_MOST_BARRED: Final = 10_000
_BASE_BYTES: Final = 6144
_MODALITY_BYTES: Final = 512
_COUNT_BYTES: Final = 8


def most_bytes(task: Task) -> int:
    """Limit of one state: the most that a device can report for this task, and a few kB."""
    modalities, classes = len(task.modality_names), max(1, len(task.labels))
    said = _BASE_BYTES + modalities * (_MODALITY_BYTES + _COUNT_BYTES * classes)
    return min(MAX_MESSAGE_BYTES, said)


def fitted(state: State, task: Task) -> State:
    """The state with at most as many counts as the task has classes: another task may have more."""
    classes = max(1, len(task.labels))
    if all(len(one.windows) <= classes for one in state.modalities.values()):
        return state
    cut = {
        name: one.model_copy(update={"windows": one.windows[:classes]})
        for name, one in state.modalities.items()
    }
    return state.model_copy(update={"modalities": cut})


@dataclass(eq=False, repr=False, kw_only=True)
class StateReceiver:
    """Handles the payloads of ``up/state``; :meth:`run` applies deferred states.

    Args:
        announcer: is told of an online device that has no task, or refuses the one it read.
        silent_s: a device that sends nothing for this long is taken to be offline.
    """

    task: Task
    roster: DeviceRegistry
    driver: RoundDriver
    ledger: WriteBehindBuffer
    receipts: ReceiptSender
    access: AccessControl
    deployment: BundleDelivery
    voice: LogRateLimiter
    withdrawals: Withdrawals
    announcer: Announcer
    clock: Clock
    silent_s: float
    secrets: SecretMismatchMonitor
    forgetting: Forgetting

    def __post_init__(self) -> None:
        self._most_bytes = most_bytes(self.task)
        self._hushed_at = self.clock.now()
        self._rate = TokenBuckets(BURST, A_SECOND)
        self._late: dict[str, State] = {}
        """The last deferred state of each device; only of registered devices."""
        self._in_hand = ""
        """The device whose deferred state is being applied: a newer one must not overtake it."""
        self._barred: dict[str, None] = {}
        """Barred devices whose state was dropped, oldest first."""
        self.coalesced = 0
        """States that a later one of the same device replaced before they were applied."""

    async def on_state(self, route: Route, message: Message) -> bool:
        """Handle one message.

        Returns:
            Whether it is acknowledged when the state is on disk; else it has no effect that could be lost.

        Raises:
            Refused: too large, malformed, another device's, or the registry is full.
        """
        device, payload = route.device or "", message.payload
        if not payload:  # a retained message was cleared: it says nothing about the device
            return False
        if self.access.denial(device) is not None:
            self._refuse_denied(device)
            return False
        if len(payload) > self._most_bytes:
            words = f"a state of {len(payload)} bytes; of this task it has at most {self._most_bytes}"
            raise Refused(Reason.TOO_LARGE, words)
        state = fitted(decode(payload, State), self.task)
        if state.device != device:
            words = f"the topic is {device}'s, the message says {state.device}"
            raise Refused(Reason.WRONG_DEVICE, words)
        waits = device in self._late
        if waits or device == self._in_hand or not self._may(device):
            self.coalesced += waits
            self._late[device] = state
            return False
        await self._apply(state, message.ack)
        return True

    def _may(self, device: str) -> bool:
        """Whether to apply a state now; for an unregistered device the registry's own limits decide."""
        return self._rate.take(device, self.clock.now()) or device not in self.roster

    def _refuse_denied(self, device: str) -> None:
        self.access.turned_away += 1
        self._late.pop(device, None)
        if len(self._barred) < _MOST_BARRED:
            self._barred[device] = None

    async def run(self) -> None:
        """Apply deferred states, and ask devices that are no longer barred for theirs, for ever."""
        while True:
            await self.clock.sleep(_POLL_S)
            for device in [one for one in self._late if self._rate.take(one, self.clock.now())]:
                state = self._late.pop(device, None)
                if state is not None:
                    await self._apply_late(state)
            for device in [one for one in self._barred if self.access.denial(one) is None]:
                del self._barred[device]
                self.receipts.enqueue(device, Kind.CMD, Command(command="send_state"))
            if self.clock.now() - self._hushed_at >= min(_HUSH_S, self.silent_s):
                self._hushed_at = self.clock.now()
                self._hush()

    def _hush(self) -> None:
        """Mark devices as offline that were silent for too long; a device that returns sends its state."""
        silent = self.roster.hush(self.silent_s)
        for device in silent:
            self.secrets.heard(device)
            self.ledger.note(schema.devices, **self.roster.row(device))
        if silent:
            log.info("devices_silent", count=len(silent), first=silent[:_MAX_NAMES], seconds=self.silent_s)

    async def _apply_late(self, state: State) -> None:
        self._in_hand = state.device
        try:
            await self._apply(state, _nothing)
        except Refused as refused:
            self.receipts.send_refused(state.device, self.driver.state.round, None, refused)
        except (LichenError, OSError) as error:  # the device sends its state again
            log.warning("not_stored", device=state.device, why=str(error))
        finally:
            self._in_hand = ""

    async def _apply(self, state: State, ack: Callable[[], None]) -> None:
        device = state.device
        try:
            came = self.roster.update(state, self.driver.state.invited)
        finally:
            self.forgetting.forget(self.roster.replaced())
        self.secrets.heard(device)
        await self.ledger.put(schema.devices, ack, **self.roster.row(device))
        if came and (unsaid := self.voice.unsaid(device)) is not None:
            log.info("device_online", device=device, windows=state.windows, **more(unsaid))
        with suppress(LichenError, OSError):  # a full disk: the device sends its state again
            await self.withdrawals.heard(state)
        if state.status != "online":
            return
        # targets (): the device knows the task, and has no data yet.
        if state.refuses is not None or (not state.modalities and state.targets is None):
            self.announcer.on_device_without_task(device)
        with suppress(Transient):  # a full disk: the next tick checks the device again, and reports the error
            await self.driver.device_online(device, came=came)
        await self._point(device, came=came)

    async def _point(self, device: str, *, came: bool) -> None:
        """Tell a device which bundle it alone should run, without waiting for the broker."""
        try:
            pointer = await self.deployment.pointer_for(device, reconnected=came)
        except (LichenError, OSError) as error:  # the device sends its state again
            if (unsaid := self.voice.unsaid(device)) is not None:
                log.warning("no_pointer", device=device, why=str(error), **more(unsaid))
            return
        if pointer is not None:
            self.receipts.enqueue(device, Kind.MODEL, pointer)

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of replaced states."""
        yield counter("lichen_states_coalesced", "States of devices that say them too often", self.coalesced)


def _nothing() -> None:
    """Whether to acknowledge later: a deferred state is acknowledged already."""
