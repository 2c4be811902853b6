"""One round of a simulation: real updates as frames, checked, screened and folded as by a coordinator."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coordinator.aggregation.fold import close_fold, limits_for, open_fold, update_norms
from coordinator.aggregation.outlier_screen import screen
from coordinator.ingest.header_checks import check_header
from lichen_lab.simulation.training.device import Delivery
from lichen_lab.simulation.training.downloads import Downloads
from lichen_lab.simulation.training.guided import Guide
from lichen_lab.simulation.training.selection import Choice
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Server, Update, blob_of
from models.guided import DeviceWeights
from protocol.errors import Refused, Transient
from protocol.frames.frame import Limits, decode_frame, decode_tensors, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Encoded
from protocol.messages import MAX_BLOB_BYTES
from protocol.tasks.task import Task

Tamper = Callable[[bytes, int], bytes]
"""What a hostile device makes of its frame in a round, before it goes up."""
Watch = Callable[[int, list[Update]], None]
"""Told a round's checked updates, before they are screened."""
_KEPT_ELEMENTS: Final = 32 * 1024 * 1024
"""Decoded numbers of a round that are kept until they are folded (128 MiB); the rest is decoded again."""


@dataclass(frozen=True)
class RoundRecord:
    """One closed round.

    Attributes:
        round: counted from 1; version ``round`` came out of it.
        metrics: of the evaluation after it; empty where none was asked for.
        bytes_up: payload bytes by part (blob name; ``frame`` is header, names and scales).
        accepted: device -> its metrics.
        refused: device -> why its update was not taken, or why it could not train.
        bytes_down: device -> payload bytes of the blobs of its route that it did not have yet; empty where
            they were not counted.
        weighing: what a guided method made of the devices; None where nothing was weighed.
        trained: metrics of a guided method's training at the coordinator.
    """

    round: int
    metrics: dict[str, float]
    bytes_up: dict[str, int]
    accepted: dict[str, dict[str, float]]
    refused: dict[str, str]
    bytes_down: dict[str, int] = field(default_factory=dict)
    weighing: DeviceWeights | None = None
    trained: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Arrived:
    """A checked update: its frame, and what was seen when it was read."""

    frame: bytes
    parts: Mapping[str, int]
    magnitudes: Mapping[str, float]
    kept: Update | None

    def update(self) -> Update:
        """The update itself; decoded again where it was not kept."""
        return self.kept or Update(*decode_frame(self.frame, UpdateHeader))


