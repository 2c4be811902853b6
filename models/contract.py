"""What a federated method is (docs/architecture.md). Torch-free: both daemons read it.

Tensor names are paths whose first two parts (or one) name the blob they travel in:
``encoder/accelerometer/...``, ``head/...``, ``prototypes/accelerometer/...``. :func:`blob_of` says which.

Shapes: B windows, M modalities, C channels, T samples, D features, K classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec
from protocol.tasks.task import LABEL, Task

FloatArray = NDArray[np.float32]
Tensors = dict[str, FloatArray]
Blobs = dict[str, Tensors]
"""Global state: blob name -> tensors (full names). NumPy float32."""


def blob_of(tensor: str) -> str:
    """The blob a tensor travels in: all of its path but the last part (``head/fc1.weight`` -> ``head``)."""
    parts = tensor.split("/")
    return "/".join(parts[:-1])


@dataclass(frozen=True)
class Context:
    """The stretches of stream that windows are the ends of (``task.window.context_s``).

    Attributes:
        x: per modality ``x_BCL`` float32, in the modality's unit; the last T of its L grid points are the
            window; zeros where nothing was recorded, or where the modality is missing from the window.
        points_BM: int64, how many of the L points, counted back from the window's end, are there without a
            gap before the window; at least T where the modality is present, 0 where it is missing.
    """

    x: dict[str, FloatArray]
    points_BM: NDArray[np.int64]


@dataclass(frozen=True)
class WindowSet:
    """Windows of one device (or of an evaluation set).

    Attributes:
        x: per modality ``x_BCT`` float32, in the modality's unit (the network normalises); zeros where
            missing.
        present_BM: bool, columns in the task's modality order.
        quality_BM: float32 in 0..1 from the quality indicator; 1 where it is missing or unknown.
        y_B: int64 class index of the target ``label``, -1 where unlabelled.
        targets: by name of a further classification or regression, ``y_B`` float32: class index, or value in
            the target's unit; NaN where unlabelled. A target that is not there is unlabelled everywhere.
            (What a generation makes lies in ``x``.)
        context: longer stretches of the stream, one to each window; None where they were not kept.
        group_B: text: whose window it is (a person, a device), for scores by group; None where nobody said.
    """

    x: dict[str, FloatArray]
    present_BM: NDArray[np.bool_]
    quality_BM: FloatArray
    y_B: NDArray[np.int64]
    targets: dict[str, FloatArray] = field(default_factory=dict)
    context: Context | None = None
    group_B: NDArray[np.str_] | None = None

    def __len__(self) -> int:
        return len(self.y_B)


@dataclass(frozen=True)
class Profile:
    """What a device reads, and what it predicts; both in the task's order. Torch-free, and hashable.

    Attributes:
        modalities: inputs that it has.
        targets: names of the task's objectives that it has labels for.
    """

    modalities: tuple[str, ...]
    targets: tuple[str, ...] = (LABEL,)


@dataclass(frozen=True)
class ClientContext:
    """What a device's training step may depend on."""

    task: Task
    device: str
    round: int
    seed: int
    """Same seed, windows and globals: the same bytes."""
    profile: Profile | None = None
    """What this device reads and predicts; None: whatever its windows have, and ``label``."""


@dataclass
class LocalResult:
    """What a device sends (before quantization), and what it keeps.

    Attributes:
        tensors: to travel. Model parts are *deltas* against the base; prototypes and keys are values.
        codecs: per tensor; those not named use the task's uplink codec with error carry. A tensor whose shape
            changes from round to round is named here, and its method carries the error by itself.
        weight: integer share in the fold.
        metrics: finite numbers for people.
        extra: the method's own message (JSON).
        private: stays on the device, handed back at the next round.
    """

    tensors: Tensors
    codecs: dict[str, Codec] = field(default_factory=dict)
    weight: int = 1
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and friends of a global version on labelled windows.

    Attributes:
        metrics: finite numbers; of windows ``accuracy``, ``macro_f1``, ``loss`` and ``windows`` at least.
        confusion_KK: counts; row: true class, column: predicted.
        by: metrics of parts of the windows (:data:`models.training.evaluation.PARTS`), by the part's kind
        and name.
    """

    metrics: dict[str, float]
    confusion_KK: list[list[int]]
    by: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    @property
    def recall_K(self) -> tuple[float | None, ...]:  # noqa: N802 - shape legend
        """By class, the share of its windows that were predicted as such; None where it has no window."""
        return tuple(row[c] / sum(row) if sum(row) else None for c, row in enumerate(self.confusion_KK))


class Client(Protocol):
    """A device's half; lives in ``client.py`` and may import torch. Made by ``make_client()`` there."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh global state."""

    def train(self, context: ClientContext, windows: Any, state: Blobs, private: Tensors) -> LocalResult:
        """Learn locally from ``state``: only the blobs on this device's route, and those that it owns.

        Args:
            context: who, when, and with which seed.
            windows: a :class:`WindowSet`, or what else the method learns from (``models.materials``).
            state: of the base.
            private: what the last :attr:`LocalResult.private` was; empty at first, or where it was lost.

        Raises:
            Transient: there is nothing to learn from; the message names the device.
            Refused: NON_FINITE: training diverged.
        """

    def evaluate(self, task: Task, windows: Any, state: Blobs) -> Evaluation:
        """Judge a global state on labelled windows, missing modalities handled as at inference.

        Raises:
            Misconfigured: no window is labelled, or a state of this method cannot be judged by itself.
        """

    def inference_model(self, task: Task, state: Blobs) -> Any:
        """The ``torch.nn.Module`` that :meth:`evaluate` runs and that export turns into ONNX."""


