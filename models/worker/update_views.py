"""Computes the views of a guided round's updates, which the worker reads one by one from the journal.

Results are views (:meth:`models.guided.ServerTrainer.view`) and refusals. At most one update is in memory.
Torch-free: the trainer is an argument.
"""

import errno
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict

import numpy as np

from models.contract import Blobs, FloatArray, Tensors, Update, WindowSet
from models.guided import ServerTrainer
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import Limits, decode_frame, digest
from protocol.frames.headers import UpdateHeader
from protocol.tasks.task import Task

VALUES: Final = "views"
"""Key of the tensor with the concatenated values of all views."""
_SPOILED: Final = (errno.ENOENT, errno.EIO)
"""Permanent errors of the disk."""
_FAULTS: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError)
"""Exceptions for unforeseen content of a peer; torch raises RuntimeError for all."""
_NO_MEMORY: Final = ("allocate memory", "not enough memory", "out of memory")
"""Texts of torch's RuntimeError without memory."""


@dataclass(frozen=True)
class FrameAt:
    """The place of an accepted update: ``size`` bytes of a file from byte ``at``; None: to its end."""

    device: str
    digest: str
    path: str
    at: int = 0
    size: int | None = None

    def verified(self) -> bytes:
        """The accepted bytes.

        Raises:
            Refused: WRONG_DIGEST, they are gone, changed, or can no longer be read from the disk.
            OSError: they cannot be read now.
        """
        try:
            data = content(self)
        except OSError as error:
            if error.errno not in _SPOILED:
                raise
            words = "is gone" if error.errno == errno.ENOENT else f"is unreadable ({error.strerror})"
            raise Refused(Reason.WRONG_DIGEST, f"{self.path} of {self.device} {words}") from None
        if digest(data) != self.digest:
            raise Refused(Reason.WRONG_DIGEST, f"{self.path} of {self.device} was damaged on disk")
        return data

    def read(self, limits: Limits) -> Update:
        """The decoded update.

        Raises:
            Refused: as :meth:`verified`, or the bytes are no update within the limits.
            OSError: they cannot be read now.
        """
        return Update(*decode_frame(self.verified(), UpdateHeader, limits))


class ReadableUpdate(Protocol):
    """An accepted update, on disk or in memory."""

    @property
    def device(self) -> str:
        """Which device sent it."""

    def read(self, limits: Limits) -> Update:
        """As :meth:`FrameAt.read`."""


class ViewResult(TypedDict):
    """The result of a view job as JSON; the values are in one tensor, :data:`VALUES`.

    Attributes:
        devices: those with a view, even an empty one.
        views: device, name and shape of each tensor, in the order of the values.
        refused: device -> reason and detail.
    """

    devices: list[str]
    views: list[tuple[str, str, list[int]]]
    refused: dict[str, tuple[str, str]]


def content(frame: FrameAt) -> bytes:
    """The bytes on disk, not verified.

    Raises:
        FileNotFoundError: they are gone.
    """
    with Path(frame.path).open("rb") as file:
        file.seek(frame.at)
        return file.read(frame.size)


def view_updates(  # noqa: PLR0917 - the trainer's own order, and then what is looked at
    trainer: ServerTrainer,
    task: Task,
    labelled: WindowSet,
    state: Blobs,
    updates: Iterable[ReadableUpdate],
    limits: Limits,
) -> tuple[dict[str, Tensors], dict[str, Refused]]:
    """Views by device, and refusals of the others.

    Args:
        trainer: the method's.
        task: what is learned.
        labelled: the coordinator's windows.
        state: the version that the updates start from.
        updates: at most one is in memory.
        limits: what an update may need.

    Raises:
        OSError: the disk cannot be read now.
        Transient: no memory.
    """
    views: dict[str, Tensors] = {}
    refused: dict[str, Refused] = {}
    for update in updates:
        try:
            views[update.device] = _view(trainer, task, labelled, state, update.read(limits))
        except Refused as why:
            refused[update.device] = why
    return views, refused


def _view(trainer: ServerTrainer, task: Task, labelled: WindowSet, state: Blobs, update: Update) -> Tensors:
    """One device's view. A bug refuses one update and does not stop the round."""
    try:
        view = trainer.view(task, labelled, state, update)
    except MemoryError as error:
        raise Transient(f"the view of {update.header.device}: out of memory") from error
    except _FAULTS as error:
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
            raise Transient(f"the view of {update.header.device}: out of memory") from error
        traceback.print_exc()
        words = f"{task.method}'s view of {update.header.device} failed: {type(error).__name__}: {error}"
        raise Refused(Reason.MALFORMED, words[:500]) from error
    return finite(view)


def finite(view: Tensors) -> Tensors:
    """The view, if it is finite in float32.

    Raises:
        Refused: NON_FINITE; the detail names the part of the model.
    """
    for name, tensor in view.items():
        with np.errstate(over="ignore"):
            sound = np.isfinite(np.asarray(tensor, np.float32)).all()
        if not sound:
            raise Refused(Reason.NON_FINITE, f"{name} makes no finite numbers of the labelled windows")
    return view


def packed(views: Mapping[str, Tensors], refused: Mapping[str, Refused]) -> tuple[ViewResult, Tensors]:
    """Pack views and refusals into a job's result, with one array for all devices."""
    index: list[tuple[str, str, list[int]]] = []
    values: list[FloatArray] = [np.zeros(0, np.float32)]
    for device in sorted(views):
        for name, tensor in sorted(views[device].items()):
            index.append((device, name, list(tensor.shape)))
            values.append(np.asarray(tensor, np.float32).reshape(-1))
    why = {device: (refusal.reason.value, refusal.detail) for device, refusal in sorted(refused.items())}
    return {"devices": sorted(views), "views": index, "refused": why}, {VALUES: np.concatenate(values)}


def unpacked(summary: Mapping[str, Any], tensors: Tensors) -> tuple[dict[str, Tensors], dict[str, Refused]]:
    """The inverse of :func:`packed`.

    Raises:
        Transient: the result is not readable; the message names the error.
    """
    try:
        views: dict[str, Tensors] = {device: {} for device in summary["devices"]}
        values, at = tensors[VALUES], 0
        for device, name, shape in summary["views"]:
            size = int(np.prod(shape, dtype=np.int64))
            views[device][name] = values[at : at + size].reshape(shape)
            at += size
        refused = {
            device: Refused(Reason(why), detail) for device, (why, detail) in summary["refused"].items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise Transient(f"the worker left no readable views: {type(error).__name__}: {error}") from None
    return views, refused
