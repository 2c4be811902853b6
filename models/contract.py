"""Interfaces of a federated method (docs/architecture.md). Torch-free: both daemons import it.

Tensor names are paths; all parts but the last name the blob:
``encoder/accelerometer/...``, ``head/...``, ``prototypes/accelerometer/...``. See :func:`blob_of`.

Shapes: B windows, M modalities, C channels, T samples, D features, K classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from models.partials import FoldParts
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec
from protocol.tasks.task import LABEL, Task

FloatArray = NDArray[np.float32]
Tensors = dict[str, FloatArray]
Blobs = dict[str, Tensors]
"""Global state: blob name -> tensors (full names). NumPy float32."""


def blob_of(tensor: str) -> str:
    """The blob of a tensor: its path without the last part (``head/fc1.weight`` -> ``head``)."""
    parts = tensor.split("/")
    return "/".join(parts[:-1])


@dataclass(frozen=True)
class Context:
    """The stream before and during each window (``task.window.context_s``).

    Attributes:
        x: per modality ``x_BCL`` float32, in the modality's unit; the last T of its L grid points are the
            window; zeros for values not recorded, or of a modality that the window lacks.
        points_BM: int64, number of the L points without a gap, counted back from the window's end; at least T
            for a present modality, 0 for a missing one.
    """

    x: dict[str, FloatArray]
    points_BM: NDArray[np.int64]


@dataclass(frozen=True)
class WindowSet:
    """Windows of one device (or of an evaluation set).

    Attributes:
        x: per modality ``x_BCT`` float32, in the modality's unit (the network normalises); zeros if
            missing.
        present_BM: bool, columns in the task's modality order.
        quality_BM: float32 in 0..1 from the quality indicator; 1 if missing or unknown.
        y_B: int64 class index of the target ``label``, -1 if unlabelled.
        targets: by name of a further classification or regression, ``y_B`` float32: class index, or value in
            the target's unit; NaN if unlabelled. An absent target is unlabelled everywhere. (The values of a
            generation are in ``x``.)
        context: the stream before each window; None if not stored.
        group_B: text: the person or device of a window, for scores by group; None if unknown.
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
    """Inputs and targets of a device, in the task's order. Hashable.

    Attributes:
        modalities: inputs that it has.
        targets: names of the task's objectives that it has labels for.
    """

    modalities: tuple[str, ...]
    targets: tuple[str, ...] = (LABEL,)


@dataclass(frozen=True)
class ClientContext:
    """The context of a device's training: all that it may depend on besides material and state."""

    task: Task
    device: str
    round: int
    seed: int
    """Equal seeds, windows and states give equal bytes."""
    profile: Profile | None = None
    """Inputs and targets of this device; None: the modalities of its windows, and ``label``."""


@dataclass
class LocalResult:
    """Result of local training: what the device sends (before quantization), and what it stores.

    Attributes:
        tensors: to send. Model parts are *deltas* against the base; prototypes and keys are values.
        codecs: per tensor; those not named use the task's uplink codec with error carry. Tensors whose
            shapes change between rounds must be named; their method handles the error carry.
        weight: integer weight in the fold.
        metrics: finite numbers for people.
        extra: the method's own message (JSON).
        private: stays on the device; argument of the next round.
    """

    tensors: Tensors
    codecs: dict[str, Codec] = field(default_factory=dict)
    weight: int = 1
    metrics: dict[str, float] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    private: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a global version on labelled windows.

    Attributes:
        metrics: finite numbers; of windows ``accuracy``, ``macro_f1``, ``loss`` and ``windows`` at least.
        confusion_KK: counts; row: true class, column: predicted.
        by: metrics of parts of the windows (:data:`models.training.evaluation.PARTS`), by the part's kind
        and name.
    """

    metrics: dict[str, float]
    confusion_KK: list[list[int]]
    by: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)


class LinearClient(Protocol):
    """The device's half for tasks whose network is one linear layer. Imports no torch."""

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """As :meth:`Client.train`."""


