"""The coordinator half of TACTFL: device weights (3), and encoders folded by them. NumPy only."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from models.aggregation.exact_sums import MAX_ABS
from models.aggregation.partial_results import PartwiseFold
from models.aggregation.robust import delta_fold
from models.contract import Blobs, Profile, Tensors, Update, blob_of
from models.guided import DeviceWeights
from models.header_checks import check_counts, check_weight_one
from models.methods.tactfl import METHOD
from models.methods.tactfl.device_weights import ENCODER, weighed
from models.methods.tactfl.messages import TactflMessage
from models.partials import FoldParts
from models.tensors import apply, blobs_of, check_names, check_tensor, flatten, shapes, unflatten
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task

_WHOLE: Final = 1 << 20
"""Sum of the integer weights of all devices, about; it leaves room in a fold's sum."""


def _encoders(state: Blobs) -> Tensors:
    """The tensors that are sent as deltas."""
    return flatten({blob: tensors for blob, tensors in state.items() if blob.startswith(ENCODER)})


class TactflServer:
    """See :class:`models.guided.GuidedServer`."""

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """The device's encoders. Contrast does not use the head: predictions come from bundles."""
        own = set(profile.modalities)
        return tuple(f"{ENCODER}{name}" for name in task.modality_names if name in own)

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """None: there is no such role."""
        del task, modalities
        return ()

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Compare an update with the model; see :class:`models.contract.Server`.

        Raises:
            Refused: the detail names the tensor, or the field of the header or of the extra message.
        """
        check_weight_one(update.header, "with TACTFL the coordinator weighs devices")
        check_counts(task, update.header)
        if not update.tensors:
            raise Refused(Reason.WRONG_TENSORS, "the update has no tensors")
        base, sent = _encoders(state), blobs_of(update.tensors)
        check_names(update.tensors, [name for name in base if blob_of(name) in sent], "encoders, each whole")
        bound = METHOD.configure(task).max_delta
        for name, delta in update.tensors.items():
            check_tensor(name, delta, base[name].shape, bound)
        _check_windows(update, [blob.removeprefix(ENCODER) for blob in sent])

    def open(self, task: Task, round_: int, state: Blobs) -> "TactflFold":
        """Begin a round with equal weights; ``round_`` is not read."""
        del round_
        return TactflFold(task, state, None)

    def weigh(self, task: Task, views: Mapping[str, Tensors]) -> DeviceWeights:
        """Weights of devices, encoder by encoder; see :class:`models.guided.GuidedServer`.

        A device with a view that is not finite has weight zero, and the warnings name it. Robust folds
        (``task.robust.fold``) give every device one vote, so weights are equal there.

        Args:
            task: its options.
            views: device -> by encoder, its view, and ``windows/<modality>``.

        Raises:
            ValueError: views of one encoder differ in length (a fault of ours).
        """
        return weighed(task, METHOD.configure(task), views)

    def open_guided(self, task: Task, round_: int, state: Blobs, weighing: DeviceWeights) -> "TactflFold":
        """Begin a round with the weights of :meth:`weigh`."""
        del round_
        return TactflFold(task, state, weighing.weights)


class TactflFold(PartwiseFold):
    """One round's running aggregate; see :class:`models.contract.Fold`."""

    def __init__(self, task: Task, state: Blobs, weights: Mapping[str, Mapping[str, float]] | None) -> None:
        self._state = state
        self._deltas = delta_fold(task.robust, shapes(_encoders(state)), MAX_ABS)
        self._shares = None if weights is None else {b: _integers(share) for b, share in weights.items()}

    def fold(self, update: Update) -> None:
        """Add one update that :meth:`TactflServer.check` has accepted.

        Raises:
            ValueError: the device has no weight (a fault of ours).
        """
        for blob in blobs_of(update.tensors):
            share = self._share(blob, update.header.device)
            if share:
                sent = {name: tensor for name, tensor in update.tensors.items() if blob_of(name) == blob}
                self._deltas.add(sent, share)

    def _share(self, blob: str, device: str) -> int:
        if self._shares is None:
            return 1
        share = self._shares.get(blob, {}).get(device)
        if share is None:
            raise ValueError(f"device {device!r} has no weight for {blob!r}: it was not looked at")
        return share

    def parts(self) -> FoldParts:
        """Deltas; folds of one round have the same weights."""
        return {"deltas": self._deltas}

    def close(self) -> Blobs:
        """The next global state: base + weighted mean delta; what was not sent is the same to the bit."""
        return unflatten(apply(flatten(self._state), self._deltas.mean()))


def _integers(share: Mapping[str, float]) -> dict[str, int]:
    """Weights for :class:`models.aggregation.exact_sums.FixedPointSum`, whose sums do not depend on order."""
    return {device: max(1, round(w * _WHOLE)) if w > 0 else 0 for device, w in share.items()}


def _check_windows(update: Update, modalities: Sequence[str]) -> None:
    """``extra.windows`` counts those of the encoders that were sent, no more than there are samples."""
    windows = TactflMessage.read(update.header.extra).windows
    if set(windows) != set(modalities):
        raise Refused(
            Reason.WRONG_MODALITY,
            f"extra.windows counts {', '.join(sorted(windows)) or 'nothing'}, "
            f"the encoders sent are of {', '.join(sorted(modalities))}",
        )
    for name, count in windows.items():
        if count > update.header.samples:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"extra.windows.{name} is {count}, the update was made from {update.header.samples} samples",
            )


make_server = TactflServer
