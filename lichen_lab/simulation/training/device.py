"""A simulated device: does what an agent does with an offer, without process, disk and link."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from edge_agent.training.prototype_maker import features_of
from edge_agent.training.update_encoding import encode_update
from edge_agent.windows.observed_profile import follows_windows, training_windows
from lichen_lab.simulation.data.streams import RoundStream
from lichen_lab.simulation.training.crew.local_account import LocalAccount
from models import packages, registry
from models.contract import (
    Blobs,
    Client,
    ClientContext,
    FloatArray,
    LocalResult,
    Profile,
    Prototyper,
    Router,
    Server,
    Tensors,
    WindowSet,
)
from models.data import window_set
from models.spec import MethodSpec
from models.training.group_client import GroupMember
from protocol.errors import Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import Offer
from protocol.tasks.task import Task

Role = Literal["train", "prototype"]
TRAIN: Final = "train"
_OFFER: Final = "offer"
_CLIP: Final = "offer/clip"
PROTOTYPE: Final = "prototype"


@dataclass
class VirtualDevice:
    """A device without a process: its windows, and its state between rounds.

    Attributes:
        name: as in the update's header.
        stream: the windows that it holds at each round.
        number: its place in the fleet; with seed and round it decides the order of samples.
        role: ``train``, or ``prototype``: features by the encoders' ONNX graphs, and only prototypes sent.
        may: what it may read and predict, if the method lets devices differ; None: all that its windows have.
        private: the method's private tensors, given back each round; a round without an update leaves them
            unchanged.
        carry: quantization error so far, by tensor.
        clip: of the round's offer, if it adapts.
        account: of a task with ``[local_privacy]``, as on an agent.
    """

    name: str
    stream: RoundStream
    number: int = 0
    role: Role = TRAIN
    may: Profile | None = None
    private: Tensors = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)
    clip: float | None = None
    account: LocalAccount = field(default_factory=LocalAccount)
    _held: tuple[int, WindowSet] | None = field(default=None, repr=False, compare=False)
    _material: tuple[int, Profile, WindowSet] | None = field(default=None, repr=False, compare=False)

    def material(self, task: Task, round_: int) -> tuple[Profile, WindowSet]:
        """What it reads and predicts in that round, and its training windows; chosen as by an agent.

        Raises:
            Transient: none of its windows has a modality that it reads and a label of a target.
        """
        if self._material is None or self._material[0] != round_:
            self._material = round_, *self._sorted_out(task, round_)
        return self._material[1:]

    def _sorted_out(self, task: Task, round_: int) -> tuple[Profile, WindowSet]:
        if follows_windows(task):
            return training_windows(task, self.may, self.held(round_))
        needs_labels = registry.method(task.method).needs_labels
        windows = self.labelled(round_) if needs_labels else self.held(round_)
        return Profile(tuple(self.modalities(task, round_))), windows

    def update(
        self, context: ClientContext, client: Client, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """Train once from ``state``: the update's frame, and the result it was made from.

        Args:
            context: its profile is used; without one it follows from the windows.
            client: of the method.
            state: the blobs of its route.
            base: digest of the version.

        Raises:
            Transient: none of its windows can train this round, or its account has no room for it.
            Refused: training gave a value that is not finite.
        """
        profile, windows = self.material(context.task, context.round)
        if context.profile is None:
            context = replace(context, profile=profile)
        self.account.require_room(context.task, len(windows))
        return self.packed(context, windows, client.train(context, windows, state, self.private), base)

    def summary(
        self, context: ClientContext, prototyper: Prototyper, features: Mapping[str, FloatArray], base: str
    ) -> tuple[bytes, LocalResult]:
        """Its prototypes as an update's frame, without torch.

        Args:
            context: task, device, round and seed.
            prototyper: of the method.
            features: by modality, ``z_BD`` of all rows of :meth:`labelled`.
            base: digest of the version that the features come from.

        Raises:
            Transient: none of its windows can make a prototype.
            Refused: a prototype is not finite.
        """
        windows = self.labelled(context.round)
        result = prototyper.summarise(context, windows, features, self.private)
        return self.packed(context, windows, result, base)

    def packed(
        self, context: ClientContext, windows: WindowSet, result: LocalResult, base: str
    ) -> tuple[bytes, LocalResult]:
        """The frame of a result, which becomes this device's; and the result."""
        result = self.account.charged(context.task, result)
        frame = self.pack(context, windows, result, base)
        self.private = result.private  # kept only with an update that is sent, as an agent does
        return frame, result

    def pack(self, context: ClientContext, windows: WindowSet, result: LocalResult, base: str) -> bytes:
        """Quantize with error carry and encode the frame, with the agent's own code."""
        task = context.task
        offer = Offer(
            task=task.name, round=context.round, base=base, base_size=0, closes_in_s=0, clip=self.clip
        )
        profile = context.profile
        who = (self.name, self.modalities(task, context.round) if profile is None else profile.modalities)
        frame, carry = encode_update(offer, task, who, windows, result, carry=self.carry)
        self.carry = carry if carry is not None else {}
        return frame

    def held(self, round_: int) -> WindowSet:
        """All windows that it holds in that round; the stream is read once a round."""
        if self._held is None or self._held[0] != round_:
            self._held = round_, self.stream.at(round_)
        return self._held[1]

    def forget(self) -> None:
        """Drop the round's windows: they need not stay in memory from round to round."""
        self._held = self._material = None

    def labelled(self, round_: int) -> WindowSet:
        """Its windows of that round for a method that needs labels."""
        windows = self.held(round_)
        return window_set.where(windows, windows.y_B >= 0)

    def modalities(self, task: Task, round_: int) -> list[str]:
        """The modalities that any of its windows has in that round."""
        present_BM = self.held(round_).present_BM
        return [name for column, name in enumerate(task.modality_names) if present_BM[:, column].any()]