class Prototyper(Protocol):
    """A device's half without torch, for the role ``prototype``; lives in ``prototyper.py``; NumPy only.

    Made by ``make_prototyper()`` there. The device computes features with the encoders' ONNX graphs and sends
    a summary of them by class, nothing else.
    """

    def modalities(self, task: Task, windows: WindowSet) -> tuple[str, ...]:
        """Those of the task's modalities whose features are wanted: present in some labelled window."""

    def summarise(
        self,
        context: ClientContext,
        windows: WindowSet,
        features: Mapping[str, FloatArray],
        private: Tensors,
    ) -> LocalResult:
        """What the device sends.

        Args:
            context: as for :meth:`Client.train`.
            windows: labelled and not; what has no label is passed over.
            features: by modality, ``z_BD`` for *all* rows of ``windows``, as the encoder gives them, before
                any normalisation; rows where the modality is missing are ignored, whatever they hold. A
                modality without features counts as missing.
            private: what the last :attr:`LocalResult.private` was.

        Raises:
            Transient: there is nothing to send; the detail counts why.
        """


@dataclass(frozen=True)
class Update:
    """A decoded, dequantized, finite update."""

    header: UpdateHeader
    tensors: Tensors


class Fold(Protocol):
    """One round's running aggregate: O(model) memory, order-independent to the bit."""

    def fold(self, update: Update) -> None:
        """Take one update. The caller has called ``Server.check`` and removed duplicates."""

    def merge(self, other: Self) -> None:
        """Take another fold of the same round: grouping does not matter."""

    def close(self) -> Blobs:
        """The next global state."""


class Server(Protocol):
    """The coordinator's half; lives in ``server.py``; NumPy only. Made by ``make_server()`` there."""

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """Names of the blobs that a device of this profile may need: a :class:`Router` chooses among them."""

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """Names of the blobs that a device of role ``prototype`` needs to make features of these modalities.

        Part of :meth:`route`; empty where the method has no such role.
        """

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Compare an update with the model.

        Raises:
            Refused: wrong tensor names, shapes, bounds, counts or extra message; the detail names the tensor.
        """

    def open(self, task: Task, round_: int, state: Blobs) -> Fold:
        """Begin a round on this global state."""


class RoutedServer(Server, Protocol):
    """The coordinator's half of a method that is ``routed``: devices hold parts of the model."""

    def serving_route(self, task: Task, profile: Profile, extra: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Names of the blobs that such a device's own exported model is made of, sorted.

        Args:
            task: names and options.
            profile: the device's.
            extra: the message of its last accepted update; None where there was none.

        Raises:
            Refused: the message is not one of the method's.
        """


class Router(Protocol):
    """The gate of a method that is ``routed``; lives in ``router.py``; NumPy only: the agent asks it.

    Made by ``make_router()`` there. A device fetches what :meth:`first` names, asks :meth:`choose`, and
    fetches the rest of its route: nothing that it will not use.
    """

    def first(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """Names of the blobs that the choice depends on, a part of ``Server.route``."""

    def choose(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> tuple[str, ...]:
        """Names of all blobs of this device's route in this round, those of :meth:`first` among them.

        Args:
            context: with the device's profile; the same context and data give the same choice.
            windows: that it will train on.
            state: the blobs of :meth:`first`.
            private: what the last :attr:`LocalResult.private` was.
        """
