"""Ten thousand devices on a few MQTT connections: the coordinator cannot tell, and the machine can bear it.

``python -P -m lichen_lab.benchmarks.support.crowd ARGS.json`` announces all devices, waits for the offer of a
round, sends the updates of all but the last device at once, and prints a JSON line when each has its receipt.
A line on its input makes the last device deliver, so that the round closes only after the measurement.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from protocol.errors import Transient
from protocol.frames.frame import digest, encode_frame, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Encoded
from protocol.messages import ModalityState, Offer, Receipt, State, decode, encode
from protocol.topics import Kind, broadcast_topic, device_topic, parse

_MOUTHS: Final = 4
"""Connections that publish."""
_RESEND_S: Final = 30.0
_KEEPALIVE_S: Final = 600
Template = tuple[UpdateHeader, dict[str, Encoded]]


class Crowd:
    """The devices.

    Args:
        fleet: its name.
        port: of the broker.
        devices: how many; the last one delivers when the others are measured.
        templates: updates, sent under the devices' own names.
    """

    def __init__(self, fleet: str, port: int, devices: int, templates: list[Template]) -> None:
        self._fleet = fleet
        self._names = [f"device-{n:05d}" for n in range(devices)]
        self._templates = templates
        self._offer: Offer | None = None
        self._waits: dict[str, str] = {}
        self._sent: dict[str, float] = {}
        self._took: list[float] = []
        self._refused: list[str] = []
        self._news = threading.Condition()
        self._ear = self._connect("ear", port)
        self._mouths = [self._connect(f"mouth-{n}", port) for n in range(_MOUTHS)]
        receipts = device_topic(fleet, "any", Kind.RECEIPT).replace("/any/", "/+/")
        self._ear.subscribe([(broadcast_topic(fleet, Kind.OFFER), 1), (receipts, 1)])

    def _connect(self, name: str, port: int) -> paho.Client:
        client = paho.Client(CallbackAPIVersion.VERSION2, f"crowd-{name}", clean_session=True)
        client.on_message = self._take
        client.max_inflight_messages_set(0)
        client.connect("127.0.0.1", port, _KEEPALIVE_S)
        client.loop_start()
        return client

    def _take(self, _client: object, _user: object, message: paho.MQTTMessage) -> None:
        if not message.payload:
            return
        said, device = decode(bytes(message.payload), Offer, Receipt), parse(message.topic).device
        with self._news:
            if isinstance(said, Offer):
                self._offer = said
            elif isinstance(said, Receipt) and device and self._waits.get(device) == said.digest:
                del self._waits[device]
                self._took.append(time.perf_counter() - self._sent[device])
                if said.status != "accepted":
                    self._refused.append(f"{said.reason}: {said.detail}")
            self._news.notify_all()

    def come_online(self) -> None:
        """Publish all states, and wait until the broker has them."""
        sent = [
            self._say(n, Kind.STATE, self._state(n, name), retain=True) for n, name in enumerate(self._names)
        ]
        for one in sent:
            one.wait_for_publish(60.0)

    def _state(self, n: int, name: str) -> bytes:
        header, _ = self._templates[n % len(self._templates)]
        known = {key: ModalityState(windows=counts) for key, counts in header.counts.items()}
        return encode(
            State(status="online", device=name, roles=("train",), modalities=known, windows=header.samples)
        )

    def _say(self, n: int, kind: Kind, payload: bytes, *, retain: bool = False) -> paho.MQTTMessageInfo:
        topic = device_topic(self._fleet, self._names[n], kind)
        return self._mouths[n % _MOUTHS].publish(topic, payload, 1, retain=retain)

    def play(self, number: int, limit_s: float) -> dict[str, Any]:
        """Send all updates of a round but the last; returns when each has its receipt."""
        offer = self._offer_of(number, limit_s)
        frames = [self._frame(n, name, offer) for n, name in enumerate(self._names)]
        print(json.dumps({"ready": number}), flush=True)  # noqa: T201 - the starter reads our lines
        self._took.clear()
        begun = time.perf_counter()
        for n, frame in enumerate(frames[:-1]):
            self._send(n, frame)
        again = 0
        while not self._receipted(_RESEND_S):
            if time.perf_counter() - begun > limit_s:
                raise Transient(f"{len(self._waits)} updates have no receipt after {limit_s:g} s")
            late = set(self._waits)
            again += len(late)
            for n, frame in enumerate(frames[:-1]):
                if self._names[n] in late:
                    self._say(n, Kind.UPDATE, frame)
        seconds = time.perf_counter() - begun
        report = {"round": number, "seconds": seconds, "took_s": list(self._took), "again": again}
        self._last = frames[-1]
        return report | {"refused": self._refused[:3], "bytes": len(frames[0])}

    def close_round(self) -> None:
        """The last device delivers."""
        self._send(len(self._names) - 1, self._last)
        self._receipted(_RESEND_S)

    def _send(self, n: int, frame: bytes) -> None:
        with self._news:
            self._waits[self._names[n]] = digest(frame)
            self._sent[self._names[n]] = time.perf_counter()
        self._say(n, Kind.UPDATE, frame)

    def _receipted(self, seconds: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: not self._waits, seconds)

    def _offer_of(self, number: int, limit_s: float) -> Offer:
        def here() -> bool:
            return self._offer is not None and self._offer.round == number

        with self._news:
            if not self._news.wait_for(here, limit_s) or self._offer is None:
                raise Transient(f"no offer of round {number} in {limit_s:g} s")
            return self._offer

    def _frame(self, n: int, name: str, offer: Offer) -> bytes:
        header, tensors = self._templates[n % len(self._templates)]
        own = header.model_copy(update={"device": name, "round": offer.round, "base": offer.base})
        return encode_frame(own, tensors)


def main(args: dict[str, Any], frames: list[bytes]) -> None:
    """Play the rounds that ``args`` asks for."""
    templates = [open_frame(frame, UpdateHeader) for frame in frames]
    crowd = Crowd(args["fleet"], args["port"], args["devices"], templates)
    crowd.come_online()
    for number in range(1, args["rounds"] + 1):
        print(json.dumps(crowd.play(number, args["limit_s"])), flush=True)  # noqa: T201 - as above
        sys.stdin.readline()
        crowd.close_round()


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    main(given, [Path(file).read_bytes() for file in given["frames"]])
