"""The sources ``camera``, ``microphone`` and ``gstreamer``: images and sound by GStreamer.

GStreamer runs in a process of its own (:mod:`edge_agent.media`), which is ended with the source, and started
again after a failure.
"""

import errno
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edge_agent.media.job import Job
from edge_agent.media.packets import MediaPacket, PacketKind
from edge_agent.sources.base import require_known
from edge_agent.sources.gstreamer.reader_process import ReaderProcess
from edge_agent.sources.gstreamer.settings import MediaSettings
from edge_agent.sources.gstreamer.shapes import Media, Shape, SoundShape, first_shape, shape_of
from edge_agent.sources.gstreamer.sound_times import SoundTimes
from edge_agent.sources.reader_thread import MAX_VALUES, ThreadOutlet, read_in_thread
from edge_agent.sources.timestamps import ClockMapping
from models.data.streams.batches import Batch, SampleBatch
from protocol.errors import Transient
from protocol.tasks.task import Task
from runtime.clock import Clock

LOOK_S: Final = 1.0
"""Seconds between two looks for a missing device, and the longest wait for a packet."""
_WAITING_IMAGES: Final = 4
_FLOOD: Final = 4.0
"""A reader that sends this many times the declared bytes is ended."""
_FLOOD_S: Final = 2.0
_MIN_COST: Final = 64
"""Bytes that a packet counts as at least: handling many small ones costs time."""
_SLOW_PERIODS: Final = 5.0


