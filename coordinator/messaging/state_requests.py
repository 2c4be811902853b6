"""After a start: asks registered devices for states that the broker has not delivered.

States are retained, but a broker sends retained messages only for a new subscription (the embedded one: not
to a resumed session), a wildcard may get only some, and a broker that lost its memory has none. Devices that
were heard since the start are not asked; the others are asked a few times, at growing intervals.
"""

from typing import Final

import structlog

from coordinator.fleet.device_registry import DeviceRegistry
from coordinator.messaging.receipts import ReceiptSender
from protocol.messages import Command
from protocol.topics import Kind
from runtime.clock import Clock
from runtime.mqtt.running_link import MessagePublisher

log = structlog.get_logger(__name__)

_PAUSES_S: Final = (3.0, 20.0, 120.0)
"""Delays before each attempt: a broker delivers retained states in the first moments."""
_REQUESTS_A_SECOND: Final = 100
"""Requests in a second, so that receipts and offers find room in the queue."""


class StateRequester:
    """A service that is done after some minutes and then only waits."""

    def __init__(
        self, link: MessagePublisher, roster: DeviceRegistry, receipts: ReceiptSender, clock: Clock
    ) -> None:
        self._link = link
        self._roster = roster
        self._receipts = receipts
        self._clock = clock

    async def run(self) -> None:
        """Send the requests, then wait for ever: a service does not end."""
        for pause_s in _PAUSES_S:
            await self._clock.sleep(pause_s)
            while not self._link.connected:
                await self._clock.sleep(1.0)
            await self._ask()
        while True:
            await self._clock.sleep(3600.0)

    async def _ask(self) -> None:
        silent = self._roster.unheard()
        if silent:
            log.info("roll_call", silent=len(silent), first=silent[:8])
        for at in range(0, len(silent), _REQUESTS_A_SECOND):
            for device in silent[at : at + _REQUESTS_A_SECOND]:
                self._receipts.enqueue(device, Kind.CMD, Command(command="send_state"))
            if at + _REQUESTS_A_SECOND < len(silent):
                await self._clock.sleep(1.0)
