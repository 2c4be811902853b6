"""Recordings of sound as a source delivers them: played by GStreamer, cut by the agent's windower.

One WAV file has all recordings, each in the middle of a window of its own. So windows equal those that are
cut from the recordings directly, or the source has lost or moved samples.

Shapes: B windows, C = 1 channel, T samples.
"""

import asyncio
import shutil
import tempfile
import time
import wave
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from edge_agent.sources.base import ReportsStatus
from edge_agent.sources.registry import open_source
from lichen_lab.simulation.data.access.split import complete
from models.contract import FloatArray, WindowSet
from models.data.streams.batches import SampleBatch
from models.data.streams.windows import Windower
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Modality, Task
from runtime.clock import SystemClock

FULL_SCALE: Final = 32768.0
"""A source gives sound from -1 to 1; recordings have 16 bits."""
_AFTER_S: Final = 1.0
"""Silence at the end, which closes the last window."""


def centred(clips: Sequence[NDArray[np.int16]], samples: int) -> NDArray[np.int16]:
    """``x_BT``: each recording in the middle of a window, silence around it; longer ones are cut off."""
    x_BT = np.zeros((len(clips), samples), np.int16)
    for x_T, clip in zip(x_BT, clips, strict=True):
        part = clip[:samples]
        begin = (samples - len(part)) // 2
        x_T[begin : begin + len(part)] = part
    return x_BT


def played(
    task: Task, clips: Sequence[NDArray[np.int16]], y_B: NDArray[np.int64], *, header_hz: int | None = None
) -> WindowSet:
    """Windows of recordings that a real pipeline of GStreamer has read; in 16-bit units, as the recordings.

    Args:
        task: its one modality is sound of one channel; windows do not overlap.
        clips: int16 samples at the modality's rate.
        y_B: class of each.
        header_hz: rate that the file claims; None: the true one.

    Raises:
        Misconfigured: no GStreamer, another task, or the source did not deliver what was recorded, as from a
            file whose header gives a wrong rate.
    """
    if shutil.which("gst-launch-1.0") is None:
        raise Misconfigured("GStreamer is not installed: apt-get install gstreamer1.0-tools and the plugins")
    modality = _modality(task)
    rate_hz = round(modality.rate_hz)
    whole_BT = centred(clips, task.samples(modality.name))
    with tempfile.TemporaryDirectory(prefix="lichen-played-") as folder:
        path = Path(folder) / "recordings.wav"
        silence = np.zeros(round(_AFTER_S * rate_hz), np.int16)
        _write(path, np.concatenate([whole_BT.ravel(), silence]), header_hz or rate_hz)
        x_BCT = asyncio.run(_cut(task, modality, path, whole_BT.size + len(silence)))
    if len(x_BCT) < len(clips):
        raise Misconfigured(f"{len(clips)} recordings were played, and {len(x_BCT)} whole windows came")
    return complete({modality.name: x_BCT[: len(clips)] * np.float32(FULL_SCALE)}, y_B)


def _modality(task: Task) -> Modality:
    (first, *others), window = task.modalities, task.window
    if others or first.kind != "sound" or first.channels != 1 or window.stride_s != window.length_s:
        raise Misconfigured(
            f"task {task.name!r}: one modality of sound with one channel is played, in windows side by side"
        )
    return first


def _write(path: Path, samples: NDArray[np.int16], rate_hz: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(samples.astype("<i2").tobytes())


async def _cut(task: Task, modality: Modality, path: Path, wanted: int) -> FloatArray:
    """``x_BCT`` of the whole windows that come from a file, from its begin on."""
    table = {
        "kind": "gstreamer",
        "media": "sound",
        "play": "fast",
        "modality": modality.name,
        "channels": modality.channels,
        "rate_hz": modality.rate_hz,
        "pipeline": f"filesrc location={path} ! wavparse",
    }
    source = open_source(table, "recordings", path.parent, task.modality_names, SystemClock())
    windower, parts, came, first = Windower(task), list[FloatArray](), 0, None
    stream: Any = source.samples()
    try:
        async with aclosing(stream):
            async for batch in stream:
                if not isinstance(batch, SampleBatch):
                    continue
                first = float(batch.t[0]) if first is None else first
                came += len(batch.t)
                windower.feed(SampleBatch(batch.modality, batch.t - first, batch.values), time.monotonic())
                while (windows := windower.poll(time.monotonic())) is not None:
                    covered_B = windows.covered[modality.name].all(axis=1)
                    parts.append(windows.x[modality.name][covered_B])
    except (OSError, Transient) as error:
        raise Misconfigured(f"{path.name} cannot be played: {error}") from None
    if came != wanted:
        counters = source.counters if isinstance(source, ReportsStatus) else {}
        words = (
            f"{path.name} has {wanted} samples at {modality.rate_hz:g} Hz, and {came} came {dict(counters)}"
        )
        raise Misconfigured(f"{words}: is the rate in its header right?")
    return np.concatenate([np.zeros((0, 1, task.samples(modality.name)), np.float32), *parts])
