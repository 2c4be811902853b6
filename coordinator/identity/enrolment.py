"""Enrolment: authority, identity store and broker files, for the HTTP service and ``lichen device``.

Synchronous and thread-safe. Every answer is on disk before it is returned.
"""

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity import mosquitto
from coordinator.identity.authority import Authority, as_certified
from coordinator.identity.certificates import (
    Presented,
    PublicKey,
    Revoked,
    common_name,
    key_print,
    read_certificate,
    requested_key,
)
from coordinator.identity.paths import IdentityPaths, refresh_own, refresh_server
from coordinator.identity.revocation_probe import Probe
from coordinator.identity.store import IdentityStore
from protocol.base import name_trouble
from protocol.enrolment import MAX_TRUST_ROOT, EnrolAnswer, EnrolRequest, Invite, RenewRequest
from protocol.errors import Misconfigured, Reason, Refused
from runtime.storage.files import disk_errors, write_atomic

PENDING_WAIT_S: Final = 10.0
PROVE_S: Final = 10.0
"""Time for the broker to prove that it uses its new files, after the reload command."""
_DAY_S: Final = 86400.0
_RENEW_WORDS: Final = b"lichen renew v1\n"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class PublishedList:
    """Result of publishing the broker's files."""

    changed: bool
    """The files were written."""
    reloaded: bool
    """The broker has read them: it refuses the certificate that only the newest list revokes."""