class Client(Protocol):
    """A device's half; lives in ``client.py`` and may import torch. Made by ``make_client()`` there."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh global state."""

    def train(self, context: ClientContext, windows: Any, state: Blobs, private: Tensors) -> LocalResult:
        """Train locally from ``state``: the blobs of this device's route, and those that it owns.

        Args:
            context: device, round and seed.
            windows: a :class:`WindowSet`, or the method's other material (``models.materials``).
            state: the base version.
            private: the last :attr:`LocalResult.private`; empty at first, or if it was lost.

        Raises:
            Transient: there is no material; the message names the device.
            Refused: NON_FINITE: training diverged.
        """

    def evaluate(self, task: Task, windows: Any, state: Blobs) -> Evaluation:
        """Evaluate a global state on labelled windows, with missing modalities as at inference.

        Raises:
            Misconfigured: no window is labelled, or the method cannot evaluate a state without private parts.
        """

    def inference_model(self, task: Task, state: Blobs) -> Any:
        """The ``torch.nn.Module`` that :meth:`evaluate` runs and that export turns into ONNX."""


class Prototyper(Protocol):
    """A device's half without torch, for the role ``prototype``; lives in ``prototyper.py``; NumPy only.

    Made by ``make_prototyper()`` there. The device computes features with the encoder models and sends only a
    summary of them by class.
    """

    def modalities(self, task: Task, windows: WindowSet) -> tuple[str, ...]:
        """The modalities whose features are needed: those present in a labelled window."""

    def summarise(
        self,
        context: ClientContext,
        windows: WindowSet,
        features: Mapping[str, FloatArray],
        private: Tensors,
    ) -> LocalResult:
        """Summarise features by class.

        Args:
            context: as for :meth:`Client.train`.
            windows: labelled or not; unlabelled ones are ignored.
            features: by modality, ``z_BD`` for *all* rows of ``windows``, before any normalisation; rows
                without the modality are ignored. A modality without features counts as missing.
            private: the last :attr:`LocalResult.private`.

        Raises:
            Transient: there is nothing to send; the detail says why.
        """


@dataclass(frozen=True)
class Update:
    """A decoded, dequantized, finite update."""

    header: UpdateHeader
    tensors: Tensors


class Fold(Protocol):
    """One round's running aggregate: O(model) memory, order-independent to the bit."""

    def fold(self, update: Update) -> None:
        """Add one update, which ``Server.check`` has passed; without duplicates."""

    def merge(self, other: Self) -> None:
        """Add another fold of the same round; grouping does not matter."""

    def parts(self) -> FoldParts:
        """All that updates change (:class:`models.aggregation.partial_results.PartwiseFold`)."""

    def close(self) -> Blobs:
        """The next global state."""


class Server(Protocol):
    """The coordinator's half; lives in ``server.py``; NumPy only. Made by ``make_server()`` there."""

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """Names of the blobs that such a device may need; a :class:`Router` chooses among them."""

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """Names of the blobs that a device of role ``prototype`` needs to make features of these modalities.

        A part of :meth:`route`; empty if the method lacks the role.
        """

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Check an update against the model.

        Raises:
            Refused: wrong tensor names, shapes, bounds, counts or extra message; the detail names the tensor.
        """

    def open(self, task: Task, round_: int, state: Blobs) -> Fold:
        """Begin a round on this global state."""


class RoutedServer(Server, Protocol):
    """The coordinator's half of a method that is ``routed``: devices hold parts of the model."""

    def serving_route(self, task: Task, profile: Profile, extra: Mapping[str, Any] | None) -> tuple[str, ...]:
        """Names of the blobs in the exported model of such a device, sorted.

        Args:
            task: names and options.
            profile: the device's.
            extra: the message of its last accepted update, or its :meth:`serving_message`; None without one.

        Raises:
            Refused: the message is not one of the method's.
        """

    def serving_message(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a message that :meth:`serving_route` reads: what a secure round tells of a device.

        Raises:
            Refused: the message is not one of the method's.
        """


class Router(Protocol):
    """The gate of a method that is ``routed``; lives in ``router.py``; NumPy only: the agent asks it.

    Made by ``make_router()`` there. A device fetches the blobs of :meth:`first`, calls :meth:`choose`, and
    fetches the rest of its route.
    """

    def first(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """Names of the blobs that :meth:`choose` reads; a part of ``Server.route``."""

    def choose(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> tuple[str, ...]:
        """Names of all blobs of this device's route in this round, including :meth:`first`.

        Args:
            context: with the device's profile; the same context and data give the same choice.
            windows: to train on.
            state: the blobs of :meth:`first`.
            private: the last :attr:`LocalResult.private`.
        """
