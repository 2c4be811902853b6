"""Updates of a network that all devices share: one encoder a modality, and a head. Torch-free."""

from collections.abc import Collection, Mapping
from typing import Final

from models.contract import Blobs, Tensors
from models.tensors import check_names, check_tensors, flatten
from protocol.tasks.network import LINEAR
from protocol.tasks.task import Task

MODEL: Final = frozenset({"encoder", "head"})
"""First words of the network's blobs."""


def model_tensors(state: Blobs) -> Tensors:
    """The network's tensors of a state, which are sent as deltas."""
    return flatten({blob: tensors for blob, tensors in state.items() if blob.split("/", 1)[0] in MODEL})


def encoder_blobs(task: Task, modalities: Collection[str]) -> tuple[str, ...]:
    """Blobs of the encoders of some modalities, in the task's order; a linear network has none."""
    names = () if task.network.kind == LINEAR else task.modality_names
    return tuple(f"encoder/{name}" for name in names if name in modalities)


def check_model(base: Mapping[str, tuple[int, ...]], deltas: Tensors, bound: float) -> None:
    """Check that the head is whole, each encoder whole or absent, and that shapes and values fit.

    Args:
        base: shapes of all tensors that may be sent.
        deltas: of an update.
        bound: of absolute values.

    Raises:
        Refused: the detail names the tensor.
    """
    parts = {name.rsplit("/", 1)[0] for name in deltas if name.startswith("encoder/")} | {"head"}
    check_names(deltas, (name for name in base if name.rsplit("/", 1)[0] in parts), "model")
    check_tensors(deltas, base, bound)
