"""The enrolment service: runs the listener, and renews the broker's files and our certificates."""

import asyncio
import ssl
from pathlib import Path
from typing import Final

import structlog
from uvicorn.config import Config

from coordinator.config.coordinator import IdentitySettings
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.http_api.application import EnrolmentApp
from coordinator.identity.http_api.listener import BoundedListener
from protocol.errors import LichenError, Misconfigured
from runtime.clock import Clock
from runtime.concurrency.signals import Signal

log = structlog.get_logger(__name__)

LOOK_S: Final = 60.0
"""Interval of the check whether everything is published: after a failed reload, and for expiring
certificates."""
_HEAD_BYTES: Final = 16 * 1024
"""Limit for the request line and headers."""
_NEXT_REQUEST_S: Final = 2


class EnrolmentServer:
    """The two loops of the service.

    Args:
        desk: decides; its owner closes it.
        settings: where to listen.
        clock: the time.

    Raises:
        Misconfigured: the port is in use, or our certificate cannot be created.
        Transient: the disk is full.
    """

    def __init__(self, desk: EnrolmentAuthority, settings: IdentitySettings, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._wake = Signal()
        self._said = ""
        self._loaded = -1
        desk.prepare()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(desk.places.https)
        self.app = EnrolmentApp(desk, self._wake.set)
        self.door = BoundedListener(settings.host, settings.port, self._context, as_config(self.app))

    def _load(self, file: Path) -> None:
        """Load certificate and key if they changed; open connections keep theirs."""
        try:
            changed = file.stat().st_mtime_ns
            if changed != self._loaded:
                self._context.load_cert_chain(file)
                self._loaded = changed
        except (OSError, ssl.SSLError) as error:
            raise Misconfigured(f"{file}: {error}; remove it, and it is created again") from None

    async def serve(self) -> None:
        """Answer devices until cancelled."""
        log.info("enrolment_open", url=self._desk.url, port=self.door.port)
        await self.door.run()

    async def keep(self) -> None:
        """Until cancelled: publish changes to the broker after each enrolment, and at intervals."""
        while True:
            await self._publish()
            await self._wake.wait(LOOK_S, self._clock)

    async def _publish(self) -> None:
        try:
            done = await asyncio.to_thread(self._desk.publish)
            self._load(self._desk.places.https)
        except (
            LichenError,
            OSError,
        ) as error:  # an error with the broker's files must not end the coordinator
            if str(error) != self._said:
                log.warning("broker_not_updated", why=str(error), again_in_s=LOOK_S)
            self._said = str(error)
            return
        self._said = ""
        if done.changed and not done.reloaded:
            log.warning(
                "broker_files_written",
                folder=str(self._desk.places.broker.folder),
                todo="make the broker read them (systemctl reload mosquitto)",
            )
        elif done.reloaded:
            log.info("broker_uses_revocation_list")

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self.door.close()


def as_config(app: EnrolmentApp) -> Config:
    """The application as a uvicorn configuration."""
    config = Config(
        app.asgi,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # a stranger must not choose the address under which it is counted
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=_NEXT_REQUEST_S,
    )
    config.load()
    return config