class EnrolmentAuthority:
    """Opens the authority and identity store of a coordinator.

    Raises:
        Misconfigured: there is no authority, it belongs to another fleet, or a file is damaged.
        Transient: the disk is full.
    """

    def __init__(self, settings: CoordinatorSettings, *, wall: Callable[[], float] = time.time) -> None:
        settings = settings.main
        self.places = IdentityPaths.of(settings)
        self.authority = Authority.load(self.places.authority, wall=wall)
        check_fleet(self.authority, settings.fleet, self.places)
        self.book = IdentityStore(settings.location, wall=wall)
        self._settings = settings.identity
        self._mqtt_host = settings.mqtt.host
        port = settings.mqtt.port if settings.mqtt.tls is not None else settings.identity.broker_port
        self._probe = Probe(self.places.probe, self.places.ca, settings.mqtt.host, port)
        self._wall = wall

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the identity store."""
        self.book.close()

    def now(self) -> float:
        """Unix seconds, by the clock of the identity store."""
        return self._wall()

    @property
    def url(self) -> str:
        """URL of the enrolment service for devices."""
        if self._settings.url:
            return self._settings.url
        host = self.authority.hosts[0]
        return f"https://{f'[{host}]' if ':' in host else host}:{self._settings.port}"

    @property
    def broker_host(self) -> str:
        """Host name of the broker for devices."""
        beside = self._mqtt_host in _LOOPBACK
        return self._settings.broker_host or (self.authority.hosts[0] if beside else self._mqtt_host)

    def check_hosts(self) -> None:
        """Check that our certificates name the hosts that devices are sent to.

        Raises:
            Misconfigured: they do not; the message names the key.
        """
        told = (
            ("identity.url", urlsplit(self.url).hostname or ""),
            ("identity.broker_host", self.broker_host),
        )
        for key, host in told:
            if as_certified(host) not in self.authority.hosts:
                raise Misconfigured(
                    f"{key}: devices would be sent to {host!r}, but our certificates are for "
                    f"{', '.join(self.authority.hosts)}; add it with: lichen coordinator init --host {host}"
                )

    def invite(self, device: str | None, lasts_s: float) -> Invite:
        """A new invite.

        Raises:
            Refused: too many invites are open.
            Misconfigured: devices would be sent to a host that our certificates do not name.
        """
        self.check_hosts()
        token = self.book.invite(device, lasts_s)
        return Invite(url=self.url, ca_sha256=self.authority.ca_sha256, token=token, device=device)

    def enrol(self, request: EnrolRequest) -> EnrolAnswer:
        """Answer the request of a device that has an invite.

        Raises:
            Refused: BAD_INVITE, REVOKED, or MALFORMED (its certificate request).
        """
        key = key_print(requested_key(request.csr))
        status, certificate = self.book.claim(request.token, request.device, key)
        if status == "pending":
            return EnrolAnswer(
                status="pending", fleet=self.authority.fleet, device=request.device, wait_s=PENDING_WAIT_S
            )
        if certificate is None:
            issued = self.authority.issue_device(request.csr, request.device, self._settings.device_days)
            certificate = self.book.keep(request.device, key, issued)
        return self._answer(request.device, certificate)

    def renew(self, request: RenewRequest) -> EnrolAnswer:
        """Answer the request of a device that has a certificate, which may have expired.

        Raises:
            Refused: the certificate is not ours, revoked, exchanged before, or expired longer ago than
                ``identity.renew_grace_days``; or the request is not signed with its key.
        """
        old, old_key = read_certificate(request.certificate)
        # Checked before any field is read: fields are parsed lazily.
        if not self.authority.signed_by_us(old):
            raise Refused(
                Reason.UNKNOWN_DEVICE, "certificate: not issued by this fleet's authority; enroll again"
            )
        device = common_name(old)
        if words := name_trouble(device):
            raise Refused(
                Reason.MALFORMED, f"certificate: {words}; enroll the device again under a valid name"
            )
        _check_signature(old_key, request)
        presented = self.authority.presented(old)
        self._check_grace(device, presented)
        key = key_print(requested_key(request.csr))
        certificate = self.book.renewable(device, presented, key)
        if certificate is None:
            issued = self.authority.issue_device(request.csr, device, self._settings.device_days)
            certificate = self.book.renew(device, presented, key, issued)
        return self._answer(device, certificate)

    def _check_grace(self, device: str, presented: Presented) -> None:
        late, grace = (self._wall() - presented.not_after) / _DAY_S, self._settings.renew_grace_days
        if late > grace:
            raise Refused(
                Reason.UNKNOWN_DEVICE,
                f"the certificate of {device} expired {late:.0f} days ago; renewal is possible for {grace:g} "
                f"days (identity.renew_grace_days): lichen device invite {device}, then enroll it again",
            )

    def _answer(self, device: str, certificate: str) -> EnrolAnswer:
        return EnrolAnswer(
            status="issued",
            fleet=self.authority.fleet,
            device=device,
            certificate=certificate,
            ca=self.authority.ca_pem,
            trust_root=self._root(),
            broker_host=self.broker_host,
            broker_port=self._settings.broker_port,
        )

    def _root(self) -> str | None:
        """The root of the metadata that signs bundles; None if bundles are not signed."""
        path = self.places.trust_root
        with disk_errors(path):
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
        return text if len(text) <= MAX_TRUST_ROOT else None

    def prepare(self) -> None:
        """Create our own certificates if they are missing or due for renewal.

        Raises:
            Misconfigured: a folder denies access.
            Transient: the disk is full.
        """
        # Not the broker's certificate: its folder may deny access, and the coordinator must still start.
        with self.places.alone():
            self._refresh_own()

    def _refresh_own(self) -> None:
        """Read the authority again first: ``init`` may have added hosts."""
        self.authority = Authority.load(self.places.authority, wall=self._wall)
        refresh_own(self.places, self.authority, wall=self._wall)

    def serve_tasks(self, names: Sequence[str]) -> None:
        """Make the certificates of these further tasks, and let the broker admit them and no others.

        Raises:
            Misconfigured, Transient: as :meth:`publish`.
        """
        self.places = self.places.with_tasks(names)
        self.prepare()
        self.publish()

    def publish(self, *, force: bool = False, reload: bool = True) -> PublishedList:
        """Write the broker's files from the identity store, and make the broker read them.

        An interrupted call is completed by the next one: the published state is recorded only after the
        broker has read it.

        Args:
            force: write the files even if nothing has changed.
            reload: run the operator's reload command; false before the broker's first start.

        Raises:
            Misconfigured: the broker's folder denies access.
            Transient: the disk is full, the reload failed, or the broker did not prove that it uses its
                files; the next call tries again.
        """
        changed, mark, known = self._write(force=force)
        if known:
            return PublishedList(changed=False, reloaded=False)
        command = self._settings.reload_command if reload else ()
        if command:
            mosquitto.reload(command)
        elif changed:  # the broker cannot have read the new files yet
            return PublishedList(changed=True, reloaded=False)
        words = self._probe.until_revoked(PROVE_S if command else 0.0)
        if not words:
            self.book.note_published(mark)
        elif command:
            raise mosquitto.unproven(command, words)
        return PublishedList(changed=changed, reloaded=not words)

    def _write(self, *, force: bool) -> tuple[bool, str, bool]:
        """Whether files were written, their digest, and whether the broker is known to use them."""
        with self.places.alone():
            self._refresh_own()
            refresh_server(self.places, self.authority, wall=self._wall)
            barred, revoked = self.book.barred(), self.book.revoked()
            conf = mosquitto.render_conf(self.places.broker)
            pair = self.places.broker.folder / mosquitto.SERVER
            with disk_errors(pair):
                shown = hashlib.sha256(pair.read_bytes()).hexdigest()
            tasks = self.places.broker.tasks
            said = [barred, [one.serial for one in revoked], conf, shown, *([list(tasks)] if tasks else [])]
            mark = hashlib.sha256(json.dumps(said).encode()).hexdigest()
            if not force and self.book.written() == mark and self.places.broker_written:
                return False, mark, self.book.published() == mark
            self.book.note_written("")
            number, begin = self.book.next_list()
            probe = self.authority.issue_probe()
            write_atomic(self.places.probe, probe.both_pem)
            crl = self.authority.crl_pem([*revoked, Revoked(probe.serial, begin)], number=number, begin=begin)
            mosquitto.write_rules(self.places.broker, barred, crl)
            self.book.note_written(mark)
        return True, mark, False


def check_fleet(authority: Authority, fleet: str, places: IdentityPaths) -> None:
    """Refuse an authority of another fleet.

    Raises:
        Misconfigured: it is another fleet's.
    """
    if authority.fleet != fleet:
        raise Misconfigured(
            f"fleet: the configuration says {fleet!r}, but {places.authority} is the authority of "
            f"{authority.fleet!r}; use another state_dir (or change it back)"
        )


def _check_signature(key: PublicKey, request: RenewRequest) -> None:
    try:
        signature = base64.b64decode(request.signature, validate=True)
        key.verify(signature, _RENEW_WORDS + request.csr.encode(), ec.ECDSA(hashes.SHA256()))
    except (binascii.Error, ValueError, InvalidSignature):
        raise Refused(Reason.MALFORMED, "signature: not made with the key of the certificate") from None
