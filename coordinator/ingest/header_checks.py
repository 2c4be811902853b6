"""Checks of an update's header, for all methods: pure, and before any tensor is decoded."""

from typing import Final

from coordinator.fleet.requirements import noun_of
from protocol.errors import Reason, Refused
from protocol.frames.headers import UpdateHeader
from protocol.tasks.task import Task

MAX_SAMPLES: Final = 10_000_000
"""Limit of windows of one round on one device; ``rounds.min_windows`` cannot ask for more. For a knowledge
graph the task limits the triples."""
_ROUNDING: Final = 1.0
"""Tolerance of the share ``missing``, windows or triples."""


def check_header(task: Task, device: str, header: UpdateHeader, *, masked: bool = False) -> None:
    """Compare a header with the topic, the task and itself; that of a masked update is silent.

    Raises:
        Refused: the detail names the field.
    """
    if header.device != device:
        raise Refused(Reason.WRONG_DEVICE, f"the topic is {device}'s, the header says {header.device}")
    if header.task != task.name:
        raise Refused(Reason.UNKNOWN_TASK, f"task {header.task!r}; this coordinator runs {task.name!r}")
    if header.method != task.method:
        raise Refused(Reason.UNKNOWN_TASK, f"method {header.method!r}; the task's is {task.method!r}")
    if masked:
        _check_silent(header)
        return
    _check_modalities(task, header)
    _check_samples(task, header)
    for name, per_class in header.counts.items():
        _check_counts(task, header, name, per_class)


def _check_silent(header: UpdateHeader) -> None:
    """The header of a masked update tells nothing of its device's data: nothing of it is stored."""
    for field in ("samples", "counts", "missing", "quality", "metrics"):
        if getattr(header, field):
            raise Refused(
                Reason.OUT_OF_BOUNDS, f"{field}: the header of a masked update tells nothing of data"
            )
    if header.weight != 1:
        raise Refused(
            Reason.OUT_OF_BOUNDS, f"weight: {header.weight}; that of a masked update is masked, too"
        )


def _check_modalities(task: Task, header: UpdateHeader) -> None:
    for what, names in (
        ("counts", header.counts),
        ("missing", header.missing),
        ("quality", header.quality),
    ):
        strange = sorted(set(names) - set(task.modality_names))
        if strange:
            known = ", ".join(task.modality_names)
            raise Refused(Reason.WRONG_MODALITY, f"{what}.{strange[0]}: the task's modalities are {known}")


def _check_samples(task: Task, header: UpdateHeader) -> None:
    most = MAX_SAMPLES if task.graph is None else task.graph.max_triples
    if not 1 <= header.samples <= most:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"samples: {header.samples}; an update comes from 1 to {most} {noun_of(task)}",
        )
    if header.weight > header.samples:
        raise Refused(
            Reason.OUT_OF_BOUNDS, f"weight: {header.weight}, more than the {header.samples} samples behind it"
        )


def _check_counts(task: Task, header: UpdateHeader, name: str, per_class: tuple[int, ...]) -> None:
    """One number a class (one in all for a knowledge graph), each at most the windows with the modality."""
    counted, noun = sum(per_class), noun_of(task)
    if len(per_class) != task.classes:
        raise Refused(
            Reason.OUT_OF_BOUNDS, f"counts.{name}: {len(per_class)} classes; the task has {task.classes}"
        )
    if counted > header.samples:
        raise Refused(
            Reason.OUT_OF_BOUNDS, f"counts.{name}: {counted} {noun} in all, but samples is {header.samples}"
        )
    present = header.samples * (1.0 - header.missing.get(name, 0.0))
    if counted > present + _ROUNDING + 1e-6 * header.samples:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"counts.{name}: {counted} {noun} in all, but missing.{name} leaves {present:.1f} of them",
        )
