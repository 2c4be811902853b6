"""What a device reports about itself at intervals: spool, machine, windows and predictions."""

from typing import Annotated

from pydantic import Field

from protocol.base import Count, Name, Seconds, Share, Wire

Bytes = Annotated[int, Field(ge=0, le=2**53)]
Rate = Annotated[float, Field(ge=0, le=1e6)]
"""In a second."""


class ModalityTelemetry(Wire):
    """One modality since the last report; the first report covers all since the start."""

    windows_per_s: Rate
    quality: Share | None = None
    """Mean quality of its windows; absent without windows."""


class Telemetry(Wire):
    """One report; a field is absent where the device cannot measure it."""

    uptime_s: Seconds
    """Since the start of the agent."""
    spool_updates: Count | None = None
    """Updates without a receipt."""
    spool_bytes: Bytes | None = None
    """Of updates and error carries in the spool."""
    disk_free_bytes: Bytes | None = None
    """On the disk of ``state_dir``, for the agent's user."""
    memory_bytes: Bytes | None = None
    """Resident memory of the agent's own process."""
    memory_available_bytes: Bytes | None = None
    """Memory of the machine that programs can still take."""
    cpu_share: Annotated[float, Field(ge=0, le=4096)] | None = None
    """CPU time of the agent and of its ended children since the last report; 1 is one core."""
    load_share: Annotated[float, Field(ge=0, le=4096)] | None = None
    """Load average of the last minute for each core of the machine."""
    temperature_c: Annotated[float, Field(ge=-100, le=300)] | None = None
    """Of the machine's hottest thermal zone, degrees Celsius."""
    reconnects: Count | None = None
    """Lost connections to the broker since the start of the agent."""
    predictions_per_s: Rate | None = None
    """Since the last report."""
    latency_p50_s: Seconds | None = None
    """From the end of a window to its prediction, since the last report: an upper bound of the quantile."""
    latency_p95_s: Seconds | None = None
    drift: Annotated[float, Field(ge=0, le=1000)] | None = None
    """How far the committed model's answers are from those of its first days on the device, over its limit:
    above 1 while it drifts."""
    modalities: Annotated[dict[Name, ModalityTelemetry], Field(max_length=16)] = Field(default_factory=dict)
    """Those of the task that the device reads."""
