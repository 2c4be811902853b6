"""Rules for a window's label, and its bounds: keys of the task's ``[window]``; and labelled windows."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from protocol.base import Wire

LabelRule = Literal["whole", "majority", "last", "center"]
DEFAULT_MIN_SHARE: Final = 0.5
MAX_WINDOW_VALUES: Final = 1 << 22
"""Maximum values of one window, all modalities (16 MB), and of the windows cut in a second."""
MAX_OVERLAP: Final = 1024
"""Maximum ratio of ``length_s`` to ``stride_s``."""


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


class Labelled(Wire):
    """Labelled windows at the coordinator (``[labelled]``), for guided methods; they are not announced."""

    file: Annotated[str, Field(min_length=1, max_length=1024)]
    """A window set (npz), or a recording with labels (npz, csv, parquet), relative to the task file."""
    label_column: Annotated[str, Field(min_length=1, max_length=128)] = "label"
    """csv and parquet: the column with the class, by name or by index; an empty cell: none."""
    recording_column: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """csv and parquet: the column that names a row's recording; no window spans two recordings."""


def window_trouble(values: int, length_s: float, stride_s: float, context_s: float | None) -> str:
    """What does not fit in a window or its memory, in words; empty if all does. ``values``: with context."""
    if context_s is not None and context_s < length_s:
        return "window.context_s: under window.length_s; leave it out to keep windows alone"
    if values > MAX_WINDOW_VALUES:
        what = "length_s: a window" if context_s is None else "context_s: a window's context"
        return f"window.{what} has {values} values, at most {MAX_WINDOW_VALUES}"
    if values > MAX_WINDOW_VALUES * stride_s:
        return f"window.stride_s: a device would cut over {MAX_WINDOW_VALUES} values a second"
    return (
        f"window.stride_s: under a {MAX_OVERLAP}th of window.length_s"
        if length_s > MAX_OVERLAP * stride_s
        else ""
    )
