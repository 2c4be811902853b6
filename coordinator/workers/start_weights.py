"""Version 0 from a file of weights (``[start] weights``), in place of fresh ones."""

from pathlib import Path

from models.contract import Blobs
from models.tensors import flatten, read_npz, shapes, unflatten
from protocol.errors import Misconfigured


def load_start_weights(fresh: Blobs, file: Path) -> Blobs:
    """The weights of the file, which must have the names and shapes of the fresh ones.

    Args:
        fresh: the task's initial state.
        file: npz, as ``lichen task grow`` writes it.

    Raises:
        Misconfigured: the file cannot be read, or is of another task; names the first tensor that differs.
    """
    wanted, found = flatten(fresh), read_npz(file)
    if shapes(wanted) == shapes(found):
        return unflatten(found)
    for name in (*wanted, *found):
        before, after = found.get(name), wanted.get(name)
        if before is None or after is None or before.shape != after.shape:
            has = "is missing" if before is None else f"has shape {before.shape}"
            wants = "is not in the task's network" if after is None else f"the task's has {after.shape}"
            raise Misconfigured(
                f"start.weights: {file}: tensor {name!r} {has}, and {wants}; make it anew: lichen task grow"
            )
    raise Misconfigured(f"start.weights: {file}: is not of this task")
