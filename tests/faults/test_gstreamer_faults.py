"""Readers of cameras and microphones that die, hang and flood; an agent that does; what reaches the disk."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from errno import EPIPE, ETIMEDOUT

import numpy as np
import psutil
import pytest

from edge_agent.config.agent import AgentSettings, WindowSettings
from edge_agent.sources.registry import open_source
from protocol.tasks.task import Modality, Task, Window
from runtime.clock import SystemClock
from tests.support.agent.parts import collector_of
from tests.support.sensors.gstreamer import (
    PICTURE,
    TONE,
    batches_of,
    opened,
    raw_needles,
    read,
    readers,
    require_gstreamer,
)
from tests.support.services import beside, until

TASK = Task(
    name="t",
    labels=("a", "b"),
    modalities=(
        Modality(name="eye", kind="image", channels=1, height=12, width=16, rate_hz=10),
        Modality(name="ear", kind="sound", channels=1, rate_hz=8000),
    ),
    window=Window(length_s=0.5, stride_s=0.25, max_gap_s=0.2),
)
EYE = {"kind": "camera", "device": "test", "modality": "eye"}
EAR = {"kind": "microphone", "device": "test", "modality": "ear"}


@pytest.fixture(autouse=True)
def _gstreamer():
    require_gstreamer()


@asynccontextmanager
async def collecting(folder, *tables):
    """A real collector on these sources, with a store; yields it and the windows that it made."""
    clock, seen = SystemClock(), []
    settings = AgentSettings(
        fleet="f",
        device="d",
        state_dir=folder / "state",
        cache_dir=folder / "cache",
        source=tables,
        windows=WindowSettings(lateness_s=1.0),
        roles=("train",),
    )
    (folder / "state").mkdir()
    (folder / "cache").mkdir()
    sources = [open_source(t, "source[0]", folder, TASK.modality_names, clock) for t in tables]
    collector = collector_of(settings, sources, clock, seen.append)
    await collector.use(TASK)
    async with beside(collector.run(), *map(collector.run_source, sources)):
        yield collector, seen


async def test_a_reader_that_is_killed_is_an_error_and_the_next_one_reads_on(tmp_path):
    source = opened(tmp_path, **EAR | {"modality": "m"})

    def kill(_):
        for one in readers():
            one.kill()
        return False

    with pytest.raises(OSError, match="the reader was ended by SIGKILL") as found:
        await read(source, kill)
    assert found.value.errno == EPIPE
    assert not readers()
    assert await batches_of(source, bool)


async def test_a_reader_that_hangs_is_ended(tmp_path):
    source = opened(tmp_path, stall_s=1.0, **EAR | {"modality": "m"})

    def hang(_):
        for one in readers():
            one.send_signal(signal.SIGSTOP)
        return False

    with pytest.raises(OSError, match="no sound for 1 s") as found:
        await read(source, hang)
    assert found.value.errno == ETIMEDOUT
    await until(lambda: not readers())


@pytest.mark.long
async def test_a_camera_whose_reader_dies_is_a_mask_and_comes_back_and_the_microphone_goes_on(tmp_path):
    async with collecting(tmp_path, EYE, EAR) as (collector, seen):

        def newest():
            return seen[-1].windows.present_BM[-1].tolist() if seen else None

        await until(lambda: newest() == [True, True], 30)
        (eye,) = (one for one in readers() if _has_plugin(one, "videotestsrc"))
        eye.send_signal(signal.SIGSTOP)
        await until(lambda: newest() == [False, True], 30)
        eye.kill()
        await until(lambda: newest() == [True, True], 30)
        assert collector.restarts == {"camera test": 1}
    await until(lambda: not readers())


def _has_plugin(reader, name):
    return any(name in one.path for one in reader.memory_maps())


AGENT = """
import asyncio, sys
from pathlib import Path
from edge_agent.sources.registry import open_source
from runtime.clock import SystemClock

async def main():
    table = {"kind": "microphone", "device": "test", "modality": "m"}
    async for _ in open_source(table, "s", Path(), None, SystemClock()).samples():
        print("reads", flush=True)

asyncio.run(main())
"""


@pytest.mark.long
async def test_a_reader_ends_with_an_agent_that_is_killed():
    agent = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", AGENT, stdout=subprocess.PIPE)
    assert agent.stdout is not None
    assert await agent.stdout.readline() == b"reads\n"
    (reader,) = psutil.Process(agent.pid).children()
    assert reader.nice() >= 5
    agent.kill()
    await agent.communicate()
    await until(lambda: not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE)


UNDER_SYSTEMD = """
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0):
    print("no such prctl", flush=True)
    sys.exit()
