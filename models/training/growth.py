"""Starting weights of a task that grew, from a version of the earlier task: what fits is taken. Torch-free.

A tensor is taken if its name and shape are the same. Rows of classes are copied by the name of the class, and
columns of features by that of the modality, so that classes and modalities may be added, removed or moved.
Everything else keeps its fresh values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from models.contract import Blobs, FloatArray
from models.tensors import flatten, unflatten
from protocol.tasks.task import Task


@dataclass(frozen=True)
class Growth:
    """The weights, and what became of each tensor.

    Attributes:
        state: version 0 of the task.
        taken: names of tensors that are as in the earlier version.
        partly: those of which some rows or columns are, each with words about them.
        fresh: the others.
    """

    state: Blobs
    taken: tuple[str, ...]
    partly: Mapping[str, str]
    fresh: tuple[str, ...]

    @property
    def words(self) -> str:
        """For people, a line for each tensor that is not taken as a whole."""
        lines = [f"taken: {len(self.taken)} tensors, in part: {len(self.partly)}, new: {len(self.fresh)}"]
        lines += [f"in part: {name}: {words}" for name, words in self.partly.items()]
        return "\n".join([*lines, *(f"new: {name}" for name in self.fresh)])


class TensorLayout(Protocol):
    """What a method says of its tensors (:class:`models.spec.MethodSpec`)."""

    @property
    def class_rows(self) -> Callable[[str], str]:
        """The target whose classes are a tensor's rows; empty: none."""

    @property
    def modality_columns(self) -> tuple[str, ...]:
        """Tensors whose columns are features of the modalities."""


def grown(layout: TensorLayout, task: Task, fresh: Blobs, old: Task, earlier: Blobs) -> Growth:
    """Put an earlier version's weights into fresh ones.

    Args:
        layout: of the task's method.
        task: the one that grew.
        fresh: its initial state.
        old: the earlier task.
        earlier: a version of it.
    """
    known, made = flatten(earlier), flatten(fresh)
    taken: list[str] = []
    new: list[str] = []
    partly: dict[str, str] = {}
    for name, tensor in made.items():
        before = known.get(name)
        rows = _rows(layout.class_rows(name), task, old)
        columns = _columns(task, old) if name in layout.modality_columns else None
        if before is None:
            new.append(name)
        elif rows is None and columns is None:
            (taken if before.shape == tensor.shape else new).append(name)
            made[name] = before if before.shape == tensor.shape else tensor
        elif (found := _copied(tensor, before, rows, columns)) is None:
            new.append(name)
        else:
            made[name], words = found
            if words:
                partly[name] = words
            else:
                taken.append(name)
    return Growth(unflatten(made), tuple(taken), partly, tuple(new))


@dataclass(frozen=True)
class _Places:
    """Along one axis: by name, the places in the new tensor and in the old one.

    ``widths``: places of a name, in the new tensor and in the old one.
    """

    what: str
    pairs: tuple[tuple[slice, slice], ...]
    new: tuple[str, ...]
    lengths: tuple[int, int]
    widths: tuple[int, int]


def _rows(target: str, task: Task, old: Task) -> _Places | None:
    """Rows of a tensor by class of a target; None: its rows are no classes."""
    if not target or not (labels := task.target(target).labels):
        return None
    before = old.target(target).labels if target in old.target_names else ()
    return _places("class", labels, before, (1, 1))


def _columns(task: Task, old: Task) -> _Places:
    widths = task.network.feature_dim, old.network.feature_dim
    return _places("modality", task.modality_names, old.modality_names, widths)


def _places(what: str, names: Sequence[str], before: Sequence[str], widths: tuple[int, int]) -> _Places:
    def at(listed: Sequence[str], name: str, width: int) -> slice:
        place = listed.index(name) * width
        return slice(place, place + width)

    pairs = tuple(
        (at(names, name, widths[0]), at(before, name, widths[1])) for name in names if name in before
    )
    new = tuple(name for name in names if name not in before)
    return _Places(what, pairs, new, (len(names) * widths[0], len(before) * widths[1]), widths)


def _copied(
    tensor: FloatArray, before: FloatArray, rows: _Places | None, columns: _Places | None
) -> tuple[FloatArray, str] | None:
    """The tensor with the rows and columns that both have, and words about the others; None: nothing fits."""
    if tensor.ndim != before.ndim or before.shape[2:] != tensor.shape[2:]:
        return None
    for places, length, old_length in zip((rows, columns), tensor.shape, before.shape, strict=False):
        if places is None and length != old_length:
            return None
        if places is not None and ((length, old_length) != places.lengths or len({*places.widths}) > 1):
            return None
    out, whole = tensor.copy(), ((slice(None), slice(None)),)
    for to_row, of_row in whole if rows is None else rows.pairs:
        if columns is None:
            out[to_row] = before[of_row]
            continue
        for to, of in columns.pairs:
            out[to_row, to] = before[of_row, of]
    words = [
        f"new of {one.what} {', '.join(one.new)}" for one in (rows, columns) if one is not None and one.new
    ]
    return out, "; ".join(words)
