"""The first look of a guided round: one accepted update after the other, read from the journal by the worker.

What comes of it are the views (:meth:`models.guided.ServerTrainer.view`), and why an update has none. Nothing
holds two updates at a time. Torch-free: the trainer is handed in.
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
"""The key of the result's tensors under which all values lie, one view after the other."""
_SPOILED: Final = (errno.ENOENT, errno.EIO)
"""To wait would not bring the bytes back."""
_FAULTS: Final = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError)
"""What code raises that meets something nobody foresaw in what a peer sent; torch: RuntimeError for all."""
_NO_MEMORY: Final = ("allocate memory", "not enough memory", "out of memory")
"""In the words of a RuntimeError: torch has no other for it."""


@dataclass(frozen=True)
class FrameAt:
    """Where an accepted update lies: ``size`` bytes of a file from byte ``at``; None: to its end."""

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
    """A look's result as JSON; the values lie beside it, in one array under :data:`VALUES`.

    Attributes:
        devices: those that have a view, be it an empty one.
        views: device, name and shape of each tensor, in the order of the values.
        refused: device -> reason and detail.
    """

    devices: list[str]
    views: list[tuple[str, str, list[int]]]
    refused: dict[str, tuple[str, str]]


def content(frame: FrameAt) -> bytes:
    """The bytes, as they are on disk now: not verified.

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
    """Views by device, and why the others have none.

    Args:
        trainer: the method's.
        task: what is learned.
        labelled: the coordinator's windows.
        state: the version that the updates start from.
        updates: one is held at a time.
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
    """One device's view: finite numbers, or why not. A fault of ours stops one update and not the round."""
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
    """A view as it is kept, in float32.

    Raises:
        Refused: NON_FINITE: it is not finite there; the detail names the part of the model.
    """
    for name, tensor in view.items():
        with np.errstate(over="ignore"):
            sound = np.isfinite(np.asarray(tensor, np.float32)).all()
        if not sound:
            raise Refused(Reason.NON_FINITE, f"{name} makes no finite numbers of the labelled windows")
    return view


def packed(views: Mapping[str, Tensors], refused: Mapping[str, Refused]) -> tuple[ViewResult, Tensors]:
    """As a job's result: however many devices there are, it is one array."""
    index: list[tuple[str, str, list[int]]] = []
    values: list[FloatArray] = [np.zeros(0, np.float32)]
    for device in sorted(views):
        for name, tensor in sorted(views[device].items()):
            index.append((device, name, list(tensor.shape)))
            values.append(np.asarray(tensor, np.float32).reshape(-1))
    why = {device: (one.reason.value, one.detail) for device, one in sorted(refused.items())}
    return {"devices": sorted(views), "views": index, "refused": why}, {VALUES: np.concatenate(values)}


def unpacked(seen: Mapping[str, Any], tensors: Tensors) -> tuple[dict[str, Tensors], dict[str, Refused]]:
    """What :func:`packed` put away.

    Raises:
        Transient: it is not that; the message says what lacks.
    """
    try:
        views: dict[str, Tensors] = {device: {} for device in seen["devices"]}
        values, at = tensors[VALUES], 0
        for device, name, shape in seen["views"]:
            size = int(np.prod(shape, dtype=np.int64))
            views[device][name] = values[at : at + size].reshape(shape)
            at += size
        refused = {device: Refused(Reason(why), detail) for device, (why, detail) in seen["refused"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise Transient(f"the worker left no readable views: {type(error).__name__}: {error}") from None
    return views, refused
