"""Pipelines of cameras and microphones, from settings. Pure.

Values of the configuration become properties of elements, which are set one by one: a name of a device cannot
add an element. Only numbers, and an owner's own pipeline, are part of a description.
"""

import math
import os
from dataclasses import dataclass
from typing import Final

from edge_agent.media.job import SINK, Job
from edge_agent.sources.gstreamer.settings import (
    TEST_DEVICE,
    CameraSettings,
    MicrophoneSettings,
    PipelineSettings,
)
from edge_agent.sources.gstreamer.shapes import ImageShape, Shape, SoundShape

_LIBCAMERA: Final = "libcamera"
_SOURCE: Final = "lichen_source"
_CAPTURE: Final = "lichen_capture"
_RTSP_LATENCY_MS: Final = 200
_SOUND_PERIOD_US, _SOUND_BUFFER_US = 50_000, 500_000


@dataclass(frozen=True)
class _How:
    """How a pipeline is read: see :class:`edge_agent.media.job.Job`. paced: frames come at their time."""

    live: bool = True
    paced: bool = False
    keep_raw: bool = False
    network: bool = False


_LIVE: Final = _How()


def camera_job(settings: CameraSettings, shape: ImageShape, password: str | None) -> Job:
    """The job for a camera.

    Args:
        settings: checked.
        shape: of the images.
        password: of the URL.
    """
    # Twice the rate: what is dropped here need not be decoded; the reader takes the exact rate.
    slower = f"videorate drop-only=true max-rate={math.ceil(2 * shape.rate_hz)}"
    properties: dict[str, dict[str, str]] = {}
    if settings.url is not None:
        login = {} if settings.username is None else {"user-id": settings.username, "user-pw": password or ""}
        protocols = {} if settings.transport == "auto" else {"protocols": settings.transport}
        properties[_SOURCE] = {"location": settings.url, **login, **protocols}
        begin = (
            f"rtspsrc name={_SOURCE} latency={_RTSP_LATENCY_MS} ! application/x-rtp,media=video"
            f" ! decodebin ! {slower}"
        )
    elif settings.device == TEST_DEVICE:
        begin = f"videotestsrc is-live=true pattern=ball ! video/x-raw,width=320,height=240 ! {slower}"
    else:
        device = settings.device or ""
        properties[_CAPTURE] = {"caps": _caps(settings)}
        decode = {"raw": "", "mjpeg": " ! jpegdec", "auto": " ! decodebin"}[settings.format]
        if device.partition(":")[0] == _LIBCAMERA:
            name = device.partition(":")[2]
            properties |= {_SOURCE: {"camera-name": name}} if name else {}
            element = "libcamerasrc"
        else:
            properties[_SOURCE] = {"device": device}
            element = "v4l2src"
        begin = f"{element} name={_SOURCE} ! capsfilter name={_CAPTURE} ! {slower}{decode}"
    return _images(begin, shape, settings.fit, properties, _How(network=settings.url is not None))


def microphone_job(settings: MicrophoneSettings, shape: SoundShape) -> Job:
    """The job for a microphone."""
    if settings.device == TEST_DEVICE:
        return _sound("audiotestsrc is-live=true", shape, {})
    begin = f"alsasrc name={_SOURCE} latency-time={_SOUND_PERIOD_US} buffer-time={_SOUND_BUFFER_US}"
    return _sound(begin, shape, {_SOURCE: {"device": settings.device}})


def pipeline_job(settings: PipelineSettings, shape: Shape) -> Job:
    """The job for an owner's own pipeline."""
    how = _How(settings.play == "live", settings.play == "realtime", settings.keep_raw, network=True)
    if isinstance(shape, ImageShape):
        return _images(settings.pipeline, shape, settings.fit, {}, how)
    return _sound(settings.pipeline, shape, {}, how)


def _caps(settings: CameraSettings) -> str:
    width, _, height = settings.capture.partition("x")
    size = f",width={width},height={height}" if settings.capture else ""
    kinds = {"raw": ("video/x-raw",), "mjpeg": ("image/jpeg",), "auto": ("video/x-raw", "image/jpeg")}
    return ";".join(kind + size for kind in kinds[settings.format])


def _images(
    begin: str,
    shape: ImageShape,
    fit: str,
    properties: dict[str, dict[str, str]],
    how: _How = _LIVE,
) -> Job:
    leaky = "downstream" if how.live else "no"
    crop = f"aspectratiocrop aspect-ratio={shape.width}/{shape.height} ! " if fit == "crop" else ""
    borders = "true" if fit == "borders" else "false"
    form = "GRAY8" if shape.channels == 1 else "RGB"
    end = (
        f"queue leaky={leaky} max-size-buffers=2 max-size-bytes=0 max-size-time=0"
        f" ! videoconvert ! {crop}videoscale add-borders={borders} ! videoconvert"
        f" ! video/x-raw,format={form},width={shape.width},height={shape.height},pixel-aspect-ratio=1/1"
    )
    return Job(
        pipeline=f"{begin} ! {end} ! {_sink(how)}",
        properties=properties,
        packet_bytes=shape.packet_bytes,
        period_ns=round(1e9 / shape.rate_hz),
        live=how.live,
        keep_raw=how.keep_raw,
        network=how.network,
        parent=os.getpid(),
    )


def _sound(
    begin: str,
    shape: SoundShape,
    properties: dict[str, dict[str, str]],
    how: _How = _LIVE,
) -> Job:
    leaky = "downstream" if how.live else "no"
    end = (
        f"queue leaky={leaky} max-size-buffers=0 max-size-bytes=0 max-size-time=1000000000"
        " ! audioconvert ! audioresample"
        f" ! audio/x-raw,format=S16LE,layout=interleaved,channels={shape.channels},rate={shape.rate_hz}"
    )
    return Job(
        pipeline=f"{begin} ! {end} ! {_sink(how)}",
        properties=properties,
        packet_bytes=shape.packet_bytes,
        row_bytes=shape.row_bytes,
        rate_hz=shape.rate_hz,
        live=how.live,
        keep_raw=how.keep_raw,
        network=how.network,
        parent=os.getpid(),
    )


def _sink(how: _How) -> str:
    drop, sync = str(how.live).lower(), str(how.paced).lower()
    return f"appsink name={SINK} sync={sync} max-buffers=4 drop={drop} enable-last-sample=false"