class _Budget:
    """The bytes that a reader may send: a rate with a burst, by the monotonic clock."""

    def __init__(self, shape: Shape) -> None:
        self._rate = _FLOOD * shape.bytes_per_s
        self._burst = _FLOOD_S * self._rate + _WAITING_IMAGES * shape.packet_bytes
        self._left, self._at = self._burst, time.monotonic()

    def spend(self, size: int) -> bool:
        """False: the reader sends too much."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - size
        self._at = now
        return self._left >= 0


class _Run:
    """One run of the reader: packets to rows."""

    def __init__(self, source: "GStreamer", shape: Shape, outlet: ThreadOutlet) -> None:
        self._source = source
        self._shape = shape
        self._outlet = outlet
        self._clock = source.clock_mapping()
        self._budget = _Budget(shape) if source.live else None
        self._sound = SoundTimes(shape.rate_hz) if isinstance(shape, SoundShape) else None
        self._first: float | None = None
        self._dropped = 0
        self.ended = False

    def take(self, packet: MediaPacket, words: str) -> None:
        """Act on a packet.

        Raises:
            OSError: a live pipeline has ended.
            Transient: the reader sends too much, or samples in pieces.
        """
        source = self._source
        if self._budget is not None and not self._budget.spend(max(_MIN_COST, len(packet.payload))):
            raise Transient(f"{source.what}: the reader sends more than {_FLOOD:g} times what was asked for")
        match packet.kind:
            case PacketKind.STARTED:
                source.state = f"reads {source.what}"
            case PacketKind.WARNING:
                source.count("warnings")
                source.warning = words
            case PacketKind.ENDED if source.live:
                raise OSError(errno.ENODEV, "the stream has ended", source.what)
            case PacketKind.ENDED:
                self.ended = True
            case PacketKind.MEDIA:
                self._take_media(packet)

    def _take_media(self, packet: MediaPacket) -> None:
        source = self._source
        try:
            values = self._shape.rows(packet.payload)
        except ValueError as error:
            raise Transient(f"{source.what}: the reader sends no whole frames: {error}") from None
        if packet.dropped > self._dropped:
            source.count("dropped_frames", packet.dropped - self._dropped)
            self._dropped = packet.dropped
        begin = self._unix(packet.time_ns)
        if begin is None or not len(values):
            return
        if self._sound is None:
            t = np.array([begin])
        else:
            gaps = self._sound.gaps
            t = self._sound.times(begin, len(values))
            source.count("gaps", self._sound.gaps - gaps)
            source.found_hz = self._sound.found_hz
        self._outlet.put(source.modality, t, values)

    def _unix(self, time_ns: int) -> float | None:
        """The time by the wall clock; of a file that plays fast, from its begin on."""
        delay = self._source.delay_s
        if self._source.live:
            found = self._clock.unix(np.array([time_ns], np.int64))
            return None if found is None else float(found[0]) - delay
        if self._first is None:
            found = self._clock.unix(np.array([time_ns], np.int64))
            self._first = self._source.wall() if found is None else float(found[0])
            self._first_ns = time_ns
        return self._first + (time_ns - self._first_ns) * 1e-9 - delay


@dataclass(frozen=True)
class MediaDevice:
    """What a kind of source reads.

    Attributes:
        kind: name of the kind.
        what: the device, for messages.
        media: what it delivers.
        live: see :class:`edge_agent.sources.gstreamer.settings.PipelineSettings`.
        job: makes the job for a shape; it may read the password file.
        secret: the value that no message may have, or "".
        present: whether the device is there, where that can be seen without opening it.
    """

    kind: str
    what: str
    media: Media
    live: bool
    job: Callable[[Any], Job]
    secret: Callable[[], str] = str
    present: Callable[[], bool] = lambda: True


class GStreamer:
    """One pipeline. Calling :meth:`samples` again starts it again."""

    one_reader = True
    """A camera is opened once, although it follows the task (:mod:`edge_agent.sources.shared`)."""

    def __init__(
        self, device: MediaDevice, settings: MediaSettings, known: Sequence[str] | None, clock: Clock
    ) -> None:
        require_known([settings.modality], known, "modality {!r}")
        self._device = device
        self._settings = settings
        self._clock = clock
        self._shape = first_shape(device.media, settings)
        self.media = device.media
        self.what = device.what
        self.name = f"{device.kind} {device.what}"
        self.modality = settings.modality
        self.delay_s = settings.delay_s
        self.live = device.live
        self.channels = {settings.modality: self._shape.values}
        self.counters: dict[str, float] = {}
        self._doing = "not started"
        self.warning = ""
        self.found_hz: float | None = None

    @property
    def size(self) -> str:
        """See :class:`edge_agent.sources.base.DescribesMedia`."""
        return self._shape.words

    @property
    def state(self) -> str:
        """See :class:`edge_agent.sources.base.ReportsStatus`; with the newest warning and a wrong rate."""
        words = self._doing
        if self.found_hz is not None:
            words += f"; it delivers {self.found_hz:.0f} samples a second, not {self._shape.rate_hz:g}"
        return f"{words}; last warning: {self.warning}" if self.warning else words

    @state.setter
    def state(self, words: str) -> None:
        self._doing = words

    def count(self, name: str, many: int = 1) -> None:
        """Count a problem."""
        if many:
            self.counters[name] = self.counters.get(name, 0) + many

    def wall(self) -> float:
        """Unix time."""
        return self._clock.wall()

    def clock_mapping(self) -> ClockMapping:
        """From the pipeline's clock to Unix time."""
        return ClockMapping("monotonic", self._clock.wall, self.counters)

    def channels_in(self, task: Task) -> dict[str, int]:
        """See :class:`edge_agent.sources.base.SizedByTask`."""
        return {self.modality: self._shape_for(task).values}

    def follow(self, task: Task) -> None:
        """Deliver in this task's size; a running reader is started again if it changes."""
        self._shape = self._shape_for(task)
        self.channels = {self.modality: self._shape.values}

    def doubts(self, task: Task) -> list[str]:
        """Another kind of modality, and a missing device."""
        words = []
        if self.modality in task.modality_names:
            modality = task.modality(self.modality)
            if shape_of(self.media, modality, self._settings) is None:
                words.append(
                    f"{self.name}: delivers {self.media}, modality {modality.name!r} is of kind "
                    f"{modality.kind!r} with {modality.channels} channels at {modality.rate_hz:g} Hz"
                )
        if not self._device.present():
            words.append(f"{self.name}: the device is missing; the agent waits for it")
        return words

    async def samples(self) -> AsyncIterator[Batch]:
        """Wait for the device, then yield; see :class:`edge_agent.sources.base.Source`."""
        limit = max(MAX_VALUES, _WAITING_IMAGES * self._shape.values)
        async for batch in read_in_thread(self._work, self.name, self.counters, limit):
            if isinstance(batch, SampleBatch) and batch.values.shape[1] != self.channels[self.modality]:
                continue  # of the size before the task changed
            yield batch

    def _shape_for(self, task: Task) -> Shape:
        if self.modality in task.modality_names:
            found = shape_of(self.media, task.modality(self.modality), self._settings)
            if found is not None:
                return found
        return first_shape(self.media, self._settings)

    def _work(self, outlet: ThreadOutlet) -> None:
        """The blocking work, run in a thread."""
        while not outlet.stopped:
            while not self._device.present():
                self._doing = f"waits for {self.what}"
                if outlet.wait(LOOK_S):
                    return
            shape = self._shape
            self._doing = f"opens {self.what}"
            self.warning, self.found_hz = "", None
            reader = ReaderProcess(self._device.job(shape), self.what, (self._device.secret(),))
            try:
                reader.start()
                if self._read(reader, shape, outlet):
                    self._doing = f"{self.what} is played"
                    return
            except (OSError, Transient) as error:
                self._doing = f"lost {self.what}: {getattr(error, 'strerror', None) or error}"
                raise
            finally:
                reader.stop()

    def _read(self, reader: ReaderProcess, shape: Shape, outlet: ThreadOutlet) -> bool:
        """Read until the agent stops or the task changes (False), or the pipeline has ended (True)."""
        run = _Run(self, shape, outlet)
        patience = max(self._settings.stall_s, _SLOW_PERIODS / shape.rate_hz)
        heard = time.monotonic()
        while not outlet.stopped and shape == self._shape:
            if not self.live and outlet.waiting_values > MAX_VALUES // 2:
                outlet.wait(0.05)  # the event loop reads a file slower than it is decoded
                heard = time.monotonic()
                continue
            for packet in reader.packets(outlet, LOOK_S):
                heard = time.monotonic()
                run.take(packet, reader.words(packet.words) if packet.kind is PacketKind.WARNING else "")
            if run.ended:
                return True
            if time.monotonic() - heard > patience:
                raise OSError(errno.ETIMEDOUT, f"no {self.media} for {patience:g} s", self.what)
        return False
