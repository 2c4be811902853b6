"""The windows of a device's round that can train with labels. Torch-free."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from models.contract import ClientContext, WindowSet
from models.data import window_set
from protocol.errors import Transient


def usable(
    context: ClientContext, windows: WindowSet, encoders: Collection[str], *, complete: bool
) -> tuple[WindowSet, dict[str, float]]:
    """The labelled windows that train, and counts of them and of the others.

    A modality without an encoder on the device counts as missing in all windows.

    Args:
        context: of the round.
        windows: of the device.
        encoders: modalities that this device has an encoder for.
        complete: only windows with all of the task's modalities train; otherwise those with one or more.

    Returns:
        Perhaps no window; and the metrics ``windows``, ``unlabelled`` and ``set_aside``.
    """
    present_BM = windows.present_BM & np.array([name in encoders for name in context.task.modality_names])
    labelled_B = windows.y_B >= 0
    use_B = labelled_B & (present_BM.all(axis=1) if complete else present_BM.any(axis=1))
    used = replace(window_set.where(windows, use_B), present_BM=present_BM[use_B])
    return used, {
        "windows": float(len(used)),
        "unlabelled": float((~labelled_B).sum()),
        "set_aside": float((labelled_B & ~use_B).sum()),
    }


def nothing_to_learn(context: ClientContext, metrics: dict[str, float]) -> Transient:
    """The error of a round without a window that trains."""
    counted = ", ".join(f"{key} {value:.0f}" for key, value in metrics.items())
    return Transient(
        f"device {context.device!r}, round {context.round}: no labelled windows that can train ({counted})"
    )
