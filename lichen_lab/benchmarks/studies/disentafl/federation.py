"""DisentAFL in the study: the product's client, router, codec, checks and fold, without processes.

Bytes are those of the frames: an update as it is spooled, and each blob of a route that the device has not
got under that digest yet.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from coordinator.selection.policies import Draw, Past, policy
from edge_agent.training.update_encoding import pack_update
from lichen_lab.benchmarks.studies.disentafl.scores import score
from lichen_lab.benchmarks.studies.disentafl.settings import (
    Fleet,
    Member,
    Outcome,
    Scores,
    Setting,
    Tell,
    fleet_mean,
)
from lichen_lab.simulation.training.device import Delivery
from lichen_lab.simulation.training.engine import Engine
from models.contract import Blobs, ClientContext, FloatArray, LocalResult, Tensors, WindowSet, blob_of
from models.data import window_set
from models.registry import method
from models.tensors import apply, flatten, unflatten
from protocol.frames.frame import digest, encode_frame
from protocol.frames.headers import BlobHeader
from protocol.frames.tensors import Codec, encode
from protocol.messages import Offer
from protocol.output_names import outputs, outputs_of
from protocol.tasks.task import Target, Task

NAME = "disentafl"
"""Of the method, and of its folder."""
_EVERY = 10
"""Rounds between two looks at the personal models."""
_OUR_OWN = ("devices_per_round", "selection", "uplink")
"""Options of the run; all others are the method's."""


def task_of(fleet: Fleet, setting: Setting, seed: int) -> Task:
    """The fleet's task, with the study's network and the method's options."""
    options = dict(setting.options)
    ours = {name: options.pop(name) for name in _OUR_OWN if name in options}
    config = {
        "width": setting.width,
        "latent": setting.latent,
        "hidden": setting.hidden,
        "lr": setting.lr,
        "batch": setting.batch,
        "epochs": setting.epochs,
        **options,
    }
    changed = {
        "rounds": {"count": setting.rounds, "devices_per_round": ours.get("devices_per_round")}
        | ({"selection": ours["selection"]} if "selection" in ours else {}),
        "uplink": {"codec": ours.get("uplink", "int8")},
    }
    known = fleet.task.model_dump()
    return Task.model_validate(known | changed | {"method": NAME, "config": config, "seed": seed})


@dataclass
class Device:
    """A member at work: what stays on it, and what it has moved."""

    member: Member
    number: int
    private: Tensors = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)
    cache: set[str] = field(default_factory=set)
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)


