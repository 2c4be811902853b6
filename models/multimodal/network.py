"""The network of a task, and its conversion to and from the blobs of a global version."""

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Self, cast

import torch
from torch import Tensor, nn

from models.contract import Blobs
from models.multimodal.encoders.dense import Unchanged
from models.multimodal.encoders.registry import make_encoder
from models.multimodal.encoders.steps import Stepped, in_parts, measure_norms, windows_at_once
from models.multimodal.fusion import Head, LinearHead
from models.multimodal.own_parts import own_encoder, own_network
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.network import LINEAR, Encoder, Network, is_own
from protocol.tasks.task import Modality, Task


class MultimodalNetwork(nn.Module):
    """One encoder for each modality of the task, one head.

    Attributes:
        names: modality names in the task's order.
        encoders: name -> encoder.
        head: see :class:`models.multimodal.fusion.Head`; or that of a package.
        shape: K classes and D of a feature.
        windows_at_once: that may go through the network at a time, without a gradient.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.names = task.modality_names
        self.affine = {m.name: (m.offset, m.scale) for m in task.modalities}
        dim, hidden = task.network.feature_dim, task.network.hidden_dim
        self.shape = len(task.labels), dim
        self.head: nn.Module
        if is_own(task.network.kind):
            made, self.head = own_network(task)
            self.encoders = nn.ModuleDict(made)
        elif task.network.kind == LINEAR:
            self.encoders = nn.ModuleDict(
                {m.name: Unchanged(m.channels * task.samples(m.name)) for m in task.modalities}
            )
            self.head = LinearHead(len(self.names), dim, len(task.labels))
        else:
            self.encoders = nn.ModuleDict({m.name: _encoder(task, m) for m in task.modalities})
            self.head = Head(len(self.names), dim, hidden, len(task.labels))
        self.windows_at_once = min(
            windows_at_once(self.stepped(m.name), m.channels * task.samples(m.name)) for m in task.modalities
        )

    @property
    def two_layers(self) -> Head:
        """The head, for methods that train it layer by layer.

        Raises:
            Misconfigured: it is that of a package, or has one layer.
        """
        if not isinstance(self.head, Head):
            raise Misconfigured(
                f"network.kind: the method needs a head of two layers, not {type(self.head).__name__}"
            )
        return self.head

    @cached_property
    def sent(self) -> dict[str, Tensor]:
        """The tensors that are sent, by full name: parameters and BatchNorm statistics.

        Found once: torch takes as long to find them as for a step of a small network.
        """
        parts: dict[str, nn.Module] = {f"encoder/{name}": encoder for name, encoder in self.encoders.items()}
        parts["head"] = self.head
        return {
            f"{blob}/{path}": tensor
            for blob, part in parts.items()
            for path, tensor in part.state_dict(keep_vars=True).items()
        }

    @cached_property
    def _every_module(self) -> tuple[nn.Module, ...]:
        return tuple(self.modules())

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """As torch's, without its checks of every attribute that is set, nor its search for modules."""
        for module in self._every_module:
            vars(module)["training"] = mode
        return self

    def encode(self, name: str, x_BCT: Tensor) -> Tensor:
        """The feature ``z_BD`` of a modality's windows, given in its raw unit."""
        z: Tensor = self.encoders[name](self.in_range(name, x_BCT))
        return z

    @property
    def any_length(self) -> frozenset[str]:
        """The modalities whose windows may have another length than the task's."""
        return frozenset(
            name for name, encoder in self.encoders.items() if getattr(encoder, "any_length", False)
        )

    def measure_norms(self, name: str, x_BCT: Tensor) -> Tensor:
        """Measure a modality's BatchNorm statistics on windows in its raw unit; returns their ``z_BD``.

        See :func:`models.multimodal.encoders.steps.measure_norms`.
        """
        return measure_norms(self.stepped(name), self.in_range(name, x_BCT))

    def features(self, name: str, x_BCT: Tensor) -> Tensor:
        """``z_BD`` as at inference, by BatchNorm's running statistics, without gradient."""
        self.eval()
        count = windows_at_once(self.stepped(name), x_BCT[:1].numel())
        return in_parts(partial(self.encode, name), x_BCT, count)

    def stepped(self, name: str) -> Stepped:
        """The encoder of a modality."""
        return cast("Stepped", self.encoders[name])

    def in_range(self, name: str, x_BCT: Tensor) -> Tensor:
        """A modality's windows in the task's scale, from its raw unit."""
        offset, scale = self.affine[name]
        if (offset, scale) == (0, 1):  # the same bits
            return x_BCT
        return (x_BCT - offset) / scale

    def classify(self, z: Mapping[str, Tensor]) -> Tensor:
        """``logits_BK`` of one feature ``z_BD`` for every modality of the task."""
        logits: Tensor = self.head([z[name] for name in self.names])
        return logits

    def forward(self, *x: Tensor) -> Tensor:
        """``logits_BK`` of windows with all modalities, one ``x_BCT`` each in the task's order."""
        return self.classify(
            {name: self.encode(name, x_BCT) for name, x_BCT in zip(self.names, x, strict=True)}
        )


