"""A run: the product's client, packing, checks and fold, in one process. Imports torch.

Runs of one seed that differ in their method alone go on from the very same warm start: it is made once.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

import numpy as np
import torch

from edge_agent.training.update_encoding import pack_update
from lichen_lab.benchmarks.studies.mmfed3_hide.settings import Fleet, Judge, Look, Outcome, Setting, Tell
from lichen_lab.benchmarks.studies.mmfed3_hide.shared import task_of, test_figures, valid_mrr
from lichen_lab.simulation.training.device import Delivery
from lichen_lab.simulation.training.downloads import Downloads
from lichen_lab.simulation.training.engine import Engine, RoundRecord
from models.contract import Blobs, Client, ClientContext, Profile, Tensors
from models.knowledge_graph.data.keyed import KeyedGraph
from models.methods.mmfed3_hide import config_of
from models.methods.mmfed3_hide.training_config import views_of
from models.registry import method
from protocol.errors import Refused, Transient
from protocol.frames.frame import digest
from protocol.messages import Offer
from protocol.tasks.task import Task

_FLOAT_BYTES: Final = 4
_SHORT_S: Final = 1e-9
_STARTS: dict[tuple[str, str, int], list["Federation"]] = {}
"""The last warm starts of this process."""
_MOST_STARTS: Final = 2


@dataclass
class Device:
    """A device without a process: its graph, and what stays on it between rounds.

    Attributes:
        name: unique in its fleet.
        graph: that it trains on.
        number: decides, with seed and round, its order of facts.
        private: the method's own, handed back each round.
        carry: what quantization cut off so far, by tensor.
        train_s: in the client's training, of the last round.
    """

    name: str
    graph: KeyedGraph
    number: int
    private: Tensors = field(default_factory=dict)
    carry: Tensors = field(default_factory=dict)
    train_s: float = 0.0

    def modalities(self, task: Task) -> tuple[str, ...]:
        """Those of which an entity has features."""
        return tuple(name for m, name in enumerate(task.modality_names) if self.graph.present_EM[:, m].any())

    def deliver(self, task: Task, client: Client, mine: Blobs, round_: int, seed: int) -> Delivery:
        """One round, from the blobs of its route: what an agent does with an offer."""
        base = digest(f"{task.name}/{round_ - 1}".encode())
        profile = Profile(self.modalities(task), ())
        context = ClientContext(task, self.name, round_, _seed_of(seed, round_, self.number), profile)
        began = time.perf_counter()
        try:
            result = client.train(context, self.graph, mine, self.private)
        except (Refused, Transient) as error:
            return Delivery(self.name, None, {}, str(error), tuple(mine))
        self.train_s = time.perf_counter() - began
        offer = Offer(task=task.name, round=round_, base=base, base_size=0, closes_in_s=0, seed=context.seed)
        who = (self.name, profile.modalities)
        frame, carry = pack_update(offer, task, who, self.graph, result, carry=self.carry)
        self.private, self.carry = result.private, carry or {}
        return Delivery(self.name, frame, result.metrics, route=tuple(mine))


@dataclass
class Federation:
    """Devices that share a state, between two rounds.

    Attributes:
        task: names, options and seed.
        devices: in a fixed order.
        state: the newest version.
        spent_s: CPU in training and folding.
        records: of rounds, in order.
        reference: magnitudes that the next round's updates are compared with.
        down: counts what devices fetch.
    """

    task: Task
    devices: list[Device]
    state: Blobs
    spent_s: float = 0.0
    records: list[RoundRecord] = field(default_factory=list)
    reference: Mapping[str, float] = field(default_factory=dict)
    down: Downloads = field(default_factory=Downloads)

    def going_on(self, task: Task, fleet: Fleet) -> "Federation":
        """The same between the same two rounds, with other options and features; this one stays as it is."""
        devices = [
            replace(one, graph=fleet.devices[one.name], private=dict(one.private), carry=dict(one.carry))
            for one in self.devices
        ]
        down = Downloads({name: dict(kept) for name, kept in self.down.kept.items()}, self.down.codecs)
        return replace(
            self, task=task, devices=devices, state=dict(self.state), records=list(self.records), down=down
        )

    def round(self, round_: int) -> None:
        """One round of everybody."""
        spec = method(self.task.method)
        client, server = spec.client(), spec.server()
        engine = Engine(self.task, server, {}, None, self.reference, self.down)
        began = time.process_time()
        record, self.state = engine.close(self._delivered(client, round_), self.state, round_)
        self.spent_s += time.process_time() - began
        self.reference = engine.reference
        self.records.append(record)

    def _delivered(self, client: Client, round_: int) -> Iterator[Delivery]:
        server = method(self.task.method).server()
        for device in self.devices:
            route = set(server.route(self.task, Profile(device.modalities(self.task), ())))
            route |= {f"{part}/{device.name}" for part in method(self.task.method).owned}
            mine = {name: blob for name, blob in self.state.items() if name in route}
            yield device.deliver(self.task, client, mine, round_, self.task.seed)


def run(fleet: Fleet, setting: Setting, seed: int, tell: Tell) -> Outcome:
    """See :data:`lichen_lab.benchmarks.studies.mmfed3_hide.settings.Run`.

    Raises:
        Misconfigured: there is no such option, or a device never learned anything.
    """
    began = time.monotonic()
    with one_thread():
        task = task_of(fleet, setting, seed)
        method(task.method).configure(task)
        groups = _warmed(fleet, setting, seed, task)
        outcome = Outcome([])
        speeds: list[float] = []
        for round_ in range(setting.warmup + 1, setting.rounds + 1):
            for group in groups:
                group.round(round_)
            speeds.append(_speed(groups, setting))
            spent_s = sum(group.spent_s for group in groups)
            over = setting.cpu_s is not None and spent_s >= setting.cpu_s
            if over or round_ == setting.rounds or (setting.rounds - round_) % setting.look_every == 0:
                outcome.looks.append(_look(task, fleet.judges, groups, round_))
                tell(f"round {round_} of {setting.rounds}: MRR {outcome.looks[-1].valid:.4f}")
            if over:
                break
    outcome.triples_s = fmean(speeds)
    outcome.refused = sum(len(record.refused) for group in groups for record in group.records)
    outcome.bytes_whole = fmean(whole_bytes(graph, setting.dim) for graph in fleet.devices.values())
    outcome.bytes_up, outcome.bytes_down = _bytes(groups)
    outcome.seconds = time.monotonic() - began
    return outcome


def _warmed(fleet: Fleet, setting: Setting, seed: int, task: Task) -> list[Federation]:
    """Groups of devices that share a state, after the warm start."""
    if not setting.warmup:
        return _fresh(fleet, task)
    start = setting.start()
    if views_of(config_of(task), len(fleet.features)) > 1:
        # relations with several views are others from the first round on
        start = replace(start, options=setting.options)
    key = fleet.deal, repr(start), seed
    if key not in _STARTS:
        while len(_STARTS) >= _MOST_STARTS:  # runs come seed by seed
            del _STARTS[next(iter(_STARTS))]
        groups = _fresh(_bare(fleet), task_of(fleet, start, seed))
        for group in groups:
            for round_ in range(1, setting.warmup + 1):
                group.round(round_)
        _STARTS[key] = groups
    return [group.going_on(task, fleet) for group in _STARTS[key]]


def _bare(fleet: Fleet) -> Fleet:
    """The same facts without any feature: what of them there will be is nothing to the warm start."""
    devices = {
        name: replace(graph, present_EM=np.zeros_like(graph.present_EM))
        for name, graph in fleet.devices.items()
    }
    return replace(fleet, devices=devices)


def _fresh(fleet: Fleet, task: Task) -> list[Federation]:
    everybody = [Device(name, graph, number) for number, (name, graph) in enumerate(fleet.devices.items())]
    groups = [[one] for one in everybody] if fleet.apart else [everybody]
    spec = method(task.method)
    return [
        Federation(task, own, spec.client().initial(task, task.seed), down=Downloads(codecs=spec.codecs))
        for own in groups
    ]


def _look(task: Task, judges: Sequence[Judge], groups: Sequence[Federation], round_: int) -> Look:
    private = {device.name: device.private for group in groups for device in group.devices}
    spent_s = sum(group.spent_s for group in groups)
    return Look(round_, spent_s, valid_mrr(task, judges, private), test_figures(task, judges, private))


def _speed(groups: Sequence[Federation], setting: Setting) -> float:
    """Triples a second of a round's training, all devices together."""
    devices = [device for group in groups for device in group.devices]
    trained = setting.epochs * sum(len(device.graph) for device in devices)
    return trained / max(sum(device.train_s for device in devices), _SHORT_S)


def _bytes(groups: Sequence[Federation]) -> tuple[float, float]:
    """Payload bytes up and down of a device and round."""
    records = [record for group in groups for record in group.records]
    sent = sum(len(record.accepted) for record in records)
    up = sum(sum(record.bytes_up.values()) for record in records)
    down = sum(sum(record.bytes_down.values()) for record in records)
    return (up / sent, down / sent) if sent else (0.0, 0.0)


def whole_bytes(graph: KeyedGraph, dim: int) -> int:
    """All of a device's rows, and the projections of its modalities, in float32."""
    widths = [x_EF.shape[1] for m, x_EF in enumerate(graph.features.values()) if graph.present_EM[:, m].any()]
    rows: int = len(graph.entity_keys_E16) + sum(widths)
    return _FLOAT_BYTES * dim * rows


def _seed_of(*keys: int) -> int:
    return int(np.random.SeedSequence(keys).generate_state(1)[0]) % 2**31


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread meanwhile: runs share the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
