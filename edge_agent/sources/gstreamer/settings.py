"""Keys of ``[[source]]`` tables of the kinds ``camera``, ``microphone`` and ``gstreamer``."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from protocol.tasks.task import ModalityName
from runtime.settings.load import ConfigPath, Section

TEST_DEVICE: Final = "test"
"""A device without hardware: GStreamer's moving test picture, or a tone."""
MAX_SIDE: Final = 2048
Fit = Literal["crop", "borders", "stretch"]


class MediaSettings(Section):
    """Keys that all three kinds have."""

    modality: ModalityName
    """The task's modality that this source delivers."""
    rate_hz: Annotated[float, Field(gt=0, le=48_000)] | None = None
    """Of sound: samples a second. Of images: at most so many a second. None: the task's."""
    channels: Annotated[int, Field(ge=1, le=8)] | None = None
    """Of an image 1 (grey) or 3 (red, green, blue). None: the task's."""
    delay_s: Annotated[float, Field(ge=-10, le=10)] = 0.0
    """Subtracted from all times: what a camera or network needs before it stamps."""
    stall_s: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """After so long without a frame or sample the reader is ended and started again."""


class ImageSettings(MediaSettings):
    """Keys of images."""

    width: Annotated[int, Field(ge=1, le=MAX_SIDE)] | None = None
    height: Annotated[int, Field(ge=1, le=MAX_SIDE)] | None = None
    """In pixels, of the network's input. None: the task's."""
    fit: Fit = "crop"
    """How another shape is brought to the task's: cut off the sides, add black borders, or stretch."""

    @model_validator(mode="after")
    def _both_sides(self) -> Self:
        if (self.width is None) != (self.height is None):
            raise ValueError("width and height go together: give both or neither")
        return self


class CameraSettings(ImageSettings):
    """Keys of ``[[source]] kind = "camera"``."""

    device: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """``/dev/video0``, or better a name of ``/dev/v4l/by-id/``; ``libcamera``, or ``libcamera:NAME``;
    ``test``."""
    url: Annotated[str, Field(max_length=1024)] | None = None
    """``rtsp://`` or ``rtsps://``, without a login."""
    username: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    password_file: ConfigPath | None = None
    """The first line is the password of ``url``."""
    transport: Literal["tcp", "udp", "auto"] = "tcp"
    """Of ``url``."""
    format: Literal["auto", "raw", "mjpeg"] = "auto"
    """What the device is asked for."""
    capture: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,3}x[1-9][0-9]{0,3})?$")] = "640x480"
    """The size that a device is asked for, before scaling. "": its own choice, often the largest."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.device is None) == (self.url is None):
            raise ValueError("give either device or url")
        if self.password_file is not None and self.username is None:
            raise ValueError("password_file is given without username")
        if self.username is not None and self.url is None:
            raise ValueError("username is for a url")
        return self


class MicrophoneSettings(MediaSettings):
    """Keys of ``[[source]] kind = "microphone"``."""

    device: Annotated[str, Field(min_length=1, max_length=256)] = "default"
    """ALSA's name, as ``hw:CARD=Microphone`` or ``plughw:1``; ``test``."""


class PipelineSettings(ImageSettings):
    """Keys of ``[[source]] kind = "gstreamer"``."""

    pipeline: Annotated[str, Field(min_length=1, max_length=8192)]
    """As of ``gst-launch-1.0``; its last element gives decoded images or sound. No shell reads it."""
    media: Literal["image", "sound"]
    play: Literal["live", "realtime", "fast"] = "live"
    """``live``: a device; frames that the agent is too slow for are dropped, and an end is a fault.
    ``realtime``: a file, at its own speed; it ends. ``fast``: the same, as fast as the agent reads."""
    keep_raw: bool = False
    """True: the pipeline may have elements that write frames or sound to disk or network."""
