"""What travels besides weights: how many windows each encoder was trained on. Torch-free."""

from typing import Annotated, Any

from pydantic import Field, ValidationError

from protocol.base import Count, Name, Wire
from protocol.errors import Reason, Refused


class TactflMessage(Wire):
    """``UpdateHeader.extra`` of a TACTFL update."""

    windows: Annotated[dict[Name, Annotated[Count, Field(ge=1)]], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies defaults
    """By modality, windows that its encoder was trained on in this round."""

    def extra(self) -> dict[str, Any]:
        """As JSON values, for the header."""
        return self.model_dump(mode="json")


def parse(extra: dict[str, Any]) -> TactflMessage:
    """Read ``UpdateHeader.extra``.

    Raises:
        Refused: MALFORMED; the detail names the field.
    """
    try:
        return TactflMessage.model_validate(extra)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(["extra", *map(str, first["loc"])])
        raise Refused(Reason.MALFORMED, f"{path}: {first['msg']}"[:500]) from None
