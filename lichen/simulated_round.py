"""One round of a simulation: real updates as frames, checked, screened and folded as by a coordinator."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from coordinator.aggregation import limits_for, measured
from coordinator.doorkeeper import check_header
from coordinator.screen import screen
from models.contract import Blobs, Client, ClientContext, LocalResult, Server, Update, blob_of
from protocol.errors import Refused, Transient
from protocol.frame import decode_frame, digest, open_frame
from protocol.messages import MAX_BLOB_BYTES
from protocol.task import Task
from protocol.updates import UpdateHeader

Tamper = Callable[[bytes, int], bytes]
"""What a hostile device makes of its frame in a round, before it goes up."""
Watch = Callable[[int, list[Update]], None]
"""Told a round's checked updates, before they are screened."""


@dataclass(frozen=True)
class RoundRecord:
    """One closed round.

    Attributes:
        round: counted from 1; version ``round`` came out of it.
        metrics: of the evaluation after it; empty where none was asked for.
        bytes_up: payload bytes by part (blob name; ``frame`` is header, names and scales).
        accepted: device -> its metrics.
        refused: device -> why its update was not taken, or why it could not train.
    """

    round: int
    metrics: dict[str, float]
    bytes_up: dict[str, int]
    accepted: dict[str, dict[str, float]]
    refused: dict[str, str]


class Trainee(Protocol):
    """A device of a simulation (:class:`lichen.simulate.VirtualDevice`)."""

    name: str
    number: int

    def modalities(self, task: Task, round_: int) -> list[str]:
        """The modalities it has any window of in that round."""

    def update(
        self, context: ClientContext, client: Client, state: Blobs, base: str
    ) -> tuple[bytes, LocalResult]:
        """Train once: the frame that goes up, and what it was made from."""


@dataclass
class Engine:
    """The coordinator of a simulation: one synchronous round at a time, everybody selected.

    What passed the checks is screened and folded from its frame, as the coordinator does from its journal.
    """

    task: Task
    client: Client
    server: Server
    seed: int
    tamper: Mapping[str, Tamper]
    watch: Watch | None
    reference: Mapping[str, float] = field(default_factory=dict)

    def round(self, fleet: Iterable[Trainee], state: Blobs, round_: int) -> tuple[RoundRecord, Blobs]:
        """Every device trains once from ``state``; returns the record and the next state."""
        record = RoundRecord(round_, {}, {}, {}, {})
        frames: dict[str, bytes] = {}
        limits = limits_for(state, MAX_BLOB_BYTES)
        for device in fleet:
            try:
                frame, metrics = self._sent(device, state, round_)
                update = Update(*decode_frame(frame, UpdateHeader, limits))
                check_header(self.task, device.name, update.header)
                self.server.check(self.task, state, update)
            except (Refused, Transient) as error:
                record.refused[device.name] = str(error)
                continue
            frames[device.name] = frame
            record.accepted[device.name] = metrics
        kept = self._screened(record, frames, round_)
        fold = self.server.open(self.task, round_, state)
        for frame in kept.values():
            fold.fold(Update(*decode_frame(frame, UpdateHeader, limits)))
            _count(record.bytes_up, frame)
        return record, fold.close() if kept else state

    def _sent(self, device: Trainee, state: Blobs, round_: int) -> tuple[bytes, dict[str, float]]:
        route = self.server.route(self.task, device.modalities(self.task, round_))
        known = {name: tensors for name, tensors in state.items() if name in route}
        context = ClientContext(self.task, device.name, round_, _seed_of(self.seed, round_, device.number))
        base = digest(f"{self.task.name}/{round_ - 1}".encode())
        frame, result = device.update(context, self.client, known, base)
        hostile = self.tamper.get(device.name)
        return frame if hostile is None else hostile(frame, round_), result.metrics

    def _screened(self, record: RoundRecord, frames: dict[str, bytes], round_: int) -> dict[str, bytes]:
        """The frames that are left, and the record told of the others."""
        found = {name: measured(Update(*decode_frame(frame, UpdateHeader))) for name, frame in frames.items()}
        if self.watch is not None:
            self.watch(round_, [Update(*decode_frame(frame, UpdateHeader)) for frame in frames.values()])
        verdict = screen(found, self.reference, self.task.robust.outlier_factor)
        self.reference = {**self.reference, **verdict.reference}
        for name, refused in verdict.lost.items():
            del record.accepted[name]
            record.refused[name] = str(refused)
        return {name: frame for name, frame in frames.items() if name not in verdict.lost}


def _seed_of(*keys: int) -> int:
    return int(np.random.SeedSequence(keys).generate_state(1)[0]) % 2**31


def _count(bytes_up: dict[str, int], frame: bytes) -> None:
    """Add one frame's bytes to its parts; what is no element (header, names, scales) counts as ``frame``."""
    _, tensors = open_frame(frame, UpdateHeader)
    for name, tensor in tensors.items():
        part = blob_of(name)
        bytes_up[part] = bytes_up.get(part, 0) + len(tensor.data)
    elements = sum(len(tensor.data) for tensor in tensors.values())
    bytes_up["frame"] = bytes_up.get("frame", 0) + len(frame) - elements
