"""Certificates for tests of identity: the real authority, with a clock that the test sets."""

import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from coordinator.identity import certificates
from coordinator.identity.authority import Authority
from edge_agent.identity import keys
from edge_agent.identity.files import Identity, IdentityFiles
from runtime.settings.load import MqttSettings, TlsSettings
from tests.support.network.links import quick

FLEET = "test"
HOST = "127.0.0.1"
DAY_S = 86400.0


class Time:
    """A wall clock that the test can set; it then runs with the machine's."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@dataclass(frozen=True)
class Shown:
    """PEM files of one client."""

    pair: Path
    ca: Path
    serial: int

    def mqtt(self, port: int, **options: object) -> MqttSettings:
        tls = TlsSettings(ca_file=self.ca, cert_file=self.pair, key_file=self.pair)
        return quick(port, host=HOST, tls=tls, **options)


class Pki:
    """An authority of its own in ``folder``; ``ahead_s`` moves its time of issue."""

    def __init__(self, folder: Path, ahead_s: float = 0.0) -> None:
        self.folder = folder
        self.time = Time(ahead_s)
        self._begin(ahead_s)
        self.ca = folder / "ca.pem"
        self.ca.write_text(self.authority.ca_pem)

    def _begin(self, ahead_s: float) -> None:
        """The authority itself is a year old, or as young as its time allows."""
        self.time.ahead_s = ahead_s if ahead_s > 0 else -366 * DAY_S
        self.authority = Authority.create(
            self.folder / "authority", FLEET, [HOST, "localhost"], wall=self.time
        )
        self.time.ahead_s = ahead_s

    def device(self, name: str, days: float = 90.0) -> Shown:
        key = keys.new_key()
        made = self.authority.issue_device(keys.request_pem(key, name), name, days)
        return self._write(name, made.certificate_pem.encode() + keys.key_pem(key), made.serial)

    def coordinator(self, task: str | None = None) -> Shown:
        made = self.authority.issue_coordinator(task)
        return self._write(f"coordinator-{task}", made.certificate_pem.encode() + made.key_pem, made.serial)

    def server(self, hosts: list[str] | None = None) -> Path:
        made = self.authority.issue_server(hosts)
        path = self.folder / f"server-{made.serial:x}.pem"
        path.write_bytes(made.certificate_pem.encode() + made.key_pem)
        return path

    def dated_server(self, begin_s: float, end_s: float) -> Path:
        """A server's certificate that is valid between two times, in seconds from now."""
        key, now, ours = certificates.new_key(), time.time(), self.authority
        made = certificates.signed(
            ours._key,
            ours._certificate,
            key.public_key(),
            HOST,
            certificates.Span(now + begin_s, now + end_s),
            purpose=certificates.SERVER,
            hosts=[HOST],
        )
        path = self.folder / f"server-{made.serial_number:x}.pem"
        path.write_bytes(certificates.pem(made).encode() + certificates.key_pem(key))
        return path

    def enrolled(
        self, state_dir: Path, name: str, url: str = "https://127.0.0.1:1", days: float = 90.0
    ) -> IdentityFiles:
        """The files that ``lichen agent enroll`` leaves."""
        folder = IdentityFiles(state_dir / "identity")
        folder.make()
        shown = self.device(name, days)
        folder.write(folder.authority, self.ca.read_bytes())
        folder.write(folder.pair, shown.pair.read_bytes())
        now = self.time()
        record = Identity(
            fleet=FLEET,
            device=name,
            url=url,
            ca_sha256=self.authority.ca_sha256,
            invite_sha256="0" * 64,
            issued_at=now,
            not_after=float(int(now + days * DAY_S)),
            serial=format(shown.serial, "x"),
        )
        folder.write(folder.record, record.model_dump_json().encode())
        return folder

    def _write(self, name: str, pem: bytes, serial: int) -> Shown:
        path = self.folder / f"{quote(name, safe='')}-{serial:x}.pem"
        path.write_bytes(pem)
        path.chmod(0o600)
        return Shown(path, self.ca, serial)
