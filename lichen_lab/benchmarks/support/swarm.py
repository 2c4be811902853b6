"""Many devices in one process: a real MQTT connection each, no sensors, updates made beforehand.

``python -P -m lichen_lab.benchmarks.support.swarm ARGS.json`` connects them all, says that they are online,
waits until every
one has an offer, sends the whole fleet's updates (at once, or at a rate), and waits for every receipt; round
after round. It prints one JSON line a round. paho's clients are driven from one event loop: a thread for
each device would measure threads.
"""

import asyncio
import json
import resource
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from protocol.errors import Transient
from protocol.frames.frame import digest, encode_frame, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Encoded
from protocol.messages import ModalityState, Offer, Receipt, State, Want, decode, encode
from protocol.topics import Kind, broadcast_topic, device_topic

_KEEPALIVE_S: Final = 600
_AT_ONCE: Final = 50
"""Maximum number of connections in progress."""
_SPARE_FILES: Final = 200
_PER_CLIENT: Final = 4
_RESEND_S: Final = 20.0


@dataclass
class SwarmDevice:
    """One device and the message that it waits for."""

    name: str
    fleet: str
    template: tuple[UpdateHeader, dict[str, Encoded]]
    client: paho.Client = field(init=False)
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    offer: Offer | None = None
    sent_at: float = 0.0
    frame: bytes = b""
    waits_for: str = ""
    took_s: float = 0.0
    again: int = 0
    refused: str = ""

    def open(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        """Connect; the event loop watches paho's socket."""
        client = paho.Client(
            CallbackAPIVersion.VERSION2, f"agent-{self.fleet}-{self.name}", clean_session=True
        )
        client.on_socket_open = lambda _c, _u, sock: loop.add_reader(sock, client.loop_read)
        client.on_socket_close = lambda _c, _u, sock: _ignore(loop, sock)
        client.on_socket_register_write = lambda _c, _u, sock: loop.add_writer(sock, client.loop_write)
        client.on_socket_unregister_write = lambda _c, _u, sock: _written(loop, sock)
        client.on_connect = self._greet
        client.on_message = self._take
        client.max_inflight_messages_set(0)
        self.client = client
        client.connect("127.0.0.1", port, _KEEPALIVE_S)
        sock: Any = client.socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _greet(self, *_: object) -> None:
        header, _tensors = self.template
        known = {name: ModalityState(windows=counts) for name, counts in header.counts.items()}
        state = State(
            status="online", device=self.name, roles=("train",), modalities=known, windows=header.samples
        )
        self.client.subscribe(broadcast_topic(self.fleet, Kind.OFFER), 0)
        self.client.subscribe(device_topic(self.fleet, self.name, Kind.RECEIPT), 1)
        self.client.publish(device_topic(self.fleet, self.name, Kind.STATE), encode(state), 1, retain=True)
        self.connected.set()

    def _take(self, _client: object, _user: object, message: paho.MQTTMessage) -> None:
        if not message.payload:  # the round is over
            return
        said = decode(bytes(message.payload), Offer, Receipt, Want)
        if isinstance(said, Offer):
            self.offer = said if said.asks(self.name) else None
        elif isinstance(said, Receipt) and said.digest == self.waits_for:
            self.took_s = time.perf_counter() - self.sent_at
            self.waits_for = ""
            self.refused = "" if said.status == "accepted" else f"{said.reason}: {said.detail}"

    def prepare(self, offer: Offer) -> None:
        """Write the frame for this offer."""
        header, tensors = self.template
        own = header.model_copy(update={"device": self.name, "round": offer.round, "base": offer.base})
        self.frame = encode_frame(own, tensors)
        self.waits_for = digest(self.frame)

    def send(self) -> None:
        """Publish the frame and record the time."""
        self.sent_at = time.perf_counter()
        self.client.publish(device_topic(self.fleet, self.name, Kind.UPDATE), self.frame, 1)

    def send_again(self) -> None:
        """Send again without a receipt, as an agent does; the time counts from the first sending."""
        self.again += 1
        self.client.publish(device_topic(self.fleet, self.name, Kind.UPDATE), self.frame, 1)


def _ignore(loop: asyncio.AbstractEventLoop, sock: Any) -> None:
    loop.remove_reader(sock)
    loop.remove_writer(sock)


def _written(loop: asyncio.AbstractEventLoop, sock: Any) -> None:
    loop.remove_writer(sock)


async def _until(devices: list[SwarmDevice], done: Any, limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not all(done(device) for device in devices):
        if time.monotonic() > deadline:
            left = sum(not done(device) for device in devices)
            raise Transient(f"{left} of {len(devices)} devices waited {limit_s:g} s in vain: {what}")
        await asyncio.sleep(0.02)


async def _connect(devices: list[SwarmDevice], port: int) -> None:
    loop = asyncio.get_running_loop()
    for at in range(0, len(devices), _AT_ONCE):
        some = devices[at : at + _AT_ONCE]
        for device in some:
            device.open(port, loop)
        await _until(some, lambda device: device.connected.is_set(), 30.0, "connecting")


async def _round(devices: list[SwarmDevice], number: int, rate: float, limit_s: float) -> dict[str, Any]:
    """Play one round at ``rate`` updates a second; 0: as fast as possible."""
    await _until(
        devices, lambda d: d.offer is not None and d.offer.round == number, limit_s, f"no offer of {number}"
    )
    for device in devices:
        if device.offer is not None:
            device.prepare(device.offer)
    print(json.dumps({"ready": number}), flush=True)  # noqa: T201 - the starter reads our lines
    begun = time.perf_counter()
    for at, device in enumerate(devices):
        if rate:
            await asyncio.sleep(max(0.0, begun + at / rate - time.perf_counter()))
        elif at % _AT_ONCE == 0:
            await asyncio.sleep(0)  # receipts are read while the rest is sent
        device.send()
    sent_s = time.perf_counter() - begun
    while waiting := [device for device in devices if device.waits_for]:
        oldest = begun + limit_s
        if time.perf_counter() > oldest:
            raise Transient(f"{len(waiting)} of {len(devices)} updates have no receipt after {limit_s:g} s")
        for device in waiting:
            if time.perf_counter() - device.sent_at > _RESEND_S * (1 + device.again):
                device.send_again()
        await asyncio.sleep(0.005)
    over = max(device.sent_at + device.took_s for device in devices)
    return {
        "round": number,
        "seconds": over - begun,
        "sent_s": sent_s,
        "took_s": [device.took_s for device in devices],
        "again": sum(device.again for device in devices),
        "refused": [device.refused for device in devices if device.refused][:3],
        "bytes": len(devices[0].frame),
    }


async def main(args: dict[str, Any], frames: list[bytes]) -> None:
    """Run the swarm that ``args`` describes, whose devices send ``frames`` in turn, under their own names.

    Raises:
        Transient: devices cannot connect, or offers or receipts do not come in time.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _PER_CLIENT * args["devices"] + _SPARE_FILES
    if most != resource.RLIM_INFINITY and most < needed:
        raise Transient(f"{args['devices']} connections need {needed} open files; ulimit -Hn allows {most}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
    templates = [open_frame(frame, UpdateHeader) for frame in frames]
    devices = [
        SwarmDevice(f"device-{n:04d}", args["fleet"], templates[n % len(templates)])
        for n in range(args["devices"])
    ]
    await _connect(devices, args["port"])
    for number, rate in enumerate(args["rates"], 1):
        print(json.dumps(await _round(devices, number, rate, args["limit_s"])), flush=True)  # noqa: T201 - as above
    for device in devices:
        device.client.disconnect()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    asyncio.run(main(given, [Path(file).read_bytes() for file in given["frames"]]))
