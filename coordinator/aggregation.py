"""Folding a round: one update at a time from disk into the method's fold, in O(model) memory.

Twice over the journal: first every update that was not measured when it came (before a restart) is measured,
and the outliers are left out (:mod:`coordinator.screen`); then the rest is folded.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from coordinator.bulkhead import bulkhead
from coordinator.journal import Entry
from coordinator.screen import WEIGHT, Magnitudes, Screened, screen
from models.contract import Blobs, Server, Update
from models.magnitude import magnitudes
from models.params import flatten
from models.registry import methods
from models.spill import spilling_into
from protocol.errors import LichenError, Refused
from protocol.frame import Limits, decode_frame
from protocol.task import Task
from protocol.updates import UpdateHeader

_PER_TENSOR_BYTES: Final = 512
_SLACK_BYTES: Final = 256 * 1024
_SLACK_ELEMENTS: Final = 64 * 1024


class UnusableUpdates(LichenError):  # noqa: N818 - says what was found, like Refused
    """Accepted updates that cannot be folded (a damaged disk, a sum that would overflow); nothing was folded.

    ``lost``: device -> why.
    """

    def __init__(self, lost: dict[str, Refused]) -> None:
        super().__init__(f"unusable updates of {', '.join(sorted(lost))}")
        self.lost = lost


def limits_for(state: Blobs, max_update_bytes: int) -> Limits:
    """What an update of this model can need at most: sized from the model, not from what a peer says."""
    tensors = flatten(state)
    elements = sum(tensor.size for tensor in tensors.values()) + _SLACK_ELEMENTS
    count = 2 * len(tensors) + 64
    # raw float32, or top-k at its densest (8 bytes an element) which no sane client sends
    most = 5 * elements + _PER_TENSOR_BYTES * count + _SLACK_BYTES
    return Limits(
        max_bytes=min(max_update_bytes, most),
        max_tensors=count,
        max_elements=elements,
        max_total_elements=elements,
    )


def read_update(entry: Entry, limits: Limits) -> Update:
    """One update from disk, checked against its digest.

    Raises:
        Refused: the bytes are gone or not those that were accepted.
        OSError: they cannot be read now.
    """
    header, tensors = decode_frame(entry.verified(), UpdateHeader, limits)
    return Update(header, tensors)


def measured(update: Update) -> dict[str, float]:
    """What a screen compares of an update: the magnitude of each part, and its weight where that is not 1.

    Parts that the method bounds by itself (``MethodSpec.bounded``) are left out.
    """
    spec = methods().get(update.header.method)
    bounded = () if spec is None else spec.bounded
    compared = {name: x for name, x in update.tensors.items() if name.split("/", 1)[0] not in bounded}
    weight = {WEIGHT: float(update.header.weight)} if update.header.weight != 1 else {}
    return {**magnitudes(compared), **weight}


def fold_journal(  # noqa: PLR0917 - the method's own order, and then what is folded
    server: Server,
    task: Task,
    round_: int,
    state: Blobs,
    entries: Iterable[Entry],
    limits: Limits,
    before: Mapping[str, float] | None = None,
) -> Blobs:
    """Fold updates into the next global state.

    Raises:
        UnusableUpdates: as :func:`fold_round`.
        OSError: the disk cannot be read.
    """
    return fold_round(server, task, round_, state, list(entries), limits, before or {})[0]


def fold_round(  # noqa: PLR0917 - the method's own order, and then what is folded
    server: Server,
    task: Task,
    round_: int,
    state: Blobs,
    entries: Sequence[Entry],
    limits: Limits,
    before: Mapping[str, float],
    known: Mapping[str, Magnitudes] | None = None,
) -> tuple[Blobs, dict[str, float]]:
    """Fold updates into the next global state, without outliers.

    Memory: the state, the method's fold and one update, however many entries there are.

    Args:
        server: the method's half.
        task: what is learned.
        round_: which round.
        state: the version that the updates start from.
        entries: accepted updates, in any order.
        limits: what an update may need.
        before: the last round's reference (:class:`coordinator.screen.Screened`); empty where there is none.
        known: update's digest -> what :func:`measured` said of it; others are read and measured.

    Returns:
        The next state, and this round's reference.

    Raises:
        UnusableUpdates: some cannot be folded; all of them are named, and the caller decides about the rest.
        OSError: the disk cannot be read.
    """
    verdict, lost = _screened(task, entries, limits, before, known or {})
    if lost:
        raise UnusableUpdates(lost)
    folder = entries[0].path.parent if entries else None
    with spilling_into(folder):  # robust folds keep a round's updates there, in a file without a name
        fold = server.open(task, round_, state)
        for entry in entries:
            try:
                with bulkhead(f"{task.method}'s fold of {entry.device}"):
                    fold.fold(read_update(entry, limits))
            except Refused as refused:
                lost[entry.device] = refused
        if lost:
            raise UnusableUpdates(lost)
        return fold.close(), verdict.reference


def _screened(
    task: Task,
    entries: Sequence[Entry],
    limits: Limits,
    before: Mapping[str, float],
    known: Mapping[str, Magnitudes],
) -> tuple[Screened, dict[str, Refused]]:
    """The verdict on a round's updates, and all that cannot be folded: unreadable ones, and outliers."""
    found: dict[str, Magnitudes] = {}
    lost: dict[str, Refused] = {}
    for entry in entries:
        try:
            with bulkhead(f"measuring {entry.device}'s update"):
                found[entry.device] = known.get(entry.digest) or measured(read_update(entry, limits))
        except Refused as refused:
            lost[entry.device] = refused
    verdict = screen(found, before, task.robust.outlier_factor)
    return verdict, lost | verdict.lost
