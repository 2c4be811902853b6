"""An authority with its enrolment service on a free port, and a client that may send anything."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.identity.authority import Authority
from coordinator.identity.enrolment import EnrolmentAuthority
from coordinator.identity.http_api.service import EnrolmentServer
from coordinator.identity.paths import IdentityPaths
from runtime.clock import SystemClock
from tests.support.network.brokers import HOST, free_port
from tests.support.services import beside

FLEET = "test"


def settings(folder: Path, **identity: object) -> CoordinatorSettings:
    values = {"host": HOST, "port": free_port(), **identity}
    return CoordinatorSettings.model_validate(
        {"fleet": FLEET, "state_dir": folder / "state", "task": folder / "task.toml", "identity": values}
    )


def make_desk(folder: Path, wall=None, **identity: object) -> EnrolmentAuthority:
    chosen = settings(folder, **identity)
    given = {} if wall is None else {"wall": wall}
    Authority.create(IdentityPaths.of(chosen).authority, FLEET, ["localhost", HOST], **given)
    return EnrolmentAuthority(chosen, **given)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def csr(key, name: str = "whatever", algorithm=None) -> str:
    """A request that asks for more than it will get."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, algorithm or hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def signature(key, request: str) -> str:
    made = key.sign(b"lichen renew v1\n" + request.encode(), ec.ECDSA(hashes.SHA256()))
    return base64.b64encode(made).decode()


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict:
        return json.loads(self.body)


class Client:
    """Talks to the service over TLS, byte by byte if wanted."""

    def __init__(self, office: EnrolmentServer, desk: EnrolmentAuthority) -> None:
        self.office = office
        self.desk = desk
        self.port = office.door.port
        self.context = ssl.create_default_context(cadata=desk.authority.ca_pem)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            HOST, self.port, ssl=self.context, server_hostname="localhost", ssl_shutdown_timeout=1
        )

    async def raw(self, data: bytes, seconds: float = 10.0) -> bytes:
        """Send, and read until the peer closes."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            async with asyncio.timeout(seconds):
                return await reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""
        finally:
            writer.close()

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        given = {"host": "localhost", "connection": "close", "content-length": str(len(body)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items() if v), "", ""]
        return parsed(await self.raw("\r\n".join(lines).encode() + body))

    async def post(self, path: str, **message: object) -> Answered:
        return await self.ask("POST", path, json.dumps(message).encode())


def parsed(data: bytes) -> Answered:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return Answered(int(first.split()[1]), headers, body)


@asynccontextmanager
async def service(folder: Path, wall=None, **identity: object) -> AsyncIterator[Client]:
    """The enrolment service, running."""
    identity_settings = settings(folder, **identity).identity
    with (
        make_desk(folder, wall, **identity) as desk,
        closing(EnrolmentServer(desk, identity_settings, SystemClock())) as office,
    ):
        async with beside(office.serve, office.keep, forever=True):
            yield Client(office, desk)
