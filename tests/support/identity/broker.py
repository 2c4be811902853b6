"""The real Mosquitto as the coordinator configures it, and test clients."""

import asyncio
import getpass
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from coordinator.identity import mosquitto
from coordinator.identity.certificates import Revoked
from runtime.mqtt.link import Link, Message
from runtime.settings.load import MqttSettings
from tests.support.identity.pki import FLEET, HOST, Pki, Shown
from tests.support.network.brokers import BrokerProcess, free_port, require_mosquitto
from tests.support.network.links import running
from tests.support.services import beside


class SecuredBroker:
    """Mosquitto with ``pki``'s certificates; not started."""

    def __init__(self, folder: Path, pki: Pki, tasks: tuple[str, ...] = ()) -> None:
        program = require_mosquitto()
        self.pki = pki
        self.port = free_port()
        self._files = mosquitto.Broker(folder, FLEET, self.port, HOST, user=getpass.getuser(), tasks=tasks)
        self._revoked: list[Revoked] = []
        self._barred: list[str] = []
        folder.mkdir(parents=True)
        server = pki.authority.issue_server()
        both = server.certificate_pem.encode() + server.key_pem
        mosquitto.write_server(self._files, pki.authority.ca_pem, both)
        self._write()
        self.process = BrokerProcess(
            [program, "-v", "-c", str(folder / mosquitto.CONF)], self.port, folder / "broker.log"
        )

    def _write(self) -> None:
        number = len(self._revoked) + 1
        begin = self.pki.time() - 86400 + number
        crl = self.pki.authority.crl_pem(self._revoked, number=number, begin=begin)
        mosquitto.write_rules(self._files, self._barred, crl)

    def revoke(self, name: str, shown: Shown) -> None:
        """Revoke as ``lichen device revoke`` does, and reload."""
        self._revoked.append(Revoked(shown.serial, self.pki.time()))
        self._barred.append(name)
        self._write()
        os.kill(self.process.pid, signal.SIGHUP)


class Client:
    """A link that records messages."""

    def __init__(self, settings: MqttSettings, client_id: str, filters: list[str]) -> None:
        self.link = Link(settings, client_id, filters=[(one, 1) for one in filters])
        self.heard: list[Message] = []

    async def listen(self) -> None:
        async for message in self.link.messages():
            self.heard.append(message)
            message.ack()

    def topics(self) -> list[str]:
        return [message.topic for message in self.heard]

    async def until(self, topic: str, count: int = 1, seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while self.topics().count(topic) < count:  # noqa: ASYNC110 - several lists, no event
                await asyncio.sleep(0.01)


@asynccontextmanager
async def connected(
    settings: MqttSettings, client_id: str, filters: list[str], **options: Any
) -> AsyncIterator[Client]:
    """A client that is connected and receives; ``options``: of the link's ``run``."""
    client = Client(settings, client_id, filters)
    async with running(client.link, **options), beside(client.listen()):
        yield client


async def turned_away(
    settings: MqttSettings, client_id: str = "x", seconds: float = 10.0, saying: str = ""
) -> str:
    """Try to connect until the link gives the reason for its failure; returns it.

    ``saying``: wait until it contains this. The broker's alert is lost if the broker closes before we read.
    """
    link = Link(settings, client_id, filters=[])
    async with running(link, connected=False), asyncio.timeout(seconds):
        while link.why in {"not started", f"connecting to {settings.where}"}:
            assert not link.connected, "it was let in"
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # the second attempt must fail, too
        while saying not in link.why:  # noqa: ASYNC110 - the text is polled, as status does
            await asyncio.sleep(0.01)
        assert not link.connected, "it was let in"
        return link.why
