"""GStreamer for tests: whether this machine has it, files for it, and the agent's reading processes."""

import asyncio
import shutil
import subprocess
import wave
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from edge_agent.sources import SampleBatch, Source
from edge_agent.sources.registry import open_source
from runtime.clock import SystemClock

PICTURE = (
    "videotestsrc {0} pattern=zone-plate kx2=20 ky2=20 kt=0 ! video/x-raw,format=RGB,width=320,height=240"
)
TONE = "audiotestsrc {0} wave=triangle freq=977 ! audio/x-raw,format=S16LE,rate=44100,channels=1"


def raw_needles(folder: Path) -> list[bytes]:
    """Parts of a raw frame of :data:`PICTURE`, and of raw sound of :data:`TONE`; both are written there."""
    launch(*f"{PICTURE.format('num-buffers=1')} ! filesink location={folder}/frame".split())
    launch(*f"{TONE.format('num-buffers=20')} ! filesink location={folder}/sound".split())
    frame, sound = (folder / "frame").read_bytes(), (folder / "sound").read_bytes()
    needles = [frame[960 * y + 96 : 960 * y + 144] for y in (20, 120, 200)]
    needles += [sound[88:136], sound[8820:8868]]
    assert all(len(set(needle)) > 8 for needle in needles)
    return needles


def require_gstreamer() -> None:
    """Skip the test, loudly, without GStreamer."""
    if shutil.which("gst-launch-1.0") is None:
        pytest.skip(
            "SKIPPED LOUDLY: GStreamer is not installed (apt-get install gstreamer1.0-tools"
            " gstreamer1.0-plugins-base gstreamer1.0-plugins-good)"
        )


def launch(*words: str) -> None:
    """Run a pipeline by GStreamer's own tool to its end."""
    subprocess.run(["gst-launch-1.0", "-q", *words], check=True, timeout=60, capture_output=True)


def opened(folder: Path, **table: Any) -> Source:
    """A source of the kind ``gstreamer``, unless ``table`` says otherwise, of the modality ``m``."""
    whole = {"kind": "gstreamer", "modality": "m", **table}
    return open_source(whole, "source[0]", folder, None, SystemClock())


async def batches_of(
    source: Source, enough: Callable[[list[SampleBatch]], bool] = lambda _: False, seconds: float = 20.0
) -> list[SampleBatch]:
    """All batches until there are enough, or the source ends."""
    batches: list[SampleBatch] = []
    stream: Any = source.samples()
    async with asyncio.timeout(seconds), aclosing(stream):
        async for batch in stream:
            batches.append(batch)
            if enough(batches):
                break
    return batches


async def read(
    source: Source, enough: Callable[[list[SampleBatch]], bool] = lambda _: False, seconds: float = 20.0
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """All samples until there are enough, or the source ends: times (n,), values (n, V)."""
    batches = await batches_of(source, enough, seconds)
    return np.concatenate([b.t for b in batches]), np.concatenate([b.values for b in batches])


def write_wav(path: Path, samples: NDArray[np.int16], rate_hz: int) -> None:
    """One channel of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())


def write_jpegs(folder: Path, count: int) -> list[Path]:
    """``f1.jpg``..., 64 x 48 pixels."""
    folder.mkdir(exist_ok=True)
    launch(
        *f"videotestsrc num-buffers={count} ! video/x-raw,width=64,height=48 ! jpegenc".split(),
        *f"! multifilesink index=1 location={folder}/f%d.jpg".split(),
    )
    return [folder / f"f{i + 1}.jpg" for i in range(count)]


def readers() -> list[psutil.Process]:
    """The reading processes of this process."""
    return [one for one in psutil.Process().children() if "edge_agent.media" in _command(one)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
