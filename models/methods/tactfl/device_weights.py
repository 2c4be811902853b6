"""From all devices' views to their weights, encoder by encoder, and warnings for the operator. NumPy only."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from models.contract import FloatArray, Tensors
from models.guided import DeviceWeights
from models.methods.tactfl import TactflConfig
from models.methods.tactfl.similarity import (
    Array,
    Group,
    Likeness,
    by_similarity,
    floored,
    pushed_out,
    shown,
)
from protocol.tasks.task import Task

ENCODER: Final = "encoder/"
"""Prefix of the blobs that devices train, and of the views through them."""
WINDOWS: Final = "windows/"
"""Name in a view of the number of windows that an encoder was trained on, (1,)."""
_MOST: Final = 4
"""Devices count their windows themselves: none counts for more than this many times the (lower) median."""
_NAMED: Final = 20
"""Devices that a warning names."""


def weighed(task: Task, config: TactflConfig, views: Mapping[str, Tensors]) -> DeviceWeights:
    """Weights of devices, encoder by encoder; see :meth:`models.methods.tactfl.server.TactflServer.weigh`."""
    weights: dict[str, dict[str, float]] = {}
    similarity: dict[str, Mapping[str, Mapping[str, float]]] = {}
    warnings: list[str] = []
    if config.weighting != "equal" and task.robust.fold != "mean":
        warnings.append(
            f'robust.fold = "{task.robust.fold}" gives every device one vote: '
            f'config.weighting = "{config.weighting}" has no effect'
        )
        config = config.model_copy(update={"weighting": "equal"})
    for blob in (f"{ENCODER}{name}" for name in task.modality_names):
        part = _Part(blob, views)
        shares = part.weights(config)
        if shares:
            weights[blob] = shares
            similarity[blob] = {} if part.alike is None else shown(part.devices, part.alike)
        warnings += part.warnings
    return DeviceWeights(weights, similarity, tuple(warnings))


class _Part:
    """One encoder's devices, sorted by name, and the similarity of their views.

    Attributes:
        devices: those that sent it, and have a finite view.
        alike: None if the labelled windows have none of the modality.
        warnings: as text.
    """

    def __init__(self, blob: str, views: Mapping[str, Tensors]) -> None:
        self._blob, self._views = blob, views
        self._windows = WINDOWS + blob.removeprefix(ENCODER)
        sent = sorted(device for device, view in views.items() if self._windows in view)
        here = {device: views[device].get(blob) for device in sent}
        finite = {device for device, view in here.items() if view is None or bool(np.isfinite(view).all())}
        self.devices = [device for device in sent if device in finite]
        self._wrong = [device for device in sent if device not in finite]
        self.alike: Likeness | None = None
        self.warnings: list[str] = []

    def weights(self, config: TactflConfig) -> dict[str, float]:
        """Device -> weight; adds to :attr:`warnings`."""
        if self._wrong:
            self.warnings.append(
                f"{self._blob}: {_named(self._wrong)}: the labelled windows give no finite numbers there; "
                "not folded"
            )
        count = len(self.devices)
        self.alike = self._compared(config)
        share_K: Array | None = None
        if count and config.weighting == "windows":
            share_K = self._by_windows()
        elif count and config.weighting == "similarity":
            share_K = self._similar(config)
        if share_K is None:
            share_K = np.full(count, 1.0 / max(1, count))
        share_K = floored(share_K, config.floor)
        if self.alike is not None and config.weighting == "similarity":
            groups = pushed_out(self.alike, share_K)
            self.warnings += [_words(self._blob, self.devices, group, config) for group in groups]
        return dict(zip(self.devices, share_K.tolist(), strict=True)) | dict.fromkeys(self._wrong, 0.0)

    def _by_windows(self) -> Array | None:
        """Shares of the windows that they reported; None: no device reported any."""
        windows_K = np.array([float(self._views[device][self._windows][0]) for device in self.devices])
        most = _MOST * np.sort(windows_K)[(len(windows_K) - 1) // 2]
        over = [device for device, said in zip(self.devices, windows_K, strict=True) if said > most]
        if over:
            self.warnings.append(
                f"{self._blob}: {_named(over)}: by their own count, they trained on more windows than "
                f"{_MOST} times the usual; counted as {most:.0f}"
            )
        counted_K = np.minimum(windows_K, most)
        return counted_K / counted_K.sum() if most > 0 else None

    def _compared(self, config: TactflConfig) -> Likeness | None:
        rows: list[FloatArray] = [
            self._views[device][self._blob] for device in self.devices if self._blob in self._views[device]
        ]
        if not rows:
            return None
        if len(rows) < len(self.devices) or len({row.shape for row in rows}) > 1:
            raise ValueError(f"{self._blob}: the devices' views differ in length")
        return Likeness.of(np.stack(rows), centre=config.centre)

    def _similar(self, config: TactflConfig) -> Array | None:
        """Weights (3) before the floor; None: equal ones, and a warning gives the reason."""
        if self.alike is None:
            name = self._blob.removeprefix(ENCODER)
            why = f"no labelled window has {name!r}, so devices cannot be compared: equal weights"
            self.warnings.append(f"{self._blob}: {why}")
            return None
        share_K = by_similarity(self.alike.mean_to_others(), config)
        if share_K is None:
            why = f'config.rule = "{config.rule}": the similarities sum to nothing positive: equal weights'
            self.warnings.append(f'{self._blob}: {why}; rule = "softmax" takes any')
        return share_K


def _named(devices: Sequence[str]) -> str:
    more = len(devices) - _NAMED
    return ", ".join(devices[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _words(blob: str, devices: Sequence[str], group: Group, config: TactflConfig) -> str:
    # names last: a log that cuts the text keeps the numbers
    return (
        f"{blob}: {len(group.devices)} devices weigh {group.weight:.3f} together, where equal shares make "
        f"{group.equal:.3f}: they agree among themselves (similarity {group.within:.3f}) and less with the "
        f"others ({group.between:.3f}). If they are sound but unusual, raise config.floor (now "
        f"{config.floor:g}). They are {_named([devices[k] for k in group.devices])}"
    )
