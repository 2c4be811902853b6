"""The base of every model on the wire, and the bounded field types they share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    """An immutable record that refuses unknown fields and non-finite numbers.

    Python code that builds one with a wrong value gets pydantic's ``ValidationError``; bytes from a peer go
    through :func:`protocol.messages.decode`, which turns that into a ``Refused`` with the field's path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Wire(Frozen):
    """A record that peers of another release may extend: unknown fields are ignored, known ones checked."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""A fleet, device, task, modality or method: fits one MQTT topic level and one file name."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of some bytes, in lower-case hexadecimal."""

Label = Annotated[str, Field(min_length=1, max_length=64)]
Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400.0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
