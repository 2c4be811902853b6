"""Options of a task: how tensors are encoded on their ways up and down."""

from typing import Annotated, Literal

from pydantic import Field

from protocol.base import Wire

CodecName = Literal["float32", "float16", "int8", "int4", "int2", "steps"]
Coarseness = Annotated[float, Field(ge=1 / 64, le=64)]


class Uplink(Wire):
    """Encoding of model deltas. The method's config sets the bits of prototypes.

    Without this table in its task file a coordinator uses that of the method, which its page names. The
    defaults below are for keys that a table does not name.
    """

    codec: CodecName = "int8"
    error_carry: bool = True
    coarseness: Coarseness = 4.0
    """``steps``: the step relative to the root mean square of a tensor's change; of changes below half a step
    nothing is sent, and the error carry keeps them."""


class Downlink(Wire):
    """Encoding of a version's model on its way to devices; its other blobs are sent unchanged.

    ``steps``: devices get the difference to the version that they have, rounded to whole steps. What
    devices have is evaluated and exported; the coordinator adds the rounding error to the next version.
    Without this table in its task file a coordinator uses that of the method.
    """

    codec: Literal["float32", "steps"] = "steps"
    coarseness: Coarseness = 1.0
    """``steps``: the step relative to the root mean square of a tensor's change. Long steps are few bytes,
    and cost accuracy in small fleets (docs/benchmarks/wire.md)."""
