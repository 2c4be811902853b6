"""Converts raw numbers of IIO channels to rows of modalities: (raw + offset) * scale, unit, mount, factor."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from edge_agent.sources.iio.sysfs import IioDevice
from edge_agent.sources.iio.units import conversion, kind_of
from edge_agent.sources.payloads import linear
from protocol.errors import Misconfigured
from runtime.settings.load import Section

_NAME: Final = re.compile(r"(?:in_)?(.+?)(?:_raw|_input)?(?:\[(\d+)\])?")
_AXES: Final = ("x", "y", "z")


class IioModality(Section):
    """``[source.modalities.<name>]`` of an IIO source; a bare list is its ``channels``."""

    channels: Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]
    """For example ``accel_x`` for ``in_accel_x_raw``; ``rot_quaternion[0]`` for the first of several numbers.
    """
    unit: str | None = None
    """None: SI, with degC, % and uT, by the type of the channel."""
    factor: float = 1.0
    """Multiplied after the unit conversion, for a unit that is not known here, or a calibration."""
    offset: float = 0.0
    """Added last."""
    mount: bool = True
    """Rotate x, y, z by the device's mount matrix: from the chip's axes to the board's."""


def _listed(value: Any) -> Any:
    return {"channels": value} if isinstance(value, list | tuple) else value


Modalities = dict[str, Annotated[IioModality, BeforeValidator(_listed)]]


def split(channel: str) -> tuple[str, int]:
    """The kernel's name of a channel, and the index of the number in it."""
    match = _NAME.fullmatch(channel)
    return (channel, 0) if match is None else (match[1], int(match[2] or 0))


def names(modalities: Mapping[str, IioModality]) -> list[str]:
    """All channels that are read, each once."""
    return list(dict.fromkeys(split(c)[0] for m in modalities.values() for c in m.channels))


def units(modalities: Mapping[str, IioModality]) -> dict[str, str]:
    """The unit of each modality; empty if its channels differ, or a factor changes it.

    Raises:
        Misconfigured: a channel cannot be converted to the configured unit.
    """
    units = {}
    for name, modality in modalities.items():
        try:
            every = {conversion(split(c)[0], modality.unit)[0] for c in modality.channels}
        except Misconfigured as error:
            raise Misconfigured(f"modalities.{name}.{error}") from None
        plain = len(every) == 1 and (modality.factor, modality.offset) == (1.0, 0.0)
        units[name] = every.pop() if plain else ""
    return units


def require_channels(device: IioDevice, modalities: Mapping[str, IioModality]) -> None:
    """Check that the device has all channels.

    Raises:
        Misconfigured: names the key and similar channels.
    """
    have = device.channels()
    for name, modality in modalities.items():
        for channel in modality.channels:
            if split(channel)[0] in have:
                continue
            near = get_close_matches(channel, have, 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Misconfigured(
                f"modalities.{name}.channels: {device.name} has no channel {channel!r}; it has "
                f"{', '.join(have)}{hint}"
            )


@dataclass(frozen=True)
class _Term:
    channel: str
    part: int
    scale: float
    offset: float
    unit: float
    shift: float

    def of(self, numbers: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The channel's value in its unit; ``numbers`` (n, repeat) by channel."""
        stored = numbers[self.channel]
        if self.part >= stored.shape[1]:
            return np.full(len(stored), np.nan)
        values: NDArray[np.float64] = (stored[:, self.part] + self.offset) * self.scale * self.unit
        return values + self.shift


class SampleRows:
    """Converts channels' numbers to rows of each modality, with the scales at the time of creation."""

    def __init__(self, device: IioDevice, modalities: Mapping[str, IioModality], *, buffered: bool) -> None:
        have = device.channels()
        self._modalities = modalities
        self._terms: dict[str, list[_Term]] = {}
        self._turns: dict[str, tuple[int, NDArray[np.float64]]] = {}
        for name, modality in modalities.items():
            plain = [split(channel) for channel in modality.channels]
            self._terms[name] = [
                _term(device, c, part, modality.unit, done=have.get(c) == "input" and not buffered)
                for c, part in plain
            ]
            at = _triple([c for c, _ in plain]) if modality.mount else None
            if at is not None and not np.array_equal(matrix := device.mount(plain[at][0]), np.eye(3)):
                self._turns[name] = at, matrix

    def of(self, numbers: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float32]]:
        """``values`` (n, C) by modality, from ``numbers`` (n, repeat) by channel."""
        rows = {}
        for name, terms in self._terms.items():
            values = np.stack([term.of(numbers) for term in terms], axis=1)
            if name in self._turns:
                at, matrix = self._turns[name]
                values[:, at : at + 3] = values[:, at : at + 3] @ matrix.T
            modality = self._modalities[name]
            rows[name] = linear(values, modality.factor, modality.offset)
        return rows


def _term(device: IioDevice, channel: str, part: int, unit: str | None, *, done: bool) -> _Term:
    """``done``: the driver has already applied offset and scale (``_input``)."""
    scale = None if done else device.shared(channel, "scale")
    offset = None if done else device.shared(channel, "offset")
    _, factor, shift = conversion(channel, unit)
    return _Term(
        channel,
        part,
        1.0 if scale is None else device.number(scale) or 1.0,
        0.0 if offset is None else device.number(offset) or 0.0,
        factor,
        shift,
    )


def _triple(channels: Sequence[str]) -> int | None:
    """Positions where x, y and z of one type are consecutive."""
    for at in range(len(channels) - 2):
        three = channels[at : at + 3]
        if tuple(c.rpartition("_")[2] for c in three) == _AXES and len({kind_of(c) for c in three}) == 1:
            return at
    return None
