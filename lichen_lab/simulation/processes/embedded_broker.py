"""The embedded MQTT broker of the demo and the tests: iotcore (rumqttd inside) as a process of its own.

``python -P -m lichen_lab.simulation.processes.embedded_broker --port 1883`` listens on 127.0.0.1 only,
speaks MQTT 5 there (3.1.1 with
``--port-v3``), prints one line when it is ready and ends on SIGTERM. No TLS, no access list, nothing survives
a restart: for production use Mosquitto.
"""

import argparse
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from protocol.errors import Transient

HOST: Final = "127.0.0.1"
READY: Final = "broker ready"
_START_S: Final = 10.0
_PORTS: Final = range(20_000, 32_768)
_TRIES: Final = 100
_HEAD: Final = """id = 0

[router]
id = 0
max_connections = 10010
# A QoS 1 subscriber to a wildcard gets at most this many retained messages.
max_outgoing_packet_count = 10000
# rumqttd's defaults: with smaller segments, messages that had been acknowledged were lost.
max_segment_size = 104857600
max_segment_count = 10
"""
_LISTENER: Final = """
[{version}.1]
name = "{version}"
listen = "{host}:{port}"
next_connection_delay_ms = 1

[{version}.1.connections]
connection_timeout_ms = 60000
max_payload_size = {payload}
max_inflight_count = 100
dynamic_filters = true
"""
MAX_PAYLOAD_BYTES: Final = 2 * 1024 * 1024


def config(port: int, port_v3: int | None = None) -> str:
    """The broker's TOML: MQTT 5 on ``port``, MQTT 3.1.1 on ``port_v3``."""
    text = _HEAD + _LISTENER.format(version="v5", host=HOST, port=port, payload=MAX_PAYLOAD_BYTES)
    if port_v3 is not None:
        text += _LISTENER.format(version="v4", host=HOST, port=port_v3, payload=MAX_PAYLOAD_BYTES)
    return text


def command(port: int) -> list[str]:
    """Starts the broker on that port."""
    return [
        sys.executable,
        "-P",
        "-m",
        "lichen_lab.simulation.processes.embedded_broker",
        "--port",
        str(port),
    ]


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now, for a program that will.

    It is below the ports that Linux gives to outgoing connections: one of those could take it before the
    program listens, or while it restarts.

    Raises:
        Transient: none was free in many tries.
    """
    for _ in range(_TRIES):
        port = secrets.choice(_PORTS)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((HOST, port))
            return port
    raise Transient(f"no free TCP port on {HOST} in {_TRIES} tries of {_PORTS.start} to {_PORTS.stop - 1}")


def _listening(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(0.5)
        return sock.connect_ex((HOST, port)) == 0


def serve(port: int, port_v3: int | None = None, state: Path | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status. ``state``: folder for the broker's TOML."""
    from iotcore import IotCoreBroker  # noqa: PLC0415 - an extra

    # rumqttd reports every packet as an error record.
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL + 1)
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    with tempfile.TemporaryDirectory(prefix="lichen-broker-") as folder:
        file = (state or Path(folder)) / "broker.toml"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(config(port, port_v3), encoding="utf-8")
        except OSError as error:
            print(f"lichen_lab.simulation.processes.embedded_broker: --state: {error}", file=sys.stderr)  # noqa: T201 - a program's words
            return 73
        broker = IotCoreBroker(config_path=str(file))
        try:
            broker.check_ports()
        except OSError as error:
            print(f"lichen_lab.simulation.processes.embedded_broker: {HOST}:{port}: {error}", file=sys.stderr)  # noqa: T201 - a program's words
            return 69
        broker.start()
        ports = [p for p in (port, port_v3) if p is not None]
        deadline = time.monotonic() + _START_S
        while not all(_listening(p) for p in ports):
            if time.monotonic() > deadline:
                print("lichen_lab.simulation.processes.embedded_broker: it does not listen", file=sys.stderr)  # noqa: T201 - as above
                return 70
            time.sleep(0.01)
        print(f"{READY} {HOST}:{port}", flush=True)  # noqa: T201 - the line that starters wait for
        while not asked.wait(3600):
            pass
    return 0


def _port(text: str) -> int:
    """A command line's port; argparse says what was wrong with another."""
    if not text.isdecimal() or int(text) > 65535:  # noqa: PLR2004 - the largest TCP port
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def main() -> None:
    """Command line of ``python -P -m lichen_lab.simulation.processes.embedded_broker``."""
    parser = argparse.ArgumentParser(
        prog="lichen_lab.simulation.processes.embedded_broker", description=__doc__
    )
    parser.add_argument("--port", type=_port, default=1883, help="MQTT 5; 0 takes a free one")
    parser.add_argument("--port-v3", type=_port, default=None, help="MQTT 3.1.1 as well, on this port")
    parser.add_argument("--state", type=Path, default=None, help="keep the broker's own TOML in this folder")
    options = parser.parse_args()
    if options.port_v3 is not None and options.port_v3 in {0, options.port}:
        parser.error("--port-v3 needs a port of its own")
    status = serve(options.port or free_port(), options.port_v3, options.state)
    sys.stdout.flush()
    os._exit(status)  # rumqttd has no way to stop; its threads end with the process


if __name__ == "__main__":
    main()