@dataclass(frozen=True)
class DeviceResult:
    """The result of one device in one round.

    Attributes:
        device: its name.
        frame: its update; None if it could not make one.
        metrics: of its training.
        why_not: why there is no frame.
        route: names of the blobs that it worked with.
    """

    device: str
    frame: bytes | None
    metrics: dict[str, float]
    why_not: str = ""
    route: tuple[str, ...] = ()


@dataclass
class Site:
    """Trains devices, with one client, server and prototyper of the method for all devices of a process.

    Attributes:
        task: what is learned.
        seed: of the simulation.
        graphs: by modality, the encoder's serialized graph (``export.encoder_models``); for prototype
            devices.
        packages: those that the process which began the simulation may import.
        at_once: devices that train at once, at most (``crew/groups.py``).
    """

    task: Task
    seed: int
    graphs: Mapping[str, bytes] = field(default_factory=dict)
    packages: tuple[str, ...] = field(default_factory=packages.permitted)
    at_once: int = 1

    @cached_property
    def method(self) -> MethodSpec[Any]:
        """The task's method, with its packages permitted; also in a worker process."""
        packages.permit(self.packages)
        registry.admit(self.task, self.packages)
        return registry.method(self.task.method)

    @cached_property
    def client(self) -> Client:
        """The method's client; imports torch."""
        return self.method.client()

    @cached_property
    def server(self) -> Server:
        """The method's server, which knows the routes."""
        return self.method.server()

    @cached_property
    def router(self) -> Router | None:
        """The gate of a routed method; None: the device's route is the server's choice."""
        spec = self.method
        return spec.router() if spec.routed else None

    @cached_property
    def prototyper(self) -> Prototyper:
        """The method's part for devices without torch.

        Raises:
            Misconfigured: the method has none.
        """
        return self.method.prototyper()

    def deliver(
        self,
        device: VirtualDevice,
        state: Blobs,
        round_: int,
        made: tuple[GroupMember, LocalResult] | None = None,
    ) -> DeviceResult:
        """Do one device's round, from ``state``; what it made in a group (``made``) is only encoded."""
        context = self.context(device, round_)
        device.clip = clip_in(state)
        base = digest(f"{self.task.name}/{round_ - 1}".encode())
        route: Blobs = {}
        try:
            route |= _ROUTES[device.role](self, device, context, state)
            if made is None:
                frame, result = _WORK[device.role](self, device, context, route, base)
            else:
                frame, result = device.packed(made[0].context, made[0].windows, made[1], base)
        except (Refused, Transient) as error:
            return DeviceResult(device.name, None, {}, str(error), tuple(route))
        finally:
            device.forget()
        return DeviceResult(device.name, frame, result.metrics, route=tuple(route))

    def context(self, device: VirtualDevice, round_: int) -> ClientContext:
        """The context of a device's round, without a profile."""
        return ClientContext(self.task, device.name, round_, _seed_of(self.seed, round_, device.number))

    def routed(self, device: VirtualDevice, context: ClientContext, state: Blobs) -> Blobs:
        """The route of a ``train`` device; a router may choose it.

        Raises:
            Transient: the device has no training windows.
        """
        profile, windows = device.material(self.task, context.round)
        if self.router is None:
            own = (f"{part}/{device.name}" for part in self.method.owned)
            return _on((*self.server.route(self.task, profile), *own), state)
        first = _on(self.router.first(self.task, profile), state)
        context = replace(context, profile=profile)
        return _on(self.router.choose(context, windows, first, device.private), state)

    def trained(
        self, device: VirtualDevice, context: ClientContext, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """Do the round of a ``train`` device."""
        return device.update(context, self.client, state, base)

    def encoders(self, device: VirtualDevice, context: ClientContext, state: Blobs) -> Blobs:
        """The route of a ``prototype`` device: it is sent only encoders."""
        wanted = self.prototyper.modalities(self.task, device.labelled(context.round))
        return _on(self.server.prototype_route(self.task, wanted), state)

    def summarised(
        self, device: VirtualDevice, context: ClientContext, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """Do the round of a ``prototype`` device: it sends only prototypes."""
        windows = device.labelled(context.round)
        wanted = self.prototyper.modalities(self.task, windows)
        graphs = {name: self.graphs[name] for name in wanted}
        features = features_of(self.task, windows, graphs, state, 1)
        return device.summary(context, self.prototyper, features, base)


def with_clip(state: Blobs, clip: float) -> Blobs:
    """What devices get in a round whose clip adapts: beside the model, the offer's clip."""
    return {**state, _OFFER: {_CLIP: np.array([clip], np.float64)}}


def clip_in(state: Blobs) -> float | None:
    """The clip of :func:`with_clip`; None: there is none."""
    return float(state[_OFFER][_CLIP][0]) if _OFFER in state else None


_ROUTES: Final = {TRAIN: Site.routed, PROTOTYPE: Site.encoders}
_WORK: Final = {TRAIN: Site.trained, PROTOTYPE: Site.summarised}


def _on(route: Iterable[str], state: Blobs) -> Blobs:
    """The blobs of a route, in the state's order."""
    wanted = set(route)
    return {name: tensors for name, tensors in state.items() if name in wanted}


def _seed_of(*keys: int) -> int:
    return int(np.random.SeedSequence(keys).generate_state(1)[0]) % 2**31
