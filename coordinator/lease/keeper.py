"""Holds a lease: takes it, renews it, and says whether it is held."""

import os
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from coordinator.lease.decisions import RENEWALS, Lease, Tenure, tenure, wait_s
from coordinator.lease.table import LeaseLost, LeaseTable, fence, shared_fence
from coordinator.storage.engines.shared_tables import SharedFence
from protocol.errors import Transient
from runtime.clock import Clock
from runtime.concurrency.threads import Threads
from runtime.metrics import MetricFamily, gauge

log = structlog.get_logger(__name__)


def holder_name() -> str:
    """A name of this process that no other has, also not its next start."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


class LeaseKeeper:
    """One process's side of a lease. Call :meth:`take`, then run :meth:`run` beside what needs the lease.

    Args:
        table: the lease.
        role: its key.
        clock: monotonic time of this process.
        holder: this process.
    """

    def __init__(self, table: LeaseTable, role: str, clock: Clock, holder: str) -> None:
        self._table, self._role, self._clock, self._holder = table, role, clock, holder
        self._threads = Threads("lease", 1)
        """For the lease alone: a renewal must not wait for other work in threads."""
        self._lease = Lease()
        self._tenure = Tenure(0, 0.0)
        self.other = ""
        """The process that has the lease, as last seen; empty if it is this one."""

    @property
    def epoch(self) -> int:
        """Of the lease that this process has, or had."""
        return self._tenure.epoch

    def holds(self) -> bool:
        """Whether the lease is certainly held now, by the clock of this process."""
        return self._tenure.holds(self._clock.now())

    def fence(self) -> Callable[[Any], None]:
        """The check for the transactions of this tenure."""
        return fence(self._role, self.epoch)

    def shared_fence(self, *, same_database: bool) -> SharedFence:
        """The same for tables beside them, as :func:`coordinator.lease.table.shared_fence`."""
        return shared_fence(self._role, self.epoch, self._table, same_database=same_database)

    async def take(self) -> None:
        """Wait until this process has the lease.

        Raises:
            Transient: the database is not in the state that this process knows: it must start again.
        """
        said = None
        while True:
            asked_at = self._clock.now()
            try:
                lease, found, now = await self._threads.run(self._table.take, self._holder)
            except Transient as error:
                self._table.require_there()
                log.warning("lease_not_read", role=self._role, why=str(error))
                await self._clock.sleep(self._table.life_s / RENEWALS)
                continue
            if lease is not None:
                self._lease, self.other = lease, ""
                self._tenure = tenure(lease, asked_at, self._table.life_s)
                log.info("lease_taken", role=self._role, epoch=lease.epoch, before=found.holder)
                return
            self.other = found.holder
            if said != found.holder:
                said = found.holder
                log.info("lease_held_by_another", role=self._role, holder=said, epoch=found.epoch)
            await self._clock.sleep(wait_s(found, now, self._table.life_s))

    async def run(self) -> None:
        """Renew, until another process has the lease or it may have it.

        Raises:
            LeaseLost: this process must do nothing more that needs the lease.
        """
        while True:
            await self.renew()
            await self._clock.sleep(self._table.life_s / RENEWALS)

    async def renew(self) -> None:
        """Renew now; also between the steps of a long start, in which :meth:`run` does not run yet.

        Raises:
            LeaseLost: another process has the lease, or may have it.
        """
        asked_at = self._clock.now()
        try:
            lease = await self._threads.run(self._table.renew, self._lease)
        except Transient as error:
            log.warning("lease_not_renewed", role=self._role, why=str(error))
            if not self.holds():
                why = f"the lease {self._role!r} could not be renewed in time: {error}"
                raise LeaseLost(why) from None
            return
        if lease is None:
            raise LeaseLost(f"another process has taken the lease {self._role!r}")
        self._lease, self._tenure = lease, tenure(lease, asked_at, self._table.life_s)

    async def release(self) -> None:
        """Give the lease back, if it is still ours; an error only costs the next holder a wait."""
        mine, self._tenure = self._lease, Tenure(self.epoch, 0.0)
        try:
            await self._threads.run(self._table.release, mine)
        except Transient as error:
            log.warning("lease_not_released", role=self._role, why=str(error))

    def close(self) -> None:
        """End the thread."""
        self._threads.close()

    def metrics(self) -> Iterable[MetricFamily]:
        """Whether this process holds the lease, and its epoch."""
        yield gauge("lichen_lease_held", "1: this process holds the leader's lease", self.holds())
        yield gauge("lichen_lease_epoch", "Epoch of the lease that this process holds or held", self.epoch)
