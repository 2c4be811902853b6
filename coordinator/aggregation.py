"""Folding a round: one update at a time from disk into the method's fold, in O(model) memory."""

from collections.abc import Iterable
from typing import Final

from coordinator.bulkhead import bulkhead
from coordinator.journal import Entry
from models.contract import Blobs, Server, Update
from models.params import flatten
from protocol.errors import LichenError, Reason, Refused
from protocol.frame import Limits, decode_frame, digest
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
    """
    try:
        payload = entry.path.read_bytes()
    except FileNotFoundError:
        raise Refused(Reason.WRONG_DIGEST, f"{entry.path} of {entry.device} is gone") from None
    if digest(payload) != entry.digest:
        raise Refused(Reason.WRONG_DIGEST, f"{entry.path} of {entry.device} was damaged on disk")
    header, tensors = decode_frame(payload, UpdateHeader, limits)
    return Update(header, tensors)


def fold_journal(  # noqa: PLR0917 - the method's own order, and then what is folded
    server: Server, task: Task, round_: int, state: Blobs, entries: Iterable[Entry], limits: Limits
) -> Blobs:
    """Fold updates into the next global state.

    Memory: the state, the method's fold and one update, however many entries there are.

    Raises:
        UnusableUpdates: some cannot be folded; all of them are named, and the caller decides about the rest.
        OSError: the disk cannot be read.
    """
    fold = server.open(task, round_, state)
    lost: dict[str, Refused] = {}
    for entry in entries:
        try:
            with bulkhead(f"{task.method}'s fold of {entry.device}"):
                fold.fold(read_update(entry, limits))
        except Refused as refused:
            lost[entry.device] = refused
    if lost:
        raise UnusableUpdates(lost)
    return fold.close()
