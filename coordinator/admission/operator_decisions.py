"""Cache of the operator's decisions (approved, revoked) from the identity store.

Without an authority (``lichen coordinator init``) every device is admitted that the broker admits; ``lichen
device approve`` still ends a quarantine. Cryptography, starlette and uvicorn are imported only if there is an
authority.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.storage.engines.shared_sqlite import IDENTITIES
from coordinator.storage.engines.shared_tables import Statements
from coordinator.storage.location import Location
from protocol.errors import LichenError, Misconfigured, Reason, Refused
from runtime.clock import Clock
from runtime.metrics import MetricFamily, counter, gauge
from runtime.waits import Wait

if TYPE_CHECKING:
    from coordinator.identity.enrolment import EnrolmentAuthority
    from coordinator.identity.http_api.service import EnrolmentServer
    from coordinator.identity.store import IdentityStore

log = structlog.get_logger(__name__)

REFRESH_S: Final = 3.0
AUTHORITY: Final = "authority"
"""The folder below ``state_dir``."""


def read_decisions(location: Location) -> tuple[dict[str, str], dict[str, float]]:
    """Decision by device, and when each device was last approved (Unix seconds), for the status command.

    Nothing is written, and no cryptography is imported.

    Raises:
        Misconfigured: the store exists but cannot be read.
        Transient: the disk is full, or another process holds it.
    """
    with _reading(location) as tables:
        if tables is None:
            return {}, {}
        standing = {row[0]: row[1] for row in tables.execute("SELECT name, status FROM devices")}
        return standing, {row[0]: row[1] for row in tables.execute("SELECT name, wall FROM released")}


def unproven(location: Location) -> Wait | None:
    """The wait for the broker to use the newest revocation list, for the status command.

    Raises:
        Misconfigured: the store exists but cannot be read.
        Transient: the disk is full, or another process holds it.
    """
    with _reading(location) as tables:
        query = "SELECT value FROM meta WHERE key = 'unproven_wall'"
        found = None if tables is None else tables.execute(query).fetchone()
    if found is None:
        return None
    words = "nothing shows that the broker acts on the newest revocation list: it may let revoked devices in"
    return Wait("revocations", words, float(found[0]), None, "it is tried again every minute")


@contextmanager
def _reading(location: Location) -> Iterator[Statements | None]:
    """The identity store; None if there is none."""
    try:
        with location.reader(IDENTITIES) as tables:
            yield tables
    except sqlite3.Error as error:
        raise Misconfigured(f"{location.where}: the identity store cannot be read: {error}") from None


def require_authority(settings: CoordinatorSettings) -> None:
    """Refuse to start if the authority is missing: no device could enrol, renew or be revoked.

    Raises:
        Misconfigured: it is missing; the message names the evidence that there was one.
    """
    folder = settings.state_dir / AUTHORITY
    if settings.identity.enabled is False or folder.is_dir():
        return
    tls, told = settings.mqtt.tls, ""
    if tls is not None and tls.cert_file == settings.state_dir / "identity" / "coordinator.pem":
        told = "mqtt.tls.cert_file names a certificate of its"
    else:
        with _reading(settings.location) as tables:
            query = "SELECT count(*) FROM certificates"
            issued = 0 if tables is None else tables.execute(query).fetchone()[0]
        told = (
            f"the identity store knows {issued} certificate{'' if issued == 1 else 's'} of its"
            if issued
            else ""
        )
    if told:
        raise Misconfigured(
            f"{folder} is not there, but {told}: restore the state_dir from a backup "
            "(docs/coordinator-state.md), or set identity.enabled = false to run without identities"
        )


class OperatorDecisions:
    """The operator's decision on each device; :meth:`services` reads and refreshes it.

    Args:
        settings: where the authority and the identity store are: for all tasks of a fleet, in its main task.
        clock: the time.
        reads_only: this process holds no key: it never opens the authority, nor lets devices enrol. So it is
            for a further task.
    """

    def __init__(self, settings: CoordinatorSettings, clock: Clock, *, reads_only: bool = False) -> None:
        self._settings = settings.main
        self._reads_only = reads_only or settings.further_task is not None
        self._clock = clock
        self._desk: EnrolmentAuthority | None = None
        self._book: IdentityStore | None = None
        self._office: EnrolmentServer | None = None
        self._said = ""

    @staticmethod
    def enabled_by(settings: CoordinatorSettings) -> bool:
        """Whether devices enrol here.

        Raises:
            Misconfigured: the settings require it, but there is no authority.
        """
        folder = settings.main.state_dir / AUTHORITY
        there = folder.is_dir()
        if settings.identity.enabled and not there:
            raise Misconfigured(
                f"identity.enabled: {folder} is not there; make the fleet's "
                "authority with: lichen coordinator init"
            )
        return there and settings.identity.enabled is not False

    def open(self) -> None:
        """Read authority and identity store, if they exist.

        Raises:
            Misconfigured: one of them is damaged, of another fleet, or missing although it existed.
            Transient: the disk is full.
        """
        if not self._reads_only:
            require_authority(self._settings)
        if not self._reads_only and self.enabled_by(self._settings) and self._desk is None:
            from coordinator.identity.enrolment import EnrolmentAuthority  # noqa: PLC0415 - only where there is an authority

            self._desk = EnrolmentAuthority(self._settings)
            self._book = self._desk.book
        self._refresh()

    def _refresh(self) -> None:
        if self._book is None and self._may_have_book():
            from coordinator.identity.store import IdentityStore  # noqa: PLC0415 - only where there is one

            self._book = IdentityStore(self._settings.location)
        if self._book is not None:
            self._book.refresh()

    def _may_have_book(self) -> bool:
        """Whether there is an identity store; on PostgreSQL it is made, for less than a look costs."""
        location = self._settings.location
        return location.schema is not None or location.has(IDENTITIES)

    def denial(self, device: str) -> Refused | None:
        """Why a device is denied; None if the operator has not revoked it."""
        if self._book is None or self._book.standing(device) != "revoked":
            return None
        return Refused(Reason.REVOKED, f"{device} was revoked by the operator (lichen device revoke)")

    def serve_tasks(self, names: Sequence[str]) -> None:
        """Admit links of these further tasks to the broker, and no others. Blocks for disk and broker.

        Raises:
            LichenError: a certificate or the broker's files could not be written, or the broker did not read
                them; it is tried again every minute.
        """
        if self._desk is not None:
            self._desk.serve_tasks(names)

    def active(self, device: str) -> bool:
        """Whether it is enrolled and admitted, as of the last refresh, so without a disk."""
        return self._book is not None and self._book.standing(device) == "active"

    def released_at(self, device: str) -> float | None:
        """When the operator last approved a device, Unix seconds."""
        return None if self._book is None else self._book.released_at(device)

    def broker_unproven(self) -> bool:
        """Whether the broker may not act on the newest revocation list (there is an authority)."""
        return self._desk is not None and self._desk.book.unproven_since() is not None

    def counts(self) -> tuple[int, Mapping[Reason, int]]:
        """Certificates issued, and enrolments refused, since the start."""
        app = None if self._office is None else self._office.app
        return (0, {}) if app is None else (app.issued, dict(app.refused))

    def metrics(self) -> Iterable[MetricFamily]:
        """Counts of the authority."""
        words = "1: nothing shows that the broker acts on the newest revocation list"
        yield gauge("lichen_broker_unproven", words, self.broker_unproven())
        issued, refused = self.counts()
        words = "Device certificates issued since the start"
        yield counter("lichen_certificates_issued", words, issued)
        values = [((reason.value,), float(count)) for reason, count in sorted(refused.items())]
        words = "Enrolments refused since the start"
        yield MetricFamily("lichen_enrolments_refused", words, "counter", values, ("reason",))

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The services for the daemon; the port is taken now.

        Raises:
            Misconfigured: the port cannot be taken.
            Transient: the disk is full.
        """
        self.open()
        found: dict[str, Callable[[], Awaitable[None]]] = {"admission": self.refresh_for_ever}
        if self._desk is not None:
            from coordinator.identity.http_api.service import EnrolmentServer  # noqa: PLC0415 - only where there is an authority

            self._office = EnrolmentServer(self._desk, self._settings.identity, self._clock)
            found |= {"enrolment": self._office.serve, "broker-files": self._office.keep}
        return found

    async def refresh_for_ever(self) -> None:
        """Read the operator's new decisions, for ever."""
        while True:
            await self._clock.sleep(REFRESH_S)
            if self._book is None and not self._may_have_book():
                continue
            try:
                await asyncio.to_thread(self._refresh)
                self._said = ""
            except LichenError as error:  # earlier decisions stay in force
                if str(error) != self._said:
                    log.warning("identity_store_not_read", why=str(error))
                self._said = str(error)

    def close(self) -> None:
        """Stop listening, close the identity store. Idempotent."""
        if self._office is not None:
            self._office.close()
        if self._book is not None:
            self._book.close()
