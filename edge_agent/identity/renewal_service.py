"""Renewal in the daemon: schedules renewals and runs them in a child process, if the device has enrolled.

At two thirds of the certificate's life, a little later on some devices than on others; after a failure with
waits of one minute to six hours. A child process does the work (:mod:`edge_agent.identity.renewal_job`), so
that the daemon does not load the crypto library. A new pair is used from the next connection on, which is
started at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import structlog

from edge_agent.identity.files import Identity, IdentityFiles
from protocol.errors import Misconfigured, Refused, Transient
from runtime.clock import Clock
from runtime.mqtt.tls import utc
from runtime.pacing import backoff_s
from runtime.process.worker import Worker
from runtime.waits import StatusPart, Wait

_log = structlog.get_logger(__name__)
_DUE: Final = 2 / 3
_JITTER: Final = 1 / 20
_CHECK_INTERVAL_S: Final = 3600.0
"""Interval of checks: the clock may be set, or another command may enrol the device again, at any time."""
_FIRST_S: Final = 60.0
_SLOWEST_S: Final = 6 * 3600.0
_TIMEOUT_S: Final = 180.0
MODULE: Final = "edge_agent.identity.renewal_job"


class Renewal(StatusPart):
    """A service of the agent.

    Args:
        folder: the device's identity.
        clock: of the agent.
        renewed: called after a new certificate is written, to reconnect with it.
        worker: does the work; None starts the child process.
        rng: jitter.
    """

    def __init__(
        self,
        folder: IdentityFiles,
        clock: Clock,
        renewed: Callable[[], None],
        *,
        worker: Worker | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._renewed = renewed
        self._worker = worker or Worker(MODULE, warm=False)
        self._random = rng or random.Random()  # noqa: S311 - jitter
        self._begun = clock.now()
        self._share = _DUE + self._random.uniform(0, _JITTER)
        self._failures = 0
        self.why = "not enrolled"
        """The state, for ``status``."""
        self.since: float | None = None
        """Start of the present failure, in Unix seconds; None if there is none."""
        self.until: float | None = None
        """The time of the next attempt."""

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The renewal service, if the device has enrolled; else none."""
        return {"renewal": self.run} if self._folder.record.exists() else {}

    async def run(self) -> None:
        """Renew for ever; returns if the device has not enrolled."""
        while (identity := await self._read()) is not None:
            due_in_s = self.due_at(identity) - self.now(identity)
            if due_in_s > 0:
                self.why = f"the certificate is valid until {utc(identity.not_after)}; renewed from "
                self.why += utc(self.due_at(identity))
                await self._clock.sleep(min(due_in_s, _CHECK_INTERVAL_S))
            else:
                await self._renew(identity)

    def status(self) -> dict[str, Any]:
        """Until when the certificate is valid, or why it is not renewed."""
        return {"certificate": self.why}

    def waits(self) -> Iterator[Wait]:
        """The wait for a failing renewal."""
        if self.since is not None:
            yield Wait("certificate", self.why, self.since, self.until, "the agent tries again")

    def due_at(self, identity: Identity) -> float:
        """When to renew, in Unix seconds."""
        return identity.issued_at + self._share * (identity.not_after - identity.issued_at)

    def now(self, identity: Identity) -> float:
        """Unix seconds; at least the known lower bound of the time, if the clock is behind it."""
        return max(self._clock.wall(), identity.issued_at + self._clock.now() - self._begun)

    async def _read(self) -> Identity | None:
        try:
            return await asyncio.to_thread(self._folder.read)
        except Misconfigured as error:
            self.why = str(error)
            _log.error("certificate_not_renewed", why=str(error))
            return None

    async def _renew(self, identity: Identity) -> None:
        """One attempt, and the wait after a failure."""
        self.why = "renewing the certificate"
        try:
            await self._worker.run(self._folder.path, _TIMEOUT_S)
        except Refused as error:
            await self._wait(identity, f"the coordinator does not renew the certificate: {error}", _SLOWEST_S)
        except Misconfigured as error:
            await self._wait(identity, f"the certificate cannot be renewed: {error}", _SLOWEST_S)
        except Transient as error:
            wait_s = backoff_s(_FIRST_S, _SLOWEST_S, self._failures)
            await self._wait(identity, f"the certificate is not renewed yet: {error}", wait_s)
        else:
            self._failures, self.since, self.until = 0, None, None
            self._begun = self._clock.now()
            _log.info("certificate_renewed")
            self._renewed()
            await self._clock.sleep(_FIRST_S)  # prevents a busy loop, whatever the new certificate's life is

    async def _wait(self, identity: Identity, words: str, wait_s: float) -> None:
        self._failures += 1
        pause = self._random.uniform(wait_s / 2, wait_s)
        left = identity.not_after - self.now(identity)
        until = "has run out" if left <= 0 else f"holds until {utc(identity.not_after)}"
        self.why = f"{words}; the present one {until}; tried again in {pause:.0f} s"
        self.since = self._clock.wall() if self.since is None else self.since
        self.until = self._clock.wall() + pause
        (_log.error if left <= 0 else _log.warning)(words, present=until, next_attempt_in_s=round(pause))
        await self._clock.sleep(pause)
