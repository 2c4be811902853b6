"""The simulated broker and a real Mosquitto play the same scenes and show the same."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop, run
from lichen_lab.simulation.deterministic.network.broker import SimBroker
from lichen_lab.simulation.deterministic.network.link import SimConnection
from lichen_lab.simulation.deterministic.network.message_faults import MessageFaults
from lichen_lab.simulation.processes.tcp_proxy import Proxy
from runtime.mqtt.link import Link, Will
from tests.support.lab.world_scenes import SCENES, Client
from tests.support.network.brokers import BrokerProcess, mosquitto_process
from tests.support.network.links import quick
from tests.support.services import until


class _Simulated:
    def __init__(self) -> None:
        self.broker = SimBroker(MessageFaults(1))
        self.clients: dict[Client, str] = {}

    def client(self, client_id: str, *filters: tuple[str, int], will: Will | None = None) -> Client:
        connect = partial(SimConnection, broker=self.broker)
        client = Client(Link(quick(1883), client_id, filters=filters, connect=connect), will=will)
        self.clients[client] = client_id
        return client

    async def cut(self, client: Client) -> None:
        before = client.link.counters.reconnects
        assert self.broker.cut(self.clients[client])
        await until(lambda: client.link.counters.reconnects > before and client.link.connected)

    async def settle(self) -> None:
        await asyncio.sleep(5)

    async def crash(self) -> None:
        await self.settle()
        self.broker.save()
        self.broker.crash("saved")
        await asyncio.sleep(1)
        self.broker.restart()


class _Real:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.clients: list[Client] = []
        self.proxies: dict[Client, Proxy] = {}

    def client(self, client_id: str, *filters: tuple[str, int], will: Will | None = None) -> Client:
        proxy = Proxy(self.broker.port).start()
        client = Client(Link(quick(proxy.port), client_id, filters=filters), will=will)
        self.clients.append(client)
        self.proxies[client] = proxy
        return client

    async def cut(self, client: Client) -> None:
        before = client.link.counters.reconnects
        await asyncio.to_thread(self.proxies[client].cut)
        await until(lambda: client.link.counters.reconnects > before and client.link.connected)

    async def settle(self) -> None:
        """Nothing has come for a while."""
        while True:
            seen = [len(client.got) for client in self.clients]
            await asyncio.sleep(0.25)
            if seen == [len(client.got) for client in self.clients]:
                return

    async def crash(self) -> None:
        await asyncio.sleep(2.2)  # Mosquitto saves every second here
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)


async def _played(net: Any, scene: str) -> list[Any]:
    try:
        return await SCENES[scene](net)
    finally:
        for client in net.clients:
            await client.close()


async def _really(broker: BrokerProcess, scene: str) -> list[Any]:
    net = _Real(broker)
    try:
        async with asyncio.timeout(40):
            return await _played(net, scene)
    finally:
        for proxy in net.proxies.values():
            proxy.close()


async def _simulated(_: SimLoop, scene: str) -> list[Any]:
    return await _played(_Simulated(), scene)


@pytest.mark.mosquitto
@pytest.mark.parametrize("scene", SCENES)
def test_mosquitto_and_the_simulated_broker_show_the_same(scene, tmp_path: Path):
    broker = mosquitto_process(tmp_path / "mosquitto").start()
    try:
        real = asyncio.run(_really(broker, scene))
    finally:
        broker.stop()
    assert run(partial(_simulated, scene=scene), 1) == real
