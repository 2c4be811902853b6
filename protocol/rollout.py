"""Rollout on the wire: what a new model must show on a device to stay, and what the device says of it."""

from typing import Annotated

from pydantic import Field

from protocol.base import Count, Digest, Label, Share, Wire, Word

MAX_TRIAL_WINDOWS = 100_000
Ratio = Annotated[float, Field(ge=1, le=1000)]


class Trial(Wire):
    """The health window: a model is on trial until it has answered ``windows``, then it stays or goes.

    A measure that cannot be taken (no labels came, there is no model before it) is not asked for.
    """

    windows: Annotated[int, Field(ge=1, le=MAX_TRIAL_WINDOWS)] = 20
    """Windows, of a task on knowledge graphs questions, that it answers before it is judged."""
    deadline_s: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    """Where fewer come in this time of running, it is judged by those that came."""
    max_errors: Count = 0
    """More windows than these without an answer (an error, numbers that are not finite, a process that died)
    end the trial at once."""
    max_latency_ratio: Ratio = 5.0
    """Its 95th percentile of the time to answer, over that of the model before on the same windows, and its
    median as well; times below ten milliseconds count as ten."""
    min_agreement: Share = 0.0
    """Share of windows on which it says what the model before it says; 0: not asked for."""
    max_drift: Share = 1.0
    """Total variation distance between the classes that both predicted on the same windows; 1: not asked."""
    max_accuracy_drop: Share = 0.1
    """Below the accuracy of the model before on the same labelled windows."""
    min_labelled: Annotated[int, Field(ge=1, le=MAX_TRIAL_WINDOWS)] = 10
    """Fewer labelled windows tell nothing of accuracy."""


class TrialReport(Wire):
    """In ``up/state``: how the device fares with what it was pointed to last."""

    version: Count
    bundle: Digest
    serial: Count = 0
    """Of the pointer (``ModelPointer.serial``)."""
    phase: Word
    """``trial``, ``committed``, ``rolled_back``, or ``refused``: it never ran (not signed, does not fit, died
    in the probe). Any other counts as ``trial``: nothing is decided yet."""
    why: Annotated[str, Field(max_length=240)] = ""
    """Of ``rolled_back`` and ``refused``, in words."""
    measures: Annotated[dict[Label, float], Field(max_length=32, default_factory=dict)]
    """Those that were measured of ``windows``, ``errors``, ``latency_p50_ms``, ``latency_p95_ms``,
    ``latency_ratio``, ``agreement``, ``drift``, ``accuracy``, ``accuracy_before``, ``labelled``."""


class Hindrance(Wire):
    """In ``up/state``: why the device does not run what it was pointed to, and will once that is over.

    A full disk, a pull that does not come to its end, no ONNX Runtime. Old agents say nothing of it.
    """

    why: Annotated[str, Field(min_length=1, max_length=240)]
    """In words."""
    version: Count | None = None
    bundle: Digest | None = None
    """What it was pointed to; None: it could run no model at all."""
    serial: Count = 0
    """Of the pointer."""
