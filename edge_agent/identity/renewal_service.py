"""Renewal in the daemon: when, how often, and in whose process. Runs only where the device has enrolled.

At two thirds of the certificate's life, a little later on some devices than on others; after a failure with
waits of one minute to six hours. The work is done by a child process
(:mod:`edge_agent.identity.renewal_job`), so
that the daemon stays free of the crypto library. A new pair is used from the next connection on, which is
begun at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

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
"""The clock may be set at any time, and another command may enrol the device anew: look this often."""
_FIRST_S: Final = 60.0
_SLOWEST_S: Final = 6 * 3600.0
_TIMEOUT_S: Final = 180.0
MODULE: Final = "edge_agent.identity.renewal_job"


class Runs(Protocol):
    """The part of ``runtime.process.worker.Worker`` that is used."""

    async def run(self, job_dir: Path, timeout_s: float) -> None:
        """Do it. Raises Transient, Refused or Misconfigured."""


class Renewal(StatusPart):
    """A service of the agent.

    Args:
        folder: the device's identity.
        clock: of the agent.
        renewed: called after a new certificate is written: connect with it.
        worker: does the work; None makes the child process.
        rng: jitter.
    """

    def __init__(
        self,
        folder: IdentityFiles,
        clock: Clock,
        renewed: Callable[[], None],
        *,
        worker: Runs | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._renewed = renewed
        self._worker: Runs = Worker(MODULE, warm=False) if worker is None else worker
        self._random = rng or random.Random()  # noqa: S311 - jitter
        self._begun = clock.now()
        self._share = _DUE + self._random.uniform(0, _JITTER)
        self._failures = 0
        self.why = "not enrolled"
        """In words, for ``status``."""
        self.since: float | None = None
        """While it fails: since when, in unix seconds."""
        self.until: float | None = None
        """And when it is tried again."""

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Itself, where the device has enrolled; else none."""
        return {"renewal": self.run} if self._folder.record.exists() else {}

    async def run(self) -> None:
        """Renew for ever; returns where the device has not enrolled."""
        while (identity := await self._read()) is not None:
            due_in_s = self.due_at(identity) - self.now(identity)
            if due_in_s > 0:
                self.why = f"the certificate holds until {utc(identity.not_after)}; renewed from "
                self.why += utc(self.due_at(identity))
                await self._clock.sleep(min(due_in_s, _CHECK_INTERVAL_S))
            else:
                await self._renew(identity)

    def status(self) -> dict[str, Any]:
        """Until when it holds, or why it is not renewed."""
        return {"certificate": self.why}

    def waits(self) -> Iterator[Wait]:
        """A renewal that fails."""
        if self.since is not None:
            yield Wait("certificate", self.why, self.since, self.until, "it is tried again")

    def due_at(self, identity: Identity) -> float:
        """When to renew, in unix seconds."""
        return identity.issued_at + self._share * (identity.not_after - identity.issued_at)

    def now(self, identity: Identity) -> float:
        """Unix seconds; where the clock is behind for certain, what has passed at least."""
        return max(self._clock.wall(), identity.issued_at + self._clock.now() - self._begun)

    async def _read(self) -> Identity | None:
        try:
            return await asyncio.to_thread(self._folder.read)
        except Misconfigured as error:
            self.why = str(error)
            _log.error("certificate_not_renewed", why=str(error))
            return None

    async def _renew(self, identity: Identity) -> None:
        """One attempt, and the wait after it failed."""
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
            await self._clock.sleep(_FIRST_S)  # whatever life the new one has, this is no hot loop

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
