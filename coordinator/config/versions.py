"""The sections of ``coordinator.toml`` that make versions and bundles; each task may have its own."""

from typing import Annotated

from pydantic import Field

from models.training.evaluation import Part
from runtime.settings.load import ConfigPath, Section

Positive = Annotated[int, Field(ge=1)]
Timeout = Annotated[float, Field(gt=0, le=7 * 86400)]


class EvaluationSettings(Section):
    """Evaluation of versions. ``data``: a labelled window set (npz), relative to the config file."""

    data: ConfigPath | None = None
    every_rounds: Positive = 1
    by: Annotated[tuple[Part, ...], Field(max_length=2)] = ("group",)
    """Also evaluate parts of the windows: those of each person or device (``group``, if the set names them),
    all with fewer modalities (``modalities``). Each part costs as much time again, and more."""


class StartSettings(Section):
    """Weights of version 0: a file of ``lichen task grow``; none: fresh ones, by the task's seed."""

    weights: ConfigPath | None = None


class ExportSettings(Section):
    """Export of bundles. ``every_rounds`` 0: only at the end."""

    enabled: bool = True
    every_rounds: Annotated[int, Field(ge=0)] = 0
    max_routes: Positive = 16
    """For a routed method: limit of bundles of one version, those for most devices first."""
    int8: bool = True
    """Add an int8 variant beside float32, if there are windows to calibrate it on."""


class WorkerSettings(Section):
    """The child processes that need torch."""

    timeout_s: Timeout = 600.0
    idle_s: Timeout = 120.0
    threads: Positive = 1


class AllWorkersSettings(WorkerSettings):
    """``[worker]`` of the file: also what all tasks together may use."""

    processes: Positive = 2
    """Child processes at one time, of all tasks of this process."""
