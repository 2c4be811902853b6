"""What a federated method is (DESIGN section 3). Torch-free: both daemons read it.

Tensor names are paths whose first two parts (or one) name the blob they travel in:
``encoder/accelerometer/...``, ``head/...``, ``prototypes/accelerometer/...``. :func:`blob_of` says which.

Shapes: B windows, M modalities, C channels, T samples, D features, K classes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from protocol.task import Task
from protocol.tensors import Codec
from protocol.updates import UpdateHeader

FloatArray = NDArray[np.float32]
Tensors = dict[str, FloatArray]
Blobs = dict[str, Tensors]
"""Global state: blob name -> tensors (full names). NumPy float32."""


def blob_of(tensor: str) -> str:
    """The blob a tensor travels in: all of its path but the last part (``head/fc1.weight`` -> ``head``)."""
    parts = tensor.split("/")
    return "/".join(parts[:-1])


@dataclass(frozen=True)
class WindowSet:
    """Windows of one device (or of an evaluation set).

    Attributes:
        x: per modality ``x_BCT`` float32, in the modality's unit (the network normalises); zeros where
            missing.
        present_BM: bool, columns in the task's modality order.
        quality_BM: float32 in 0..1 from the quality indicator; 1 where it is missing or unknown.
        y_B: int64 class index, -1 where unlabelled.
    """

    x: dict[str, FloatArray]
    present_BM: NDArray[np.bool_]
    quality_BM: FloatArray
    y_B: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y_B)


@dataclass(frozen=True)
class ClientContext:
    """What a device's training step may depend on."""

    task: Task
    device: str
    round: int
    seed: int
    """Same seed, windows and globals: the same bytes."""


@dataclass
class LocalResult:
    """What a device sends (before quantization), and what it keeps.

    Attributes:
        tensors: to travel. Model parts are *deltas* against the base; prototypes are values.
        codecs: per tensor; those not named use the task's uplink codec with error carry.
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
        metrics: finite numbers; ``accuracy``, ``macro_f1``, ``loss`` and ``windows`` at least.
        confusion_KK: counts; row: true class, column: predicted.
    """

    metrics: dict[str, float]
    confusion_KK: list[list[int]]

    @property
    def recall_K(self) -> tuple[float | None, ...]:  # noqa: N802 - shape legend
        """By class, the share of its windows that were predicted as such; None where it has no window."""
        return tuple(row[c] / sum(row) if sum(row) else None for c, row in enumerate(self.confusion_KK))


class Client(Protocol):
    """A device's half; lives in ``client.py`` and may import torch. Made by ``make_client()`` there."""

    def initial(self, task: Task, seed: int) -> Blobs:
        """A fresh global state."""

    def train(
        self, context: ClientContext, windows: WindowSet, state: Blobs, private: Tensors
    ) -> LocalResult:
        """Learn locally from ``state`` (only the blobs on this device's route)."""

    def evaluate(self, task: Task, windows: WindowSet, state: Blobs) -> Evaluation:
        """Judge a global state on labelled windows, missing modalities handled as at inference."""

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

    def route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """Names of the blobs that a device with these modalities needs."""

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


@dataclass(frozen=True)
class MethodSpec:
    """What a method folder's ``__init__`` says about it. Torch-free."""

    name: str
    title: str
    paper: str
    config: type[BaseModel]
    needs_labels: bool
    may_miss_modality: bool
    symbols: Mapping[str, str] = field(default_factory=dict)
    """The paper's symbol -> our name."""
    prototype_role: bool = False
    """Devices without torch can teach the fleet by prototypes alone: there is a ``prototyper.py``."""
    trains: Callable[[Any], bool] = lambda _config: True
    """Whether devices train under a config. Where they do not, devices of role ``prototype`` alone can make a
    round; where they do, a round needs a device that trains."""

    personal: Callable[[Any], tuple[str, ...]] = lambda _config: ()
    """The parts of a state (first words of blob names) that a device keeps its own of, under a config; then
    there is a ``personal.py``."""

    def configure(self, task: Task) -> BaseModel:
        """The task's ``config`` table, checked.

        Raises:
            Misconfigured: an option is unknown or wrong; the message names it.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - only on this path

        from protocol.errors import Misconfigured  # noqa: PLC0415

        try:
            return self.config.model_validate(task.config)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(["config", *map(str, first["loc"])])
            raise Misconfigured(f"task {task.name!r}, method {self.name!r}: {path}: {first['msg']}") from None

    def server(self) -> Server:
        """The coordinator's half (NumPy)."""
        made: Server = import_module(f"models.methods.{self.name}.server").make_server()
        return made

    def client(self) -> Client:
        """The device's half (may import torch: call it in the worker only)."""
        made: Client = import_module(f"models.methods.{self.name}.client").make_client()
        return made

    def blended(self, task: Task, state: Blobs, private: Tensors) -> Blobs:
        """A state as a device's own predictions use it, by the method's ``personal.py`` (NumPy).

        Args:
            task: its config says what is personal.
            state: at least the parts of :attr:`personal`.
            private: what the device keeps; names that the state does not have are passed over.

        Returns:
            The state; blobs that stay global are the same objects.
        """
        config = self.configure(task)
        if not self.personal(config):
            return state
        module = import_module(f"models.methods.{self.name}.personal")
        made: Blobs = module.blended(config, state, private)
        return made

    def prototyper(self) -> Prototyper:
        """The half of a device that only sends prototypes (NumPy).

        Raises:
            Misconfigured: the method has no such role.
        """
        from protocol.errors import Misconfigured  # noqa: PLC0415 - only on this path

        if not self.prototype_role:
            raise Misconfigured(f"method {self.name!r}: devices of role prototype cannot take part in it")
        made: Prototyper = import_module(f"models.methods.{self.name}.prototyper").make_prototyper()
        return made