def _encoder(task: Task, modality: Modality) -> nn.Module:
    chosen = task.encoder(modality.name)
    if is_own(chosen.kind):
        return own_encoder(task, modality)
    return make_encoder(chosen, modality, task.samples(modality.name), task.network.feature_dim)


def build(task: Task) -> MultimodalNetwork:
    """The network of a task with fresh parameters from torch's global random generator."""
    return MultimodalNetwork(task)


def to_blobs(net: MultimodalNetwork) -> Blobs:
    """A copy of the parameters and BatchNorm statistics: blobs ``encoder/<modality>`` and ``head``."""
    blobs: Blobs = {}
    for name, tensor in net.sent.items():
        blobs.setdefault(name.rpartition("/")[0], {})[name] = tensor.detach().cpu().numpy().copy()
    return blobs


def load_blobs(net: MultimodalNetwork, blobs: Blobs, *, partial: bool = False) -> None:
    """Copy blobs into the network. Blobs of other parts (prototypes) are ignored.

    Args:
        net: changed in place.
        blobs: as :func:`to_blobs` returns them.
        partial: leave encoders without a blob unchanged (a device that lacks the modality).

    Raises:
        Refused: a tensor is missing, has another shape, or belongs to the network's parts but not to it.
    """
    own = net.sent
    given = {
        name: x
        for blob, tensors in blobs.items()
        if blob.split("/")[0] in {"encoder", "head"}
        for name, x in tensors.items()
    }
    stray = sorted(given.keys() - own.keys())
    if stray:
        raise Refused(Reason.WRONG_TENSORS, f"tensor {stray[0]!r} is not the network's ({len(stray)} such)")
    with torch.no_grad():
        for name, tensor in own.items():
            value = given.get(name)
            if value is None and partial and name.rpartition("/")[0] not in blobs:
                continue
            if value is None or tuple(value.shape) != tuple(tensor.shape):
                got = "nothing" if value is None else f"shape {tuple(value.shape)}"
                raise Refused(
                    Reason.WRONG_TENSORS, f"tensor {name!r} has shape {tuple(tensor.shape)}, got {got}"
                )
            tensor.copy_(torch.from_numpy(value))


def two_branch_task(name: str = "two-branch") -> Task:
    """The reference task of the benchmarks: exactly 223,622 parameters.

    UCI-HAR's setting: accelerometer through five convolutions, gyroscope through one LSTM layer, 50 Hz,
    2.56 s windows (T = 128), six activities.
    """
    accelerometer = Modality(name="accelerometer", channels=3, rate_hz=50.0, unit="g")
    gyroscope = Modality(name="gyroscope", channels=3, rate_hz=50.0, unit="rad/s")
    labels = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
    encoders = {
        "accelerometer": Encoder(kind="cnn1d", width=32, depth=5),
        "gyroscope": Encoder(kind="lstm", width=128, depth=1),
    }
    network = Network(encoders=encoders, feature_dim=128, hidden_dim=278)
    return Task(name=name, labels=labels, modalities=(accelerometer, gyroscope), network=network)