os.execv(sys.executable, [sys.executable, "-P", "-c", sys.argv[1].replace("microphone", "camera")])
"""
"""PR_SET_MDWE: what ``MemoryDenyWriteExecute=yes`` of the unit does."""


@pytest.mark.long
async def test_a_camera_is_read_where_no_memory_may_become_code():
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", UNDER_SYSTEMD, AGENT, stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    line = await agent.stdout.readline()
    with suppress(ProcessLookupError):
        agent.kill()
    await agent.communicate()
    if line == b"no such prctl\n":
        pytest.skip("this kernel cannot deny it")
    assert line == b"reads\n"


@pytest.mark.long
async def test_an_event_loop_that_stands_still_loses_the_oldest_frames_and_no_memory(tmp_path):
    big = {"width": 1024, "height": 512, "rate_hz": 30, "fit": "stretch"}
    source = opened(tmp_path, media="image", pipeline="videotestsrc is-live=true", **big)
    stream = source.samples()
    await anext(stream)
    before = psutil.Process().memory_info().rss
    for _ in range(30):
        await asyncio.sleep(0.1)  # nobody takes a batch; the reader's thread goes on
    assert psutil.Process().memory_info().rss - before < 80 << 20
    assert source.counters["dropped_samples"] > 30
    newest = await anext(stream)
    await stream.aclose()
    assert SystemClock().wall() - newest.t[-1] < 2


def files_with(folder, needle):
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


@pytest.mark.long
async def test_no_byte_of_a_raw_frame_or_of_raw_sound_reaches_the_disk(tmp_path):
    """What is stored are windows of the network's input: 16 x 12 grey pixels, sound at 8 kHz."""
    raw = tmp_path / "raw"
    raw.mkdir()
    needles = raw_needles(raw)
    assert all(files_with(raw, needle) for needle in needles), "the search finds what is there"
    live = {"kind": "gstreamer"}
    eye = live | {"modality": "eye", "media": "image", "pipeline": PICTURE.format("is-live=true")}
    ear = live | {"modality": "ear", "media": "sound", "pipeline": TONE.format("is-live=true")}
    folder = tmp_path / "device"
    folder.mkdir()
    async with collecting(folder, eye, ear) as (collector, seen):
        await until(lambda: len(seen) > 12 and seen[-1].windows.present_BM[-1].all(), 30)
        await asyncio.to_thread(collector.workspace.store.commit)
        stored = list(folder.rglob("*"))
        assert any(path.stat().st_size > 1000 for path in stored if path.is_file())
        assert [found for needle in needles for found in files_with(folder, needle)] == []
    kept = folder / "kept"
    recorded = PICTURE.format("is-live=true") + f" ! tee name=t ! queue ! filesink location={kept} t."
    await read(opened(folder, media="image", keep_raw=True, pipeline=recorded), lambda b: len(b) > 2)
    assert files_with(folder, needles[0]) == [kept], "with keep_raw it does, where the owner says"


@pytest.mark.long
async def test_an_event_has_one_time_in_camera_microphone_and_serial_line(tmp_path):
    """A white picture, a loud sound and a line of text at one moment, 20 times, through three real paths."""
    eye_port, ear_port = 47311 + os.getpid() % 1000, 48411 + os.getpid() % 1000
    image = "video/x-raw,format=GRAY8,width=16,height=16,framerate=20/1"
    sound = "audio/x-raw,format=S16LE,rate=8000,channels=1,layout=interleaved"
    eye = opened(
        tmp_path,
        media="image",
        width=16,
        height=16,
        channels=1,
        rate_hz=20,
        pipeline=f'udpsrc address=127.0.0.1 port={eye_port} caps="{image}"',
    )
    ear = opened(
        tmp_path,
        media="sound",
        rate_hz=8000,
        pipeline=f'udpsrc address=127.0.0.1 port={ear_port} caps="{sound}"',
    )
    master, slave = os.openpty()
    line = {"kind": "serial", "port": os.ttyname(slave), "wire_time": False}
    line["modalities"] = {"m": {"columns": [0]}}
    serial = open_source(line, "source[0]", tmp_path, None, SystemClock())
    sender, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )

    async def play():
        for step in range(10**6):
            event = step % 10 == 9
            sender.sendto((b"\xff" if event else b"\x00") * 256, ("127.0.0.1", eye_port))
            sender.sendto((b"\x00\x60" if event else b"\x00\x00") * 400, ("127.0.0.1", ear_port))
            os.write(master, b"1\n" if event else b"0\n")
            await asyncio.sleep(0.05)

    player = asyncio.create_task(play())
    try:
        found = await asyncio.gather(*(read(one, for_seconds(12), 40) for one in (eye, ear, serial)))
    finally:
        player.cancel()
        sender.close()
        os.close(master)
        os.close(slave)
    levels = (128, 0.3, 0.5)
    firsts = [(t, x.reshape(len(t), -1)[:, 0]) for t, x in found]
    moments = [rises(t, x > level) for (t, x), level in zip(firsts, levels, strict=True)]
    apart = []
    for moment in moments[2]:
        nearest = [other[np.abs(other - moment).argmin()] for other in moments[:2]]
        if all(abs(one - moment) < 0.25 for one in nearest):
            apart.append(np.ptp([moment, *nearest]))
    assert len(apart) >= 15
    assert np.median(apart) < 0.02, np.percentile(apart, (50, 90, 100))


def for_seconds(seconds):
    return lambda batches: batches[-1].t[-1] - batches[0].t[0] > seconds


def rises(t, loud):
    """Times at which a signal becomes true."""
    return t[1:][loud[1:] & ~loud[:-1]]
