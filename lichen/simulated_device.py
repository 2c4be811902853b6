"""A device of a simulation: what an agent does with an offer, without its process, disk and link."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np

from edge_agent.packing import pack_update
from edge_agent.prototypes import Halt, features_of
from lichen.streams import Stream
from models import registry, windowset
from models.contract import (
    Blobs,
    Client,
    ClientContext,
    FloatArray,
    LocalResult,
    Prototyper,
    Server,
    Tensors,
    WindowSet,
)
from protocol.errors import Refused, Transient
from protocol.frame import digest
from protocol.messages import Offer
from protocol.task import Task

Role = Literal["train", "prototype"]
TRAIN: Final = "train"
PROTOTYPE: Final = "prototype"


@dataclass
class VirtualDevice:
    """A device without a process: its windows, and what stays on it between rounds.

    Attributes:
        name: as in the update's header.
        stream: what it holds at each round.
        number: its place in the fleet; decides, with seed and round, its order of samples.
        role: ``train``, or ``prototype``: features by the encoders' ONNX graphs, only prototypes up.
        private: the method's own, handed back each round; a round that gave no update leaves it as it was.
        carry: what quantization cut off so far, by tensor.
    """

    name: str
    stream: Stream
    number: int = 0
    role: Role = TRAIN
    private: Tensors = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)
    _held: tuple[int, WindowSet] | None = field(default=None, repr=False, compare=False)

    def update(
        self, context: ClientContext, client: Client, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """Train once from ``state``: the frame that goes up, and what it was made from.

        Raises:
            Transient: none of its windows can train this round.
            Refused: training gave a value that is not finite.
        """
        windows = self.labelled(context.round)
        return self._packed(context, windows, client.train(context, windows, state, self.private), base)

    def summary(
        self, context: ClientContext, prototyper: Prototyper, features: Mapping[str, FloatArray], base: str
    ) -> tuple[bytes, LocalResult]:
        """Its prototypes as the frame that goes up, without torch.

        Args:
            context: task, device, round and seed.
            prototyper: the method's.
            features: by modality, ``z_BD`` of all rows of :meth:`labelled`.
            base: digest of the version that the features come from.

        Raises:
            Transient: none of its windows can make a prototype.
            Refused: a prototype is not finite.
        """
        windows = self.labelled(context.round)
        result = prototyper.summarise(context, windows, features, self.private)
        return self._packed(context, windows, result, base)

    def _packed(
        self, context: ClientContext, windows: WindowSet, result: LocalResult, base: str
    ) -> tuple[bytes, LocalResult]:
        frame = self.pack(context, windows, result, base)
        self.private = result.private  # kept only with an update that goes up, as an agent does
        return frame, result

    def pack(self, context: ClientContext, windows: WindowSet, result: LocalResult, base: str) -> bytes:
        """Quantize with error carry and write the frame: the agent's own code."""
        task = context.task
        offer = Offer(
            task=task.name, round=context.round, base=base, base_size=0, closes_in_s=0, seed=context.seed
        )
        who = (self.name, self.modalities(task, context.round))
        frame, carry = pack_update(offer, task, who, windows, result, carry=self.carry)
        self.carry = carry if carry is not None else {}
        return frame

    def held(self, round_: int) -> WindowSet:
        """All it holds in that round; asked of the stream once a round."""
        if self._held is None or self._held[0] != round_:
            self._held = round_, self.stream.at(round_)
        return self._held[1]

    def forget(self) -> None:
        """Give the round's windows back: many devices need not keep them from round to round."""
        self._held = None

    def labelled(self, round_: int) -> WindowSet:
        """What it can learn from in that round: an agent's store keeps labelled windows alone."""
        windows = self.held(round_)
        labelled_B = windows.y_B >= 0
        return windows if labelled_B.all() else windowset.select(windows, labelled_B)

    def modalities(self, task: Task, round_: int) -> list[str]:
        """The modalities it has any window of in that round."""
        present_BM = self.held(round_).present_BM
        return [name for column, name in enumerate(task.modality_names) if present_BM[:, column].any()]


@dataclass(frozen=True)
class Delivery:
    """What came of one device in one round.

    Attributes:
        device: its name.
        frame: its update; None where it could not make one.
        metrics: of its training.
        why_not: why there is no frame.
    """

    device: str
    frame: bytes | None
    metrics: dict[str, float]
    why_not: str = ""


@dataclass
class Site:
    """Where devices are trained: the method's halves, made once for all of a process's devices.

    Attributes:
        task: what is learned.
        seed: of the simulation.
        graphs: by modality, the encoder's serialized graph (``export.features``); for prototype devices.
    """

    task: Task
    seed: int
    graphs: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def client(self) -> Client:
        """The training half; imports torch."""
        return registry.method(self.task.method).client()

    @cached_property
    def server(self) -> Server:
        """The coordinator's half, which knows the routes."""
        return registry.method(self.task.method).server()

    @cached_property
    def prototyper(self) -> Prototyper:
        """The half of devices without torch.

        Raises:
            Misconfigured: the method has none.
        """
        return registry.method(self.task.method).prototyper()

    def deliver(self, device: VirtualDevice, state: Blobs, round_: int) -> Delivery:
        """One device's round, from ``state``."""
        context = ClientContext(self.task, device.name, round_, _seed_of(self.seed, round_, device.number))
        base = digest(f"{self.task.name}/{round_ - 1}".encode())
        try:
            frame, result = _WORK[device.role](self, device, context, state, base)
        except (Refused, Transient) as error:
            return Delivery(device.name, None, {}, str(error))
        finally:
            device.forget()
        return Delivery(device.name, frame, result.metrics)

    def trained(
        self, device: VirtualDevice, context: ClientContext, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """The role ``train``."""
        route = self.server.route(self.task, device.modalities(self.task, context.round))
        return device.update(context, self.client, _on(route, state), base)

    def summarised(
        self, device: VirtualDevice, context: ClientContext, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """The role ``prototype``: only encoders go down, only prototypes up."""
        windows = device.labelled(context.round)
        wanted = self.prototyper.modalities(self.task, windows)
        encoders = _on(self.server.prototype_route(self.task, wanted), state)
        graphs = {name: self.graphs[name] for name in wanted}
        features = features_of(self.task, windows, graphs, encoders, 1, Halt())
        return device.summary(context, self.prototyper, features, base)


_WORK: Final = {TRAIN: Site.trained, PROTOTYPE: Site.summarised}


def _on(route: tuple[str, ...], state: Blobs) -> Blobs:
    """The blobs of a route, in the state's order."""
    wanted = set(route)
    return {name: tensors for name, tensors in state.items() if name in wanted}


def _seed_of(*keys: int) -> int:
    return int(np.random.SeedSequence(keys).generate_state(1)[0]) % 2**31
