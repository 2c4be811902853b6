"""Folding a round: one update at a time from disk into the method's fold, in O(model) memory.

Two passes over the journal: first every update is measured that was not measured on arrival (before a
restart), and outliers are excluded (:mod:`coordinator.aggregation.outlier_screen`); then the rest is folded,
and the server's optimizer computes the next version (:mod:`models.aggregation.server_optimizer`). Between the
two, a guided round computes device weights.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from coordinator.aggregation.outlier_screen import WEIGHT, Magnitudes, screen
from coordinator.errors import contain_faults
from coordinator.storage.private_blobs import without_private_blobs
from models.aggregation.server_optimizer import model_of, stepped
from models.aggregation.spill_file import spilling_into
from models.aggregation.update_norms import magnitudes
from models.contract import Blobs, Fold, Server, Update
from models.guided import DeviceWeights, GuidedServer
from models.privacy.clipping import check_clipped
from models.privacy.noisy_fold import RoundNoise, steadied
from models.registry import methods
from models.tensors import flatten
from models.worker.update_views import ReadableUpdate
from protocol.errors import LichenError, Refused
from protocol.frames.frame import Limits
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task

_PER_TENSOR_BYTES: Final = 512
_SLACK_BYTES: Final = 256 * 1024
_SLACK_ELEMENTS: Final = 64 * 1024


class RoundUpdate(ReadableUpdate, Protocol):
    """An accepted update of a round, in the coordinator's journal or in a simulation's memory."""

    @property
    def digest(self) -> str:
        """SHA-256 of its frame."""

    @property
    def folder(self) -> Path | None:
        """Folder in which a robust fold stores the round's tensors; None: in ``TMPDIR``."""


class UnusableUpdates(LichenError):  # noqa: N818 - says what was found, like Refused
    """Accepted updates that cannot be folded (a damaged disk, a sum that would overflow); nothing was folded.

    ``lost``: device -> reason.
    """

    def __init__(self, lost: dict[str, Refused]) -> None:
        super().__init__(f"unusable updates of {', '.join(sorted(lost))}")
        self.lost = lost


def limits_for(state: Blobs, max_update_bytes: int, task: Task | None = None) -> Limits:
    """Limits of an update of this model, from the model's size, not from what a peer reports.

    Args:
        state: a version, with or without moments.
        max_update_bytes: limit for every update, whatever the model.
        task: its method may let updates go beyond the model (``MethodSpec.beyond``); blobs of single devices
            do not count then.
    """
    spec = None if task is None else methods().get(task.method)
    model = model_of(state) if task is None else without_private_blobs(task, model_of(state))
    tensors, beyond = flatten(model), 0 if task is None or spec is None else spec.beyond(task)
    elements = sum(tensor.size for tensor in tensors.values()) + beyond + _SLACK_ELEMENTS
    if task is not None and task.secure_aggregation is not None:  # of one tensor of bytes
        elements *= task.secure_aggregation.ring_bits // 8
    count = 2 * len(tensors) + 64
    # raw float32, or top-k at its densest (8 bytes an element), which no sane client sends
    most = 5 * elements + _PER_TENSOR_BYTES * count + _SLACK_BYTES
    return Limits(
        max_bytes=min(max_update_bytes, most),
        max_tensors=count,
        max_elements=elements,
        max_total_elements=elements,
    )


def update_norms(update: Update) -> dict[str, float]:
    """What the screen compares of an update: the magnitude of each part, and its weight if that is not 1.

    Parts that the method bounds by itself (``MethodSpec.bounded``) are left out.
    """
    spec = methods().get(update.header.method)
    bounded = () if spec is None else spec.bounded
    compared = {name: x for name, x in update.tensors.items() if name.split("/", 1)[0] not in bounded}
    weight = {WEIGHT: float(update.header.weight)} if update.header.weight != 1 else {}
    return {**magnitudes(compared), **weight}


def screen_round(
    task: Task,
    entries: Sequence[RoundUpdate],
    limits: Limits,
    before: Mapping[str, float],
    known: Mapping[str, Magnitudes] | None = None,
) -> dict[str, float]:
    """The first pass over a round's updates: all are readable, and none is an outlier.

    Args:
        task: what is learned.
        entries: accepted updates, in any order.
        limits: what an update may need.
        before: the last round's reference (:class:`coordinator.aggregation.outlier_screen.Screened`); empty
            if there is none.
        known: update's digest -> result of :func:`update_norms`; others are read and measured.

    Returns:
        This round's reference.

    Raises:
        UnusableUpdates: some cannot be folded; all of them are named, and the caller decides about the rest.
        OSError: the disk cannot be read.
    """
    found: dict[str, Magnitudes] = {}
    lost: dict[str, Refused] = {}
    for entry in entries:
        try:
            with contain_faults(f"measuring {entry.device}'s update"):
                found[entry.device] = (known or {}).get(entry.digest) or update_norms(entry.read(limits))
        except Refused as refused:
            lost[entry.device] = refused
    # with [privacy] no device may decide whether others count: the check of norms bounds each; of a secure
    # round nobody sees a single update
    factor = 0.0 if task.privacy or task.secure_aggregation else task.robust.outlier_factor
    verdict = screen(found, before, factor)
    if lost := lost | verdict.lost:
        raise UnusableUpdates(lost)
    return verdict.reference


