"""One working case for each kind of source: the table, the expected samples, and hardware that answers."""

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paho.mqtt import publish
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.agent.data import write_toy
from tests.support.network.brokers import embedded
from tests.support.sensors import fake_iio
from tests.support.sensors.gstreamer import require_gstreamer


@dataclass(frozen=True)
class Case:
    table: dict[str, Any]
    channels: dict[str, int]
    live: bool = True
    """Its times are near the present."""


@asynccontextmanager
async def beside(feed: Callable[[], None], every_s: float) -> AsyncIterator[None]:
    """Call ``feed`` repeatedly meanwhile."""

    async def go_on() -> None:
        while True:
            feed()
            await asyncio.sleep(every_s)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def replay(folder: Path) -> AsyncIterator[Case]:
    write_toy(folder, 30)
    yield Case({"kind": "replay", "file": "toy.npz", "speed": 20.0}, {"acc": 3, "gyr": 2}, live=False)


@asynccontextmanager
async def hotplug(folder: Path) -> AsyncIterator[Case]:
    write_toy(folder, 30)
    (folder / "plugged").touch()
    table = {"kind": "hotplug", "file": "toy.npz", "when": "plugged", "speed": 20.0}
    yield Case(table, {"acc": 3, "gyr": 2}, live=False)


@asynccontextmanager
async def system(_: Path) -> AsyncIterator[Case]:
    modalities = {"cpu": ["load.1", "memory.percent"]}
    yield Case({"kind": "system", "interval_s": 0.05, "modalities": modalities}, {"cpu": 2})


@asynccontextmanager
async def iio(folder: Path) -> AsyncIterator[Case]:
    device = fake_iio.mpu6050(folder, buffer=True)

    def capture() -> None:
        if device.get("buffer/enable") == "1":
            device.capture(struct.pack(">hhhxx", 1, 2, 3) + struct.pack("<q", time.time_ns()))

    async with beside(capture, 0.02):
        yield Case(fake_iio.table(folder, mode="buffer"), {"acc": 3})
    device.close()


@asynccontextmanager
async def serial(folder: Path) -> AsyncIterator[Case]:
    master, slave = os.openpty()
    (folder / "port").symlink_to(os.ttyname(slave))
    os.set_blocking(master, False)

    def say() -> None:
        try:
            os.write(master, b"3.5,270\r\n")
        except BlockingIOError:  # no reader
            return

    table = {"kind": "serial", "port": "port", "baud": 115200, "modalities": {"wind": {"columns": [0, 1]}}}
    async with beside(say, 0.02):
        yield Case(table, {"wind": 2})
    os.close(slave)
    os.close(master)


@asynccontextmanager
async def mqtt(folder: Path) -> AsyncIterator[Case]:
    broker = embedded(folder).start()
    table = {
        "kind": "mqtt",
        "port": broker.port,
        "modalities": {"climate": {"channels": [{"topic": "home/room", "path": "temperature"}]}},
    }

    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    async with beside(lambda: client.publish("home/room", '{"temperature": 21.5}') and None, 0.05):
        yield Case(table, {"climate": 1})
    client.disconnect()
    client.loop_stop()
    broker.stop()


def tell(port: int, topic: str, payload: str, *, retain: bool = False) -> None:
    publish.single(topic, payload, qos=1, retain=retain, hostname="127.0.0.1", port=port, protocol=MQTTv5)


@asynccontextmanager
async def camera(_: Path) -> AsyncIterator[Case]:
    require_gstreamer()
    size = {"width": 8, "height": 8, "channels": 1, "rate_hz": 20}
    yield Case({"kind": "camera", "device": "test", "modality": "eye", **size}, {"eye": 64})


@asynccontextmanager
async def microphone(_: Path) -> AsyncIterator[Case]:
    require_gstreamer()
    yield Case({"kind": "microphone", "device": "test", "modality": "ear", "channels": 2}, {"ear": 2})


@asynccontextmanager
async def gstreamer(_: Path) -> AsyncIterator[Case]:
    require_gstreamer()
    pipeline = "audiotestsrc is-live=true samplesperbuffer=100"
    table = {"kind": "gstreamer", "modality": "ear", "media": "sound", "pipeline": pipeline, "rate_hz": 8000}
    yield Case(table, {"ear": 1})


CASES: dict[str, Callable[[Path], AbstractAsyncContextManager[Case]]] = {
    "camera": camera,
    "gstreamer": gstreamer,
    "hotplug": hotplug,
    "iio": iio,
    "microphone": microphone,
    "mqtt": mqtt,
    "replay": replay,
    "serial": serial,
    "system": system,
}
