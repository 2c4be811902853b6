"""Options of a task: how tensors are encoded on their ways up and down."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from protocol.base import Wire

CodecName = Literal["float32", "float16", "int8", "int4", "int2", "steps"]
MAX_LEVEL: Final = (1 << 23) - 1
"""Largest magnitude of a whole number: its product with a power of two is exact in float32."""
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
    fraction_bits: Annotated[int | None, Field(ge=0, le=23, exclude_if=lambda bits: bits is None)] = None
    """``steps``: the step is ``2 ** -fraction_bits`` in every update, in place of ``coarseness``: the whole
    numbers of a secure round, in a plain one."""
    bound: Annotated[float | None, Field(gt=0, le=1024, exclude_if=lambda bound: bound is None)] = None
    """With ``fraction_bits``: changes beyond it are cut, and the error carry keeps the rest."""

    @property
    def level(self) -> int:
        """With ``fraction_bits``: the largest magnitude of a change, in steps."""
        steps = 1 << (self.fraction_bits or 0)
        return MAX_LEVEL if self.bound is None else int(self.bound * steps)

    @model_validator(mode="after")
    def _steps_are_exact(self) -> Self:
        if self.fraction_bits is None:
            if self.bound is not None:
                raise ValueError("bound is an option beside fraction_bits; leave it out, or name both")
            return self
        if self.codec != "steps":
            raise ValueError(f'fraction_bits is an option of codec = "steps", not of {self.codec!r}')
        if not 1 <= self.level <= MAX_LEVEL:
            raise ValueError(
                f"bound = {self.bound:g} with fraction_bits = {self.fraction_bits} is {self.level} steps; "
                f"1 to {MAX_LEVEL} are exact in float32"
            )
        return self


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
