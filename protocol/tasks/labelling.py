"""Rules for a window's label, from the labels during it: keys of the task's ``[window]``."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from protocol.base import Wire

LabelRule = Literal["whole", "majority", "last", "center"]
DEFAULT_MIN_SHARE: Final = 0.5


class Labelling(Wire):
    """Rule for a window's label."""

    label_rule: LabelRule = "whole"
    """``whole``: the label of the whole window. ``majority``: the longest one, if it covers ``min_share`` of
    the window. ``last``, ``center``: the one at its end, or in its middle. For numbers, the first two take
    the mean over the labelled time."""
    min_share: Annotated[float, Field(gt=0, le=1)] = DEFAULT_MIN_SHARE
    """``majority``: minimum share of the window with that label; unlabelled time counts against it."""

    @model_validator(mode="after")
    def _share_goes_with_majority(self) -> Self:
        if self.min_share != DEFAULT_MIN_SHARE and self.label_rule != "majority":
            raise ValueError(f'min_share goes with label_rule = "majority", not {self.label_rule!r}')
        return self
