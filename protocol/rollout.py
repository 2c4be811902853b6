"""Rollout on the wire: criteria of a model's trial on a device, and the device's report."""

from typing import Annotated

from pydantic import Field

from protocol.base import Count, Digest, Label, Share, Wire, Word

MAX_TRIAL_WINDOWS = 100_000
Ratio = Annotated[float, Field(ge=1, le=1000)]


class Trial(Wire):
    """Criteria of a trial: a model is judged after it has answered ``windows``.

    Measures that are not available (no labels, no previous model) are not required.
    """

    windows: Annotated[int, Field(ge=1, le=MAX_TRIAL_WINDOWS)] = 20
    """Windows (on knowledge graphs: questions) that it answers before it is judged."""
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    """After this running time it is judged by fewer windows."""
    max_errors: Count = 0
    """More windows than this without an answer (error, values not finite, dead process) end the trial."""
    max_latency_ratio: Ratio = 5.0
    """Maximum ratio to the previous model's latency on the same windows, of the 95th percentile and of the
    median; times below ten milliseconds count as ten."""
    min_agreement: Share = 0.0
    """Minimum share of windows with the previous model's answer; 0: not required."""
    max_drift: Share = 1.0
    """Maximum total variation distance between the classes predicted by both models; 1: not required."""
    max_accuracy_drop: Share = 0.1
    """Maximum loss of accuracy against the previous model on the same labelled windows."""
    min_labelled: Annotated[int, Field(ge=1, le=MAX_TRIAL_WINDOWS)] = 10
    """Accuracy is ignored with fewer labelled windows."""


class TrialReport(Wire):
    """In ``up/state``: the trial of the last announced model."""

    version: Count
    bundle: Digest
    serial: Count = 0
    """Serial of the pointer (``ModelPointer.serial``)."""
    phase: Word
    """``trial``, ``committed``, ``rolled_back``, or ``refused``: it never ran (not signed, incompatible,
    died in the probe). Any other counts as ``trial``: undecided."""
    why: Annotated[str, Field(max_length=240)] = ""
    """Reason of ``rolled_back`` and ``refused``."""
    measures: Annotated[dict[Label, float], Field(max_length=32, default_factory=dict)]
    """The measured ones of ``windows``, ``errors``, ``latency_p50_ms``, ``latency_p95_ms``,
    ``latency_ratio``, ``agreement``, ``drift``, ``accuracy``, ``accuracy_before``, ``labelled``."""


class Hindrance(Wire):
    """In ``up/state``: what temporarily keeps the device from running the announced model.

    A full disk, an unfinished download, no ONNX Runtime. Old agents do not report it.
    """

    why: Annotated[str, Field(min_length=1, max_length=240)]
    """The reason."""
    version: Count | None = None
    bundle: Digest | None = None
    """The announced bundle; None: it could run no model at all."""
    serial: Count = 0
    """Serial of the pointer."""
