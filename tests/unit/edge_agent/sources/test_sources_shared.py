"""One reader of a sensor for several tasks: opened once, and its failures and its end reach each of them."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from edge_agent.sources.gstreamer.source import GStreamer
from edge_agent.sources.mqtt.source import Mqtt
from edge_agent.sources.replay import Replay
from edge_agent.sources.shared import (
    MAX_BATCHES,
    MAX_BYTES,
    DeviceSources,
    SharedSource,
    SourceTap,
    takes_one_reader,
)
from edge_agent.sources.task_match import doubts, matching_modalities
from models.data.streams.batches import Batch, SampleBatch
from protocol.tasks.task import Modality, Task, Window
from tests.support.agent.data import toy_task


def batch(at: float) -> SampleBatch:
    return SampleBatch("acc", np.array([at]), np.zeros((1, 3), np.float32))


class Sensor:
    """Hardware that bears one reader at a time."""

    name = "sensor"

    def __init__(self) -> None:
        self.channels = {"acc": 3}
        self.opened, self.open = 0, False
        self.queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue()

    async def samples(self) -> AsyncIterator[Batch]:
        assert not self.open, "opened twice"
        self.open, self.opened = True, self.opened + 1
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            await asyncio.sleep(0.01)  # a driver takes its time to close
            self.open = False


async def taken(tap: SourceTap, count: int, into: list[float]) -> None:
    """Read some batches, and close."""
    stream = tap.samples()
    async for one in stream:
        assert isinstance(one, SampleBatch)
        into.append(float(one.t[0]))
        if len(into) == count:
            break
    await stream.aclose()


async def test_a_sensor_is_opened_once_and_both_tasks_get_all_from_when_they_began() -> None:
    sensor = Sensor()
    shared = SharedSource(sensor)
    first: list[float] = []
    second: list[float] = []
    early = asyncio.create_task(taken(shared.tap(), 3, first))
    await asyncio.sleep(0)
    sensor.queue.put_nowait(batch(1))
    await asyncio.sleep(0.01)
    late = asyncio.create_task(taken(shared.tap(), 2, second))
    await asyncio.sleep(0)
    for at in (2, 3):
        sensor.queue.put_nowait(batch(at))
    await asyncio.gather(early, late)
    assert (first, second, sensor.opened) == ([1, 2, 3], [2, 3], 1)
    assert not sensor.open, "nobody reads it any more"


async def test_a_task_that_comes_while_the_last_one_leaves_waits_for_the_driver() -> None:
    sensor = Sensor()
    shared = SharedSource(sensor)
    sensor.queue.put_nowait(batch(1))
    leaves = shared.tap().samples()
    await anext(leaves)
    leaving = asyncio.ensure_future(leaves.aclose())
    await asyncio.sleep(0)
    found: list[float] = []
    coming = asyncio.create_task(taken(shared.tap(), 1, found))
    await asyncio.wait([leaving])
    sensor.queue.put_nowait(batch(2))
    async with asyncio.timeout(5):
        await coming
    assert (found, sensor.opened) == ([2], 2)


async def test_a_failure_reaches_every_task_and_the_first_that_tries_again_opens_it_again() -> None:
    sensor = Sensor()
    shared = SharedSource(sensor)
    taps = [shared.tap(), shared.tap()]

    async def fails(tap: SourceTap) -> None:
        async for _ in tap.samples():
            pass

    running = [asyncio.create_task(fails(tap)) for tap in taps]
    await asyncio.sleep(0)
    sensor.queue.put_nowait(OSError(19, "no such device"))
    for one in running:
        with pytest.raises(OSError, match="no such device"):
            await one
    found: list[list[float]] = [[], []]
    running = [asyncio.create_task(taken(tap, 1, into)) for tap, into in zip(taps, found, strict=True)]
    await asyncio.sleep(0.02)
    sensor.queue.put_nowait(batch(5))
    await asyncio.gather(*running)
    assert (found, sensor.opened) == ([[5], [5]], 2)


async def test_its_end_is_the_end_for_every_task() -> None:
    sensor = Sensor()
    shared = SharedSource(sensor)
    sensor.queue.put_nowait(batch(1))
    sensor.queue.put_nowait(None)
    found: list[list[float]] = [[], []]
    await asyncio.gather(*(taken(shared.tap(), 9, into) for into in found))
    assert found == [[1], [1]]


async def test_a_task_that_takes_nothing_fills_no_memory_and_stops_no_other() -> None:
    sensor = Sensor()
    shared = SharedSource(sensor)
    stuck = shared.tap().samples()
    sensor.queue.put_nowait(batch(-1))
    await anext(stuck)  # and then never again
    many = MAX_BATCHES + 50
    found: list[float] = []
    taking = asyncio.create_task(taken(shared.tap(), many, found))
    for at in range(many):
        sensor.queue.put_nowait(batch(at))
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await taking
    assert found == [float(at) for at in range(many)]
    assert shared.dropped == 50
    await stuck.aclose()


async def test_large_frames_that_nobody_takes_are_bounded_in_bytes() -> None:
    sensor = Sensor()
    shared = SharedSource(sensor)
    stream = shared.tap().samples()
    sensor.queue.put_nowait(batch(-1))
    await anext(stream)
    values = np.zeros((1, MAX_BYTES // 10), np.float32)  # two fit
    for at in range(9):
        sensor.queue.put_nowait(SampleBatch("acc", np.array([float(at)]), values))
    sensor.queue.put_nowait(None)
    left = [float(one.t[0]) async for one in stream]
    assert (left, shared.dropped) == ([7.0, 8.0], 7)


class Camera(Sensor):
    """Delivers in the size of the task that it follows."""

    one_reader = True

    def __init__(self) -> None:
        super().__init__()
        self.channels = {"eye": 64}
        self.followed: list[str] = []

    def channels_in(self, task: Task) -> dict[str, int]:
        return {"eye": task.modality("eye").sample_values if "eye" in task.modality_names else 64}

    def follow(self, task: Task) -> None:
        self.followed.append(task.name)
        self.channels = self.channels_in(task)


def seeing(name: str, size: int) -> Task:
    eye = Modality(name="eye", kind="image", channels=1, height=size, width=size, rate_hz=5)
    return Task(name=name, labels=("a", "b"), modalities=(eye,), window=Window(length_s=1, stride_s=1))


def test_a_camera_is_read_in_the_size_of_the_first_task_and_the_other_is_told_why_not() -> None:
    camera = Camera()
    sources = DeviceSources([camera])
    small, deaf = seeing("small", 16), toy_task(name="deaf")
    (main,), (further,) = sources.of_main(), sources.of_further(lambda _: camera)
    assert isinstance(main, SourceTap)
    assert isinstance(further, SourceTap)
    main.follow(small)
    further.follow(deaf)  # it does not look: the size stays
    assert (camera.followed, camera.channels) == (["small"], {"eye": 256})
    same, larger = seeing("same", 16), seeing("larger", 32)
    assert matching_modalities(same, [further]) == ("eye",)
    assert doubts(same, [further]) == []
    assert matching_modalities(larger, [further]) == ()
    assert "task 'small' of this device reads it in another size" in doubts(larger, [further])[0]
    further.follow(larger)
    assert camera.channels == {"eye": 256}
    main.leave()
    assert matching_modalities(larger, [further]) == ("eye",)
    further.follow(larger)
    assert camera.channels == {"eye": 1024}


def test_hardware_is_shared_and_what_speaks_a_tasks_language_is_opened_for_each() -> None:
    class Recording(Sensor):
        def follow(self, _task: Task) -> None:
            raise AssertionError

    sensor, recording, again = Sensor(), Recording(), Recording()
    kinds = [sensor, recording]
    assert [takes_one_reader(one) for one in kinds] == [True, False]
    assert getattr(GStreamer, "one_reader", False)
    assert not any(getattr(kind, "one_reader", False) for kind in (Replay, Mqtt))
    sources = DeviceSources([*kinds])
    assert sources.of_main()[1] is recording
    assert sources.of_further(lambda i: [sensor, again][i])[1] is again