def fold_screened(  # noqa: PLR0917 - the method's own order, and then the updates
    server: Server,
    task: Task,
    round_: int,
    state: Blobs,
    entries: Sequence[RoundUpdate],
    limits: Limits,
    weighing: DeviceWeights | None = None,
    noise: RoundNoise | None = None,
) -> Blobs:
    """The second pass: fold updates that :func:`screen_round` has passed, and apply the optimizer.

    Memory: the state, the method's fold and one update, however many entries there are.

    Args:
        server: the method's server half; a :class:`GuidedServer` if there is a weighing.
        task: what is learned.
        round_: number of the round.
        state: the version that the updates start from, with the optimizer's moments.
        entries: updates, in any order.
        limits: what an update may need.
        weighing: of a guided round.
        noise: of a task with a table ``[privacy]``.

    Returns:
        The next version, with moments.

    Raises:
        UnusableUpdates: some cannot be folded; all of them are named.
        Misconfigured: the optimizer's options lead to absurd values.
        OSError: the disk cannot be read.
    """
    folder = entries[0].folder if entries else None
    with spilling_into(folder):  # robust folds store a round's updates there, in an unnamed file
        fold = open_fold(server, task, round_, model_of(state), weighing)
        privacy = None if noise is None else noise.privacy
        if lost := add_updates(fold, task, entries, limits, privacy):
            raise UnusableUpdates(lost)
        return close_fold(task, state, fold, noise, [entry.digest for entry in entries])


def add_updates(
    fold: Fold,
    task: Task,
    entries: Sequence[RoundUpdate],
    limits: Limits,
    privacy: Privacy | None = None,
) -> dict[str, Refused]:
    """Fold updates, read one at a time; with ``privacy`` (of this round), those within its clip.

    Returns:
        By device, why its update cannot be folded.

    Raises:
        Transient: no memory.
        OSError: the disk cannot be read.
    """
    lost: dict[str, Refused] = {}
    for entry in entries:
        try:
            with contain_faults(f"{task.method}'s fold of {entry.device}"):
                update = entry.read(limits)
                check_clipped(privacy, update)  # again: the noise of a version covers no longer one
                fold.fold(update)
        except Refused as refused:
            lost[entry.device] = refused
    return lost


def open_fold(server: Server, task: Task, round_: int, model: Blobs, weighing: DeviceWeights | None) -> Fold:
    """The method's fold of a round, weighted if there is a weighing."""
    if weighing is None:
        return server.open(task, round_, model)
    return cast("GuidedServer", server).open_guided(task, round_, model, weighing)


def close_fold(
    task: Task, state: Blobs, fold: Fold, noise: RoundNoise | None, digests: Collection[str]
) -> Blobs:
    """The next version from a fold of ``state``, by ``task.aggregator``.

    Args:
        task: what is learned.
        state: the version that the updates start from, with moments.
        fold: with all updates.
        noise: of a task with a table ``[privacy]``; None where its devices have added it (secure rounds).
        digests: of the folded updates.

    Raises:
        Misconfigured: the optimizer's options lead to absurd values.
        ValueError: a task with ``[privacy]`` gets no noise (a bug): no version of it is made without.
    """
    by_devices = task.secure_aggregation is not None and noise is None
    if (task.privacy is None) != (noise is None) and not by_devices:
        raise ValueError(
            f"task {task.name!r}: noise of a round goes with a table [privacy], and only with it"
        )
    if noise is not None:
        noise.add(fold, digests)
    spec = methods().get(task.method)
    made = fold.close() if task.privacy is None else steadied(model_of(state), fold.close())
    return stepped(task.aggregator, () if spec is None else spec.optimised, state, made)


def fold_round(  # noqa: PLR0917 - the method's own order, and then the updates
    server: Server,
    task: Task,
    round_: int,
    state: Blobs,
    entries: Sequence[RoundUpdate],
    limits: Limits,
    before: Mapping[str, float] | None = None,
    known: Mapping[str, Magnitudes] | None = None,
    noise: RoundNoise | None = None,
) -> tuple[Blobs, dict[str, float]]:
    """A whole round that is not guided: :func:`screen_round`, then :func:`fold_screened`.

    Returns:
        The next version, and this round's reference.

    Raises:
        UnusableUpdates: some cannot be folded; all of them are named, and the caller decides about the rest.
        OSError: the disk cannot be read.
    """
    reference = screen_round(task, entries, limits, before or {}, known)
    return fold_screened(server, task, round_, state, entries, limits, noise=noise), reference
