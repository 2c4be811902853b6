"""Bundles for devices that came too late for an export, for routed methods.

An export makes one for each kind of device that is known then. A device of another kind that comes after the
last round would wait for ever: so, once all rounds are over, a bundle of the newest version is made for it.
``lichen coordinator status`` shows what cannot be made.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from coordinator.delivery.bundle_delivery import BundleDelivery
from coordinator.errors import in_words
from coordinator.fleet.routes import RouteGroup
from coordinator.round_machine.events import RoundPhase
from coordinator.rounds.driver import RoundDriver
from coordinator.storage.database import Database
from protocol.errors import LichenError
from runtime.clock import Clock
from runtime.text import MAX_NAMES, first_few
from runtime.waits import Wait

log = structlog.get_logger(__name__)

META: Final = "late_bundles"
"""The key of the table ``meta``: what such devices wait for, as text."""
_POLL_S: Final = 5.0
_RETRY_S: Final = 300.0
"""Delay after a bundle that could not be made."""


@dataclass(eq=False, repr=False)
class LateBundles:
    """A service.

    Args:
        export: makes the missing bundles of the newest version; None: a rollout decides what devices run.
    """

    driver: RoundDriver
    deployment: BundleDelivery
    export: Callable[[], Awaitable[None]] | None
    store: Database
    clock: Clock

    def __post_init__(self) -> None:
        self._words = self.store.get_meta(META) or ""
        self._trouble = ""
        self._again_at = 0.0

    async def run(self) -> None:
        """Look for devices without a bundle, and make those bundles, for ever."""
        while True:
            await self.clock.sleep(_POLL_S)
            if self.driver.state.version > 0:
                try:
                    await self._look()
                except LichenError as error:  # the next pass is soon
                    log.warning("late_bundles_not_looked_at", why=str(error))

    async def _look(self) -> None:
        lacking = await asyncio.to_thread(self.deployment.lacking)
        over = self.driver.state.phase is RoundPhase.DONE
        if lacking and over and self.export is not None and self.clock.now() >= self._again_at:
            await self._make(self.export)
            lacking = await asyncio.to_thread(self.deployment.lacking)
        await self._say(self._said_of(lacking))

    async def _make(self, export: Callable[[], Awaitable[None]]) -> None:
        self._trouble, self._again_at = "", self.clock.now() + _RETRY_S
        try:
            await export()
        except (LichenError, OSError) as error:
            self._trouble = in_words(error)
            log.warning("late_bundle_not_made", why=self._trouble)
        else:
            self._again_at = 0.0

    def _said_of(self, lacking: list[RouteGroup]) -> str:
        if not lacking:
            return ""
        who = first_few([str(route) for route in lacking], MAX_NAMES // 2)
        if self.driver.state.phase is not RoundPhase.DONE:
            return f"no bundle reads and predicts what these do: {who}; the next export makes one"
        if self._trouble:
            return f"no bundle could be made for {who}: {self._trouble}"
        if self.export is None:
            return f"no bundle of the rollouts is for {who}; all rounds are over, so no export makes one"
        return f"no bundle is made for {who}: export.max_routes bundles are made, for most devices first"

    async def _say(self, words: str) -> None:
        if words == self._words:
            return
        self._words = words
        await asyncio.to_thread(self.store.put_meta, {META: words})
        if words:
            log.warning("devices_without_bundle", why=words)


def wait_kept(store: Database) -> list[Wait]:
    """What the daemon wrote last, for the status command."""
    words = store.get_meta(META) or ""
    return [Wait("bundles", words[:1000], None, None, "until there is one")] if words else []
