"""A round's fold in tasks that run anywhere, in any order: the version has the bytes of one process.

Sums are cut by update, robust parts by slice of the model's values (:mod:`models.partials`). The
result of a task follows from its updates, the base and the cut alone: a repeated task gives the same bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.aggregation.fold import (
    RoundUpdate,
    UnusableUpdates,
    add_updates,
    close_fold,
    fold_screened,
    open_fold,
)
from models.aggregation.partial_results import absorb, partial_bytes, restrict
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Fold, Server
from models.guided import DeviceWeights
from models.partials import Slice
from models.privacy.noisy_fold import RoundNoise
from models.tensors import flatten
from protocol.errors import Refused
from protocol.frames.frame import Limits
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task

MAX_SLICES: Final = 64
"""Each slice reads all updates, which more slices do not make shorter."""


@dataclass(frozen=True, slots=True)
class Grain:
    """How large tasks are; the version does not depend on it.

    Attributes:
        updates: at most, in a task that sums.
        slice_values: of all updates in one slice, about: 256 MiB on the disk of the process that folds it.
    """

    updates: int = 256
    slice_values: int = 1 << 26


GRAIN: Final = Grain()
PartialFold = bytes | dict[str, Refused]
"""Result of a task: a partial result, or why updates of these devices cannot be folded."""


@dataclass(frozen=True, slots=True)
class FoldTask:
    """A part of a round's fold: these updates, by digest; of robust parts one slice, with None the sums."""

    digests: tuple[str, ...]
    cut: Slice | None = None


@dataclass(frozen=True, slots=True)
class RoundInput:
    """What every task of a round's fold needs besides updates.

    Attributes:
        task: what is learned.
        round: its number.
        model: the version that the updates start from, without moments.
        limits: what an update may need.
        weighing: of a guided round.
        privacy: of a task with a table ``[privacy]``: with the clip of the round.
    """

    task: Task
    round: int
    model: Blobs
    limits: Limits
    weighing: DeviceWeights | None = None
    privacy: Privacy | None = None

    def open(self, server: Server) -> Fold:
        """The method's fold of the round."""
        return open_fold(server, self.task, self.round, self.model, self.weighing)


def fold_tasks(fold: Fold, digests: Iterable[str], values: int, grain: Grain = GRAIN) -> tuple[FoldTask, ...]:
    """The tasks of a round.

    Args:
        fold: an empty fold of the round, which says what it consists of.
        digests: of all updates.
        values: of the model.
        grain: of the tasks.
    """
    order, parts = sorted(digests), fold.parts().values()
    tasks: list[FoldTask] = []
    if any(not part.sliced for part in parts):
        starts = range(0, len(order), grain.updates)
        tasks += [FoldTask(tuple(order[start : start + grain.updates])) for start in starts]
    if order and any(part.sliced for part in parts):
        count = min(MAX_SLICES, max(1, -(-values * len(order) // grain.slice_values)))
        tasks += [FoldTask(tuple(order), Slice(index, count)) for index in range(count)]
    return tuple(tasks)


def fold_partially(
    server: Server, its: RoundInput, updates: Sequence[RoundUpdate], cut: Slice | None
) -> PartialFold:
    """The body of a task.

    Raises:
        Transient: no memory, or a robust fold's disk is full.
        OSError: an update cannot be read now.
    """
    fold = its.open(server)
    restrict(fold, cut)
    lost = add_updates(fold, its.task, updates, its.limits, its.privacy)
    return lost or partial_bytes(fold)


def merge_partially(server: Server, its: RoundInput, partials: Iterable[bytes]) -> bytes:
    """Several partial results, over different updates, as one.

    Raises:
        Transient: one of them is not readable.
        Refused: together, the sums would exceed their bounds.
    """
    fold = its.open(server)
    restrict(fold, None)
    for partial in partials:
        absorb(fold, partial)
    return partial_bytes(fold)


def merge_results(server: Server, its: RoundInput, results: Sequence[PartialFold]) -> PartialFold:
    """Several results of tasks that sum, over different updates, as one; raises as that for sums."""
    lost: dict[str, Refused] = {}
    for result in results:
        lost |= {} if isinstance(result, bytes) else result
    return lost or merge_partially(server, its, (one for one in results if isinstance(one, bytes)))


Run = Callable[[Sequence[FoldTask]], Iterable[PartialFold]]
"""Runs tasks, and returns their results in any order."""


def fold_by_tasks(  # noqa: PLR0917 - as of ``fold_screened``
    server: Server,
    its: RoundInput,
    state: Blobs,
    entries: Sequence[RoundUpdate],
    run: Run,
    grain: Grain = GRAIN,
    noise: RoundNoise | None = None,
) -> Blobs:
    """The next version, as :func:`coordinator.aggregation.fold.fold_screened` makes it.

    Args:
        server: the method's server half.
        its: of the round.
        state: the version that the updates start from, with moments.
        entries: updates that the screen has passed, in any order.
        run: runs the tasks.
        grain: of the tasks.
        noise: of a task with a table ``[privacy]``; no node learns its key.

    Raises:
        UnusableUpdates: some cannot be folded; all of them are named.
        Misconfigured: the optimizer's options lead to absurd values.
        LichenError, OSError: as ``run``.
    """
    fold, lost = its.open(server), dict[str, Refused]()
    values = sum(tensor.size for tensor in flatten(model_of(state)).values())
    tasks = fold_tasks(fold, [entry.digest for entry in entries], values, grain)
    try:
        for result in run(tasks):
            if isinstance(result, Mapping):
                lost |= result
            elif not lost:
                absorb(fold, result)
    except Refused:
        # The sums exceed a bound. Which update is one too many follows from their order in one process.
        return fold_screened(server, its.task, its.round, state, entries, its.limits, its.weighing, noise)
    if lost:
        raise UnusableUpdates(lost)
    return close_fold(its.task, state, fold, noise, [entry.digest for entry in entries])
