"""The ``iio`` source: accelerometers, gyroscopes, converters and others through Linux Industrial I/O.

It uses the buffer if possible (the driver samples, with stamps of the kernel), else it polls.
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import structlog
from pydantic import Field

from edge_agent.sources.base import REGISTRY, SourceKind, require_known, unit_doubts
from edge_agent.sources.iio.buffer import Buffer, BufferRequest
from edge_agent.sources.iio.channels import Modalities, require_channels, units
from edge_agent.sources.iio.polling import Poller
from edge_agent.sources.iio.sysfs import Absent, IioDevice, find
from edge_agent.sources.reader_thread import ThreadOutlet, read_in_thread
from models.data.streams.batches import Batch
from protocol.errors import Misconfigured, Transient
from protocol.tasks.task import Task
from runtime.clock import Clock
from runtime.settings.load import ConfigPath, Section

_log = structlog.get_logger(__name__)
LOOK_S: Final = 1.0
"""Seconds between two searches for a missing device."""
Attribute = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,128}$")]


class IioSettings(Section):
    """Keys of ``[[source]] kind = "iio"``."""

    device: Annotated[str, Field(min_length=1, max_length=128)]
    """Its name, as ``mpu6050``; if several have it, ``mpu6050@1-0068`` (bus and address)."""
    modalities: Annotated[Modalities, Field(min_length=1, max_length=16)]
    rate_hz: Annotated[float, Field(gt=0, le=20_000)]
    """Polled: the polling rate. Buffered: the device's rate, or its next higher one."""
    mode: Literal["auto", "buffer", "poll"] = "auto"
    """``auto``: the buffer if it can be used, else polling."""
    trigger: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The trigger of each scan, if the device needs one; None keeps the present one."""
    write: dict[Attribute, str] = Field(default_factory=dict)
    """Attributes of the device to set first, as ``in_accel_scale = "0.000598"`` for its range."""
    sysfs: ConfigPath = Path("/sys")
    dev: ConfigPath = Path("/dev")


class Iio:
    """One device. Calling :meth:`samples` again sets it up again."""

    def __init__(self, settings: IioSettings, known: Sequence[str] | None, clock: Clock) -> None:
        require_known(settings.modalities, known)
        self._settings = settings
        self._clock = clock
        self._units = units(settings.modalities)
        self._fell_back = ""
        self.name = f"iio {settings.device}"
        self.channels = {name: len(m.channels) for name, m in settings.modalities.items()}
        self.counters: dict[str, float] = {}
        self.state = "not started"
        try:
            require_channels(find(settings.sysfs, settings.device), settings.modalities)
        except (Absent, OSError) as error:  # OSError: it is being pulled out just now
            self.state = str(error)

    def doubts(self, task: Task) -> list[str]:
        """Units that differ from the task's, and a missing device."""
        words = unit_doubts(self.name, self._units, task)
        try:
            find(self._settings.sysfs, self._settings.device)
        except (Absent, OSError) as error:
            words.append(f"{self.name}: {error}; the agent waits for it")
        return words

    def samples(self) -> AsyncIterator[Batch]:
        """Wait for the device, then yield; see :class:`edge_agent.sources.base.Source`."""
        return read_in_thread(self._work, self.name, self.counters)

    def _work(self, outlet: ThreadOutlet) -> None:
        """The blocking work, run in a thread."""
        device = self._wait(outlet)
        if device is None or self._buffered(device, outlet):
            return
        settings = self._settings
        poller = Poller(device, settings.modalities, settings.rate_hz, self._clock, self.counters)
        if settings.mode == "poll":
            for attribute, value in settings.write.items():
                device.write(attribute, value)
        because = f"; not buffered: {self._fell_back}" if self._fell_back else ""
        self.state = f"polls {device.name} ({device.id}) at {settings.rate_hz:g} Hz{because}"
        poller.run(outlet)

    def _wait(self, outlet: ThreadOutlet) -> IioDevice | None:
        """The device, as soon as it is present; None if the agent stops first."""
        while True:
            try:
                device = find(self._settings.sysfs, self._settings.device)
                require_channels(device, self._settings.modalities)
            except Absent as error:
                self.state = str(error)
            except Misconfigured as error:  # found at run time: other hardware was plugged in
                raise Transient(f"{self.name}: {error}") from None
            else:
                return device
            if outlet.wait(LOOK_S):
                return None

    def _buffered(self, device: IioDevice, outlet: ThreadOutlet) -> bool:
        """Read through the buffer until the end; False if the device must be polled."""
        settings = self._settings
        if settings.mode == "poll":
            return False
        request = BufferRequest(settings.modalities, settings.rate_hz, settings.trigger, settings.write)
        buffer = Buffer(device, settings.dev / device.id, request, self._clock, self.counters)
        try:
            buffer.start()
            self._fell_back = ""
            self.state = f"reads {device.name} ({device.id}) by its buffer at {buffer.rate_hz:g} Hz"
            buffer.run(outlet)
        except (OSError, Transient) as error:
            if buffer.runs or settings.mode == "buffer":
                raise
            if not self._fell_back:
                _log.warning("buffer_not_used", device=device.name, why=str(error))
            self._fell_back = str(error)
            return False
        finally:
            buffer.stop()
        return True


REGISTRY.add("iio", SourceKind(IioSettings, Iio))
