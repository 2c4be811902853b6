"""sd_notify(3): report to systemd: ready, stopping, alive. A no-op without ``NOTIFY_SOCKET``."""

import os
import socket
from collections.abc import Mapping

import structlog

_log = structlog.get_logger(__name__)


class Notifier:
    """Sends datagrams to ``NOTIFY_SOCKET``.

    Args:
        environ: has ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        address = env.get("NOTIFY_SOCKET", "")
        # A leading @ is Linux's abstract namespace.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._warned = False
        usec, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
        for_us = not pid or pid == str(os.getpid())
        self.watchdog_s: float | None = int(usec) / 1e6 if usec.isdecimal() and int(usec) and for_us else None
        """Longest time between calls of :meth:`watchdog`, in seconds; None: systemd does not watch."""

    def ready(self) -> None:
        """Start-up is done."""
        self._send("READY=1")

    def stopping(self) -> None:
        """An orderly stop has begun."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """The daemon made progress."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send("STATUS=" + text.replace("\n", " "))

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(text.encode(), self._address)
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("systemd_not_notified", error=str(error))
