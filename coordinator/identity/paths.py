"""Paths of the identity files, and renewal of the coordinator's own certificates.

Below ``state_dir``: ``authority/`` (the secret), ``identity.sqlite3``, ``identity/`` (``https.pem`` for the
enrolment service, ``coordinator.pem`` and ``observer.pem`` for the broker, ``ca.pem``; for each further task
``coordinator~TASK.pem``), and ``mosquitto/``.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from cryptography import x509

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.tasks import OWN_FOLDER, own_certificate
from coordinator.identity import mosquitto
from coordinator.identity.authority import FOLDER, Authority, Pair
from coordinator.identity.mosquitto import Broker
from protocol.errors import Transient
from runtime.storage.files import disk_errors, write_atomic

_LOCK: Final = "identity.lock"
_LOCK_S: Final = 15.0
_FRESH: Final = 1 / 3
"""A certificate of our own is renewed when less than this share of its validity is left."""


@dataclass(frozen=True, slots=True)
class IdentityPaths:
    """Paths of one coordinator."""

    state_dir: Path
    broker: Broker

    @classmethod
    def of(cls, settings: CoordinatorSettings) -> "IdentityPaths":
        """The paths of these settings; a further task has those of the fleet's main task."""
        settings = settings.main
        identity = settings.identity
        broker = Broker(
            folder=(identity.broker_dir or settings.state_dir / "mosquitto").absolute(),
            fleet=settings.fleet,
            port=identity.broker_port,
            group=identity.broker_group,
            tasks=settings.task_names(),
        )
        return cls(settings.state_dir.absolute(), broker)

    def with_tasks(self, names: Sequence[str]) -> "IdentityPaths":
        """The same for a fleet with these further tasks."""
        return replace(self, broker=replace(self.broker, tasks=tuple(names)))

    @property
    def authority(self) -> Path:
        """The authority's folder."""
        return self.state_dir / FOLDER

    @property
    def trust_root(self) -> Path:
        """The newest root of the metadata that signs bundles (:mod:`coordinator.trust.repository`)."""
        return self.state_dir / "trust" / "root.json"

    @property
    def own(self) -> Path:
        """The folder of the coordinator's own certificates."""
        return self.state_dir / OWN_FOLDER

    @property
    def https(self) -> Path:
        """Certificate and key of the enrolment service."""
        return self.own / "https.pem"

    @property
    def coordinator(self) -> Path:
        """Certificate and key of the coordinator as a client of the broker."""
        return own_certificate(self.state_dir, None)

    @property
    def of_tasks(self) -> dict[str, Path]:
        """The same of each further task, by its name."""
        return {name: own_certificate(self.state_dir, name) for name in self.broker.tasks}

    @property
    def observer(self) -> Path:
        """Certificate and key of ``lichen status``."""
        return self.own / "observer.pem"

    @property
    def probe(self) -> Path:
        """Certificate and key that the newest revocation list revokes."""
        return self.own / "probe.pem"

    @property
    def ca(self) -> Path:
        """The authority's certificate, for ``[mqtt.tls] ca_file``."""
        return self.own / "ca.pem"

    @property
    def broker_written(self) -> bool:
        """Whether the broker's rules exist, and with them the probe for whether the broker has read them."""
        names = (mosquitto.CONF, mosquitto.INCLUDED, mosquitto.ACL, mosquitto.CRL)
        return self.probe.is_file() and all((self.broker.folder / name).is_file() for name in names)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A lock: one process and thread at a time writes the broker's files.

        Raises:
            Transient: another process has held it for too long.
        """
        path = self.state_dir / _LOCK
        with disk_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            until = time.monotonic() + _LOCK_S
            while not _locked(handle):
                if time.monotonic() > until:
                    raise Transient(f"{path}: another process has held it for {_LOCK_S:g} s; try again")
                time.sleep(0.05)
            yield
        finally:
            os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def refresh_own(
    places: IdentityPaths, authority: Authority, *, wall: Callable[[], float] = time.time
) -> None:
    """Renew our own certificates that are missing, old, or for other hosts, except the broker's.

    Call it inside :meth:`IdentityPaths.alone`.

    Raises:
        Misconfigured: a folder denies access.
        Transient: the disk is full.
    """
    ca, now = authority.ca_pem.encode(), wall()
    server: list[tuple[Path, Callable[[], Pair]]] = [(places.https, authority.issue_server)]
    clients = [(places.coordinator, authority.issue_coordinator), (places.observer, authority.issue_observer)]
    clients += [(path, partial(authority.issue_coordinator, name)) for name, path in places.of_tasks.items()]
    for path, issue in server + clients:
        hosts = authority.hosts if path == places.https else ()
        if not is_fresh(path, authority, hosts, now):
            write_atomic(path, issue().both_pem)
    if not _holds(places.ca, ca):
        write_atomic(places.ca, ca)


def refresh_server(
    places: IdentityPaths, authority: Authority, *, wall: Callable[[], float] = time.time
) -> None:
    """Renew the broker's certificate if it is missing, old, or for other hosts.

    Call it inside :meth:`IdentityPaths.alone`.

    Raises:
        Misconfigured: the folder denies access.
        Transient: the disk is full.
    """
    ca, now, folder = authority.ca_pem.encode(), wall(), places.broker.folder
    fresh = is_fresh(folder / mosquitto.SERVER, authority, authority.hosts, now)
    if not fresh or not _holds(folder / mosquitto.CA, ca):
        mosquitto.write_server(places.broker, authority.ca_pem, authority.issue_server().both_pem)


def is_fresh(path: Path, authority: Authority, hosts: tuple[str, ...], now: float) -> bool:
    """Whether a file holds a certificate of this authority for these hosts, with enough validity left."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return False
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return (
        authority.signed_by_us(certificate)
        and begin <= now < end - _FRESH * (end - begin)
        and _names(certificate) == set(hosts)
    )


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name.value) for name in names}


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False