@dataclass
class Engine:
    """The coordinator of a simulation: one synchronous round at a time.

    What passed the checks is screened and folded from its frame, as the coordinator does from its journal.

    Attributes:
        down: counts what devices fetch; None: nobody does.
        choice: of who takes part; None: everybody does.
        guide: the coordinator's half of a guided method; without it, devices are folded with equal weights
            and the coordinator trains nothing.
        extra: by device, the method's own message of its last accepted update.
    """

    task: Task
    server: Server
    tamper: Mapping[str, Tamper]
    watch: Watch | None
    reference: Mapping[str, float] = field(default_factory=dict)
    down: Downloads | None = None
    choice: Choice | None = None
    guide: Guide | None = None
    extra: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def chosen(self, round_: int) -> tuple[str, ...] | None:
        """Who takes part; None: everybody."""
        return None if self.choice is None else self.choice.of(round_)

    def close(self, deliveries: Iterable[Delivery], state: Blobs, round_: int) -> tuple[RoundRecord, Blobs]:
        """Take what the devices sent from ``state``.

        Returns:
            The record, and the next version. Where the task has an adaptive aggregator, its moments are in
            both versions: what devices and methods are given is
            :func:`models.aggregation.server_optimizer.model_of` it.
        """
        record = RoundRecord(round_, {}, {}, {}, {})
        arrived: dict[str, _Arrived] = {}
        model = model_of(state)
        limits, room = limits_for(model, MAX_BLOB_BYTES, self.task), _KEPT_ELEMENTS
        took_part: list[str] = []
        for one in deliveries:
            took_part.append(one.device)
            if self.down is not None:
                record.bytes_down[one.device] = self.down.of(one.device, one.route, model)
            if one.frame is None:
                record.refused[one.device] = one.why_not
                continue
            try:
                arrived[one.device], room = self._checked(one.device, one.frame, model, round_, limits, room)
            except (Refused, Transient) as error:
                record.refused[one.device] = str(error)
                continue
            record.accepted[one.device] = one.metrics
        kept, weighing = self._weighed(record, self._screened(record, arrived, round_), model)
        record, version = self._folded(replace(record, weighing=weighing), kept, state)
        if self.choice is not None:
            self.choice.close(round_, took_part)
        return record, version

    def _folded(
        self, record: RoundRecord, kept: Mapping[str, _Arrived], state: Blobs
    ) -> tuple[RoundRecord, Blobs]:
        """The next version; the same one where no update is left."""
        if not kept:
            return record, state
        fold = open_fold(self.server, self.task, record.round, model_of(state), record.weighing)
        for name, each in kept.items():
            update = each.update()
            fold.fold(update)
            self._hear(name, update)
            for part, size in each.parts.items():
                record.bytes_up[part] = record.bytes_up.get(part, 0) + size
        version = close_fold(self.task, state, fold)
        if self.guide is None:
            return record, version
        version, trained = self.guide.finish(record.round, version)
        return replace(record, trained=trained), version

    def _hear(self, device: str, update: Update) -> None:
        """What is remembered of an update that counted."""
        self.extra[device] = update.header.extra
        if self.choice is not None:
            self.choice.hear(device, update)

    def _checked(  # noqa: PLR0917 - one frame on its way in
        self, device: str, frame: bytes, state: Blobs, round_: int, limits: Limits, room: int
    ) -> tuple[_Arrived, int]:
        """Read a frame once: what is needed of it later, and the room that is left for decoded numbers."""
        if device in self.tamper:
            frame = self.tamper[device](frame, round_)
        header, encoded = open_frame(frame, UpdateHeader, limits)
        update = Update(header, decode_tensors(encoded))
        check_header(self.task, device, header)
        self.server.check(self.task, state, update)
        room -= sum(tensor.size for tensor in update.tensors.values())
        return _Arrived(
            frame, _parts(frame, encoded), update_norms(update), update if room >= 0 else None
        ), room

    def _screened(
        self, record: RoundRecord, arrived: dict[str, _Arrived], round_: int
    ) -> dict[str, _Arrived]:
        """The updates that are left, and the record told of the others."""
        if self.watch is not None:
            self.watch(round_, [each.update() for each in arrived.values()])
        found = {name: each.magnitudes for name, each in arrived.items()}
        verdict = screen(found, self.reference, self.task.robust.outlier_factor)
        self.reference = {**self.reference, **verdict.reference}
        for name, refused in verdict.lost.items():
            _lose(record, name, refused)
        return {name: each for name, each in arrived.items() if name not in verdict.lost}

    def _weighed(
        self, record: RoundRecord, kept: dict[str, _Arrived], model: Blobs
    ) -> tuple[dict[str, _Arrived], DeviceWeights | None]:
        """A guided method's weights, of the updates that have a view; the record told of the others."""
        if self.guide is None or not kept:
            return kept, None
        views, refused = self.guide.views(model, (each.update() for each in kept.values()))
        for name, why in refused.items():
            _lose(record, name, why)
        left = {name: each for name, each in kept.items() if name in views}
        return left, self.guide.weigh(views) if left else None


def _lose(record: RoundRecord, device: str, why: Refused) -> None:
    del record.accepted[device]
    record.refused[device] = str(why)


def _parts(frame: bytes, encoded: Mapping[str, Encoded]) -> dict[str, int]:
    """A frame's bytes by part; what is no element (header, names, scales) counts as ``frame``."""
    parts: dict[str, int] = {}
    for name, tensor in encoded.items():
        part = blob_of(name)
        parts[part] = parts.get(part, 0) + len(tensor.data)
    return {**parts, "frame": len(frame) - sum(parts.values())}
