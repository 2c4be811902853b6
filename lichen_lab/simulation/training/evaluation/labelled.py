"""The labelled windows of a simulated coordinator, if the method learns from them."""

from pathlib import Path
from typing import Final

import numpy as np

from lichen.backbones.features import WindowFeatures
from lichen_lab.simulation.data.streams import rng_of
from models import registry
from models.contract import WindowSet
from models.data import window_set
from protocol.errors import Misconfigured
from protocol.tasks.labelling import Labelled

SHARE: Final = 0.1
"""Default share of a data set's training windows."""
_PURPOSE: Final = 109


def labelled_of(features: WindowFeatures, folder: Path, file: Path | None) -> WindowSet | None:
    """The windows of ``file``, or those that the task names; None if the method learns from none.

    Args:
        features: of the task, which names the method, and how the file is read.
        folder: the task file's.
        file: instead of the task's.

    Raises:
        Misconfigured: none are named, or the file cannot be read as such.
    """
    task = features.cut
    spec = registry.method(task.method)
    if file is not None:
        if not spec.guided:
            raise Misconfigured(f"--labelled: method {task.method!r} learns nothing at the coordinator")
        path = str(file.resolve())
        named = (
            Labelled(file=path) if task.labelled is None else task.labelled.model_copy(update={"file": path})
        )
        task = task.model_copy(update={"labelled": named})
    if not spec.guided:
        return None
    spec.require_labelled(task)
    from models.data.labelled_windows import load  # noqa: PLC0415 - only for such a method

    return features.of(load(task, folder), "labelled")


def parted(windows: WindowSet, share: float, seed: int) -> tuple[WindowSet, WindowSet]:
    """A share of the windows, drawn at random, and the others; each in their order.

    Raises:
        Misconfigured: one of the two would be empty.
    """
    count = round(share * len(windows))
    if not 0 < count < len(windows):
        raise Misconfigured(
            f"--labelled-share {share:g} of {len(windows)} windows: the coordinator needs some, and so do "
            "the devices"
        )
    drawn = rng_of(seed, _PURPOSE).permutation(len(windows))
    known, others = (window_set.select(windows, np.sort(part)) for part in (drawn[:count], drawn[count:]))
    return known, others
