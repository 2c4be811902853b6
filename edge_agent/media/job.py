"""The job of the reading process: JSON on its standard input, so that no list of processes shows it."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

MAX_JOB_BYTES: Final = 64 * 1024
SINK: Final = "lichen_out"
"""Name of the element from which the reader takes frames."""


@dataclass(frozen=True)
class Job:
    """What to read.

    Attributes:
        pipeline: a description as of ``gst-launch-1.0``, which ends at the element :data:`SINK`.
        properties: element -> property -> value. Values of the configuration are set here and are no part of
            the description, so that no value can add an element.
        packet_bytes: of an image exactly; of sound at most.
        row_bytes: of one sample of all channels; 0: images.
        rate_hz: of sound.
        period_ns: images come at most this often; 0: all.
        live: frames that nobody reads are dropped, the oldest first. Otherwise the pipeline waits.
        keep_raw: the pipeline may have elements that write to disk or network.
        network: the pipeline may use TCP.
        parent: the process without which the reader ends.
    """

    pipeline: str
    properties: dict[str, dict[str, str]] = field(default_factory=dict)
    packet_bytes: int = 0
    row_bytes: int = 0
    rate_hz: int = 0
    period_ns: int = 0
    live: bool = True
    keep_raw: bool = False
    network: bool = False
    parent: int = 0

    def to_bytes(self) -> bytes:
        """For :func:`read_job`."""
        return json.dumps(asdict(self)).encode()


def read_job(data: bytes) -> Job:
    """The job.

    Raises:
        ValueError: it is none.
    """
    if len(data) > MAX_JOB_BYTES:
        raise ValueError("too long")
    values: Any = json.loads(data)
    try:
        return Job(**values)
    except TypeError as error:
        raise ValueError(str(error)) from None