class Federation:
    """One run."""

    def __init__(self, fleet: Fleet, setting: Setting, seed: int) -> None:
        self.fleet, self.seed = fleet, seed
        self.task = task_of(fleet, setting, seed)
        self.spec = method(NAME)
        self.client, self.server, self.router = self.spec.client(), self.spec.server(), self.spec.router()
        self.state: Blobs = self.client.initial(self.task, seed)
        self.devices = {member.name: Device(member, n) for n, member in enumerate(fleet.members)}
        self.engine = Engine(self.task, self.server, {}, None)
        self.refused = 0
        self._history: list[Past] = []
        self._digests: dict[str, tuple[Mapping[str, FloatArray], str, int]] = {}

    def context(self, device: Device, round_: int) -> ClientContext:
        """Of a device's training step."""
        seed = int(np.random.SeedSequence([self.seed, round_, device.number]).generate_state(1)[0]) % 2**31
        return ClientContext(self.task, device.member.name, round_, seed, device.member.profile)

    def fetched(self, device: Device, round_: int) -> Blobs:
        """The blobs on a device's route in this round; what it lacks of them is counted."""
        context, windows = self.context(device, round_), device.member.train
        first = {name: self.state[name] for name in self.router.first(self.task, device.member.profile)}
        chosen = self.router.choose(context, windows, first, device.private)
        total = 0
        for name in chosen:
            mark, size = self._blob(name)
            total += size if mark not in device.cache else 0
            device.cache.add(mark)
        device.down.append(total)
        return {name: self.state[name] for name in chosen}

    def _blob(self, name: str) -> tuple[str, int]:
        """Digest and size of a blob as it travels."""
        tensors = self.state[name]
        kept = self._digests.get(name)
        if kept is None or any(kept[0].get(key) is not value for key, value in tensors.items()):
            frame = encode_frame(
                BlobHeader(name=name), {key: encode(value, Codec.FLOAT32) for key, value in tensors.items()}
            )
            kept = self._digests[name] = (dict(tensors), digest(frame), len(frame))
        return kept[1], kept[2]

    def train(self, device: Device, round_: int) -> tuple[Blobs, LocalResult]:
        """A device's own training: what it started from, and what came out."""
        route = self.fetched(device, round_)
        result = self.client.train(self.context(device, round_), device.member.train, route, device.private)
        return route, result

    def send(self, device: Device, round_: int, result: LocalResult) -> Delivery:
        """The update as it travels."""
        name, windows = device.member.name, device.member.train
        base = digest(f"{round_ - 1}".encode())
        offer = Offer(task=self.task.name, round=round_, base=base, base_size=0, closes_in_s=0)
        who = (name, device.member.profile.modalities)
        frame, carry = pack_update(offer, self.task, who, windows, result, carry=device.carry)
        device.carry, device.private = carry or {}, result.private
        device.up.append(len(frame))
        return Delivery(name, frame, result.metrics)

    def chosen(self, round_: int) -> Sequence[Device]:
        """Who takes part, by the task's selection policy; in the last round everybody does."""
        wanted = self.task.rounds.devices_per_round
        if wanted is None or round_ == self.task.rounds.count:
            return list(self.devices.values())
        counts = {
            name: window_set.counts(device.member.train, self.task) for name, device in self.devices.items()
        }
        routes = {
            name: self.server.route(self.task, device.member.profile) for name, device in self.devices.items()
        }
        seed = int(np.random.SeedSequence([self.seed, round_]).generate_state(1)[0])
        draw = Draw(counts, wanted, seed, rounds=self.task.rounds, routes=routes, history=self._history)
        found = policy(self.task.rounds.selection).choose(draw)
        return [self.devices[name] for name in found.devices]

    def _remember(
        self, round_: int, deliveries: Sequence[Delivery], moved: Mapping[str, Sequence[str]]
    ) -> None:
        losses = {one.device: one.metrics["loss"] for one in deliveries if "loss" in one.metrics}
        self._history.append(Past(round_, frozenset(moved), losses, moved))

    def round(self, round_: int) -> Scores:
        """One round; the last one has everybody's personal scores, and every tenth."""
        deliveries, personal, moved = [], {}, {}
        look = round_ % _EVERY == 0 or round_ == self.task.rounds.count
        for device in self.chosen(round_):
            route, result = self.train(device, round_)
            if look:
                personal[device.member.name] = self.judged(device.member, after(route, result))
            deliveries.append(self.send(device, round_, result))
            moved[device.member.name] = sorted({blob_of(name) for name in result.tensors})
        record, self.state = self.engine.close(deliveries, self.state, round_)
        self.refused += len(record.refused)
        self._remember(round_, deliveries, moved)
        return personal

    def judged(self, member: Member, state: Blobs) -> dict[str, float]:
        """A model's scores on a member's test windows."""
        return score(
            self.fleet,
            member,
            predicted(self.client.inference_model(self.task, state), member.test, self.task),
        )

    def aggregate(self) -> Scores:
        """What each device would predict with before it trains again."""
        found = {}
        for name, device in self.devices.items():
            route = self.fetched(device, self.task.rounds.count + 1)
            device.down.pop()
            blended = self.spec.blended(self.task, route, device.private)
            found[name] = self.judged(device.member, blended)
        return found


def after(route: Blobs, result: LocalResult) -> Blobs:
    """A device's whole model after its training: deltas applied, its own parts as they are."""
    base = flatten(route)
    moved = apply(
        base,
        {
            name: delta
            for name, delta in result.tensors.items()
            if name in base and blob_of(name) in route and not name.startswith("features/")
        },
    )
    own = {name: tensor for name, tensor in result.private.items() if name in moved}
    return unflatten(moved | own)


def predicted(model: torch.nn.Module, windows: WindowSet, task: Task) -> dict[str, FloatArray]:
    """What an inference module predicts of these windows, by target: its first output of each."""
    names: tuple[str, ...] = model.modalities  # type: ignore[assignment]  # of every routed module
    targets: tuple[Target, ...] = model.targets  # type: ignore[assignment]  # as above
    columns = [task.modality_names.index(name) for name in names]
    present_BM = torch.from_numpy(windows.present_BM[:, columns].astype(np.float32))
    with torch.no_grad():
        made = model.eval()(present_BM, *(torch.from_numpy(windows.x[name]) for name in names))
    told = dict(zip(outputs(targets), made, strict=True))
    return {target.name: told[outputs_of(target)[0]].numpy() for target in targets}


def run(fleet: Fleet, setting: Setting, seed: int, tell: Tell) -> Outcome:
    """DisentAFL on a fleet; see :data:`lichen_lab.benchmarks.studies.disentafl.settings.Run`."""
    began = time.monotonic()
    torch.set_num_threads(1)
    study = Federation(fleet, setting, seed)
    by_round: list[tuple[int, float]] = []
    personal: Scores = {}
    for round_ in range(1, setting.rounds + 1):
        personal = study.round(round_)
        if personal:
            by_round.append((round_, fleet_mean(personal)))
        tell(f"round {round_} of {setting.rounds}")
    if study.refused:
        tell(f"{study.refused} updates were refused")
    return Outcome(
        personal,
        study.aggregate(),
        by_round,
        {name: float(np.mean(device.up)) for name, device in study.devices.items()},
        {name: float(np.mean(device.down)) for name, device in study.devices.items()},
        time.monotonic() - began,
    )
