"""A device's evaluation of one version on windows that it holds back from learning: counts and sums alone."""

from typing import Annotated, Final

from pydantic import Field

from protocol.base import Count, Digest, Wire
from protocol.tasks.task import ModalityName

MAX_EVALUATED: Final = 4096
"""Windows of one report: more of one device would outweigh the others."""
MAX_PARTS: Final = 8
MAX_CELLS: Final = 640
"""Of all confusion matrices of a report; their counts that are not 0."""
MAX_ERROR: Final = 100.0
"""Errors of a regression are cut at this, in scales of the target: one window cannot spoil a fleet's mean."""

Cell = tuple[Annotated[int, Field(ge=0, lt=1024)], Annotated[int, Field(ge=0, lt=1024)], Count]
"""The true class, the predicted class, and how many windows."""
ErrorSum = Annotated[float, Field(ge=0, le=MAX_EVALUATED * MAX_ERROR**2)]


class RegressionErrors(Wire):
    """Errors of a regression, each divided by the target's scale and cut at ``MAX_ERROR``."""

    windows: Count
    absolute: ErrorSum
    """Sum of the absolute errors."""
    squared: ErrorSum
    """Sum of their squares."""


class EvaluatedPart(Wire):
    """The windows in which the model read the same modalities."""

    modalities: Annotated[tuple[ModalityName, ...], Field(max_length=16)] = ()
    """In the task's order; empty: rarer combinations together."""
    windows: Annotated[int, Field(ge=1, le=MAX_EVALUATED)]
    confusion: Annotated[dict[ModalityName, tuple[Cell, ...]], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """By target with classes, of the windows with its label: the counts that are not 0."""
    errors: Annotated[dict[ModalityName, RegressionErrors], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """By regression target, of the windows with its label."""


class DeviceEvaluation(Wire):
    """One version on one device; replaces the device's earlier report on it."""

    version: Count
    bundle: Digest
    windows: Annotated[int, Field(ge=1, le=MAX_EVALUATED)]
    parts: Annotated[tuple[EvaluatedPart, ...], Field(min_length=1, max_length=MAX_PARTS)]
