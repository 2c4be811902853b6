"""The form in which a source delivers: size of an image, or channels and rate of sound. Pure."""

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from edge_agent.sources.gstreamer.settings import MediaSettings
from protocol.errors import Misconfigured
from protocol.tasks.labelling import MAX_WINDOW_VALUES
from protocol.tasks.task import Modality

_GREY, _COLOURS = 1, 3
_KINDS: Final[dict[str, set[str]]] = {"image": {"image"}, "sound": {"sound", "stream"}}
"""Kinds of modalities that a kind of media can be."""
_ALIGNMENT: Final = 4
"""GStreamer's rows of pixels begin at multiples of 4 bytes."""
_SAMPLE_BYTES: Final = 2
_FULL_SCALE: Final = 32768.0
_MAX_BLOCK_S: Final = 0.25


@dataclass(frozen=True)
class ImageShape:
    """Images of 8 bits: ``channels`` 1 or 3, at most ``rate_hz`` of them a second."""

    channels: int = _COLOURS
    height: int = 96
    width: int = 96
    rate_hz: float = 5.0

    @property
    def values(self) -> int:
        """Of one image."""
        return self.channels * self.height * self.width

    @property
    def words(self) -> str:
        """The form in words."""
        colours = "grey" if self.channels == _GREY else "colours"
        return f"{self.width} x {self.height} pixels, {colours}, at most {self.rate_hz:g} a second"

    @property
    def row_bytes(self) -> int:
        """Of a row of pixels, with what GStreamer adds."""
        return -(-self.width * self.channels // _ALIGNMENT) * _ALIGNMENT

    @property
    def packet_bytes(self) -> int:
        """Of one image."""
        return self.row_bytes * self.height

    @property
    def bytes_per_s(self) -> float:
        """At the given rate."""
        return self.packet_bytes * self.rate_hz

    def rows(self, payload: bytes) -> NDArray[np.float32]:
        """``values`` (1, C*H*W), 0 to 255, channel first, of an image with interleaved channels.

        Raises:
            ValueError: it has another size.
        """
        padded = np.frombuffer(payload, np.uint8).reshape(self.height, self.row_bytes)
        x_HWC = padded[:, : self.width * self.channels].reshape(self.height, self.width, self.channels)
        return x_HWC.transpose(2, 0, 1).reshape(1, -1).astype(np.float32)


@dataclass(frozen=True)
class SoundShape:
    """Sound of 16 bits."""

    channels: int = 1
    rate_hz: int = 16_000

    @property
    def values(self) -> int:
        """Of one sample."""
        return self.channels

    @property
    def words(self) -> str:
        """The form in words."""
        return f"{self.channels} channel{'s' if self.channels > 1 else ''} at {self.rate_hz} Hz"

    @property
    def row_bytes(self) -> int:
        """Of one sample."""
        return self.channels * _SAMPLE_BYTES

    @property
    def packet_bytes(self) -> int:
        """At most, of one block."""
        return max(1, int(self.rate_hz * _MAX_BLOCK_S)) * self.row_bytes

    @property
    def bytes_per_s(self) -> float:
        """At the given rate."""
        return float(self.rate_hz * self.row_bytes)

    def rows(self, payload: bytes) -> NDArray[np.float32]:
        """``values`` (n, C), -1 to 1.

        Raises:
            ValueError: it has no whole samples.
        """
        samples = np.frombuffer(payload, "<i2").reshape(-1, self.channels)
        return samples.astype(np.float32) / np.float32(_FULL_SCALE)


Shape = ImageShape | SoundShape
Media = Literal["image", "sound"]


def first_shape(media: Media, settings: MediaSettings) -> Shape:
    """The form before a task is known: that of the settings, and for missing keys a usual one.

    Raises:
        Misconfigured: names the key.
    """
    return _with(ImageShape() if media == "image" else SoundShape(), settings)


def shape_of(media: Media, modality: Modality, settings: MediaSettings) -> Shape | None:
    """The form for a task's modality; None if its kind is another one, or its form cannot be delivered."""
    if modality.kind not in _KINDS[media]:
        return None
    whole: Shape
    if media == "sound":
        whole = SoundShape(modality.channels, round(modality.rate_hz))
    else:
        size = modality.height or 1, modality.width or 1
        whole = ImageShape(modality.channels, *size, modality.rate_hz)
    try:
        return _with(whole, settings)
    except Misconfigured:
        return None


def _with(shape: Shape, settings: MediaSettings) -> Shape:
    """The shape with the keys that are set.

    Raises:
        Misconfigured: names the key.
    """
    names = ("channels", "height", "width", "rate_hz")
    given = {name: getattr(settings, name) for name in names if getattr(settings, name, None) is not None}
    if isinstance(shape, SoundShape):
        given = {name: given[name] for name in ("channels", "rate_hz") if name in given}
        if (rate := given.get("rate_hz", shape.rate_hz)) != round(rate) or rate < 1:
            raise Misconfigured(f"rate_hz: of sound a whole number, not {rate:g}")
        return replace(shape, **given | {"rate_hz": round(rate)})
    made = replace(shape, **given)
    if made.channels not in {_GREY, _COLOURS}:
        raise Misconfigured(f"channels: an image has 1 (grey) or 3 (colours), not {made.channels}")
    if made.values > MAX_WINDOW_VALUES:
        raise Misconfigured(f"width, height: {made.values} values an image; at most {MAX_WINDOW_VALUES}")
    return made
