"""One round of a simulation: real updates as frames, checked, screened and folded as by a coordinator."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from coordinator.aggregation.fold import (
    UnusableUpdates,
    fold_screened,
    limits_for,
    screen_round,
    update_norms,
)
from coordinator.ingest.header_checks import check_header
from lichen_lab.simulation.training.device import DeviceResult, with_clip
from lichen_lab.simulation.training.guided import Guide
from lichen_lab.simulation.training.selection import Choice
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs, Server, Update, blob_of
from models.guided import DeviceWeights
from models.privacy.adaptive_clip import WITHIN, next_clip
from models.privacy.clipping import check_clipped
from models.privacy.key_stream import KEY_BYTES, derived_key
from models.privacy.noisy_fold import RoundNoise
from models.privacy.shared_noise import shared_noise
from protocol.errors import Refused, Transient
from protocol.frames.frame import Limits, decode_frame, decode_tensors, digest, open_frame, plain
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Encoded
from protocol.messages import MAX_BLOB_BYTES
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task

Tamper = Callable[[bytes, int], bytes]
"""A hostile device's change to its frame in a round, before it is sent."""
Watch = Callable[[int, list[Update]], None]
"""Called with a round's checked updates, before they are screened."""
_FRAME: Final = "frame"
_SMALL_BYTES: Final = 16 * 1024
"""Frames up to this size stay decoded until the round is folded."""


class Down(Protocol):
    """The way of versions to devices."""

    def publish(self, exact: Blobs) -> Blobs:
        """The model of the next version as devices hold it."""

    def of(self, device: str, route: Iterable[str], state: Blobs) -> int:
        """Bytes that a device fetches of that version, ``state``, for its route."""


@dataclass(frozen=True)
class RoundRecord:
    """One closed round.

    Attributes:
        round: counted from 1; its result is version ``round``.
        metrics: of the evaluation after it; empty without one.
        bytes_up: payload bytes by part (blob name; ``frame`` is header, names and scales).
        accepted: device -> its metrics.
        refused: device -> why its update was refused, or why it could not train.
        bytes_down: device -> payload bytes of the blobs of its route that it did not have yet; empty if they
            were not counted.
        weighing: a guided method's weights of the devices; None without weighing.
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
class _Received:
    """A checked update in memory (:class:`coordinator.aggregation.fold.RoundUpdate`)."""

    header: UpdateHeader
    frame: bytes
    digest: str
    parts: Mapping[str, int]
    norms: Mapping[str, float]
    decoded: Update | None = None
    """Of a small update; larger ones are decoded again, so that memory is bounded."""
    folder: None = None

    @property
    def device(self) -> str:
        return self.header.device

    def read(self, limits: Limits) -> Update:
        return self.decoded or Update(*decode_frame(self.frame, UpdateHeader, limits))


@dataclass
class Engine:
    """The coordinator of a simulation: one synchronous round at a time.

    Checked updates are screened and folded from their frames, as the coordinator does from its journal.

    Attributes:
        down: makes of each version what devices hold, and counts what they fetch; None: they hold its exact
            values, and nothing is counted.
        choice: of the participants; None: every device takes part.
        guide: the coordinator's half of a guided method; without it, devices are folded with equal weights
            and the coordinator trains nothing.
        extra: by device, the method's own message of its last accepted update.
        held: the newest version's model as devices hold it.
        noise_key: of a task with ``[privacy]``: 32 bytes, from which the noise of every round follows.
        clip: of the round, if it adapts and was changed.
    """

    task: Task
    server: Server
    tamper: Mapping[str, Tamper]
    watch: Watch | None
    reference: Mapping[str, float] = field(default_factory=dict)
    down: Down | None = None
    choice: Choice | None = None
    guide: Guide | None = None
    extra: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    held: Blobs = field(default_factory=dict)
    noise_key: bytes = field(default=bytes(KEY_BYTES), repr=False)
    clip: float | None = None

    def publish(self, state: Blobs) -> Blobs:
        """The model of a version as devices hold it: what they train from, and what is evaluated."""
        self.held = model_of(state) if self.down is None else self.down.publish(state)
        return self.held

    def chosen(self, round_: int) -> frozenset[str] | None:
        """The participants of a round; None: every device."""
        return None if self.choice is None else frozenset(self.choice.of(round_))

    def close(
        self, deliveries: Iterable[DeviceResult], state: Blobs, round_: int
    ) -> tuple[RoundRecord, Blobs]:
        """Close a round with the devices' results, trained from ``state`` as :meth:`publish` gave it.

        Returns:
            The record, and the next version. If the task has an adaptive aggregator, both versions contain
            its moments: devices and methods are given :func:`models.aggregation.server_optimizer.model_of`
            it.
        """
        record, model = RoundRecord(round_, {}, {}, {}, {}), model_of(state)
        limits = limits_for(model, MAX_BLOB_BYTES, self.task)
        received = self._received(record, deliveries, model, limits)
        selected = [*record.accepted, *record.refused]
        if self.watch is not None:
            self.watch(round_, [update.read(limits) for update in received.values()])
        version = state
        while received or self._sampled:
            try:
                record, version = self._folded(record, received, state, limits)
                self._adapt(round_, received)
                break
            except UnusableUpdates as unusable:
                for device, why in unusable.lost.items():
                    del record.accepted[device], received[device]
                    record.refused[device] = str(why)
        self._note(record, received.values())
        if self.choice is not None:
            self.choice.history.select(round_, selected)
        return record, version

    def _received(
        self, record: RoundRecord, deliveries: Iterable[DeviceResult], model: Blobs, limits: Limits
    ) -> dict[str, _Received]:
        """The updates that pass the checks, by device; the record lists the others."""
        received = {}
        for delivery in deliveries:
            device = delivery.device
            if self.down is not None:
                record.bytes_down[device] = self.down.of(device, delivery.route, model)
            if delivery.frame is None:
                record.refused[device] = delivery.why_not
                continue
            try:
                received[device] = self._checked(device, delivery.frame, model, record.round, limits)
            except (Refused, Transient) as error:
                record.refused[device] = str(error)
            else:
                record.accepted[device] = delivery.metrics
        return received

    def _checked(self, device: str, frame: bytes, model: Blobs, round_: int, limits: Limits) -> _Received:
        if device in self.tamper:
            frame = self.tamper[device](frame, round_)
        header, encoded = open_frame(frame, UpdateHeader, limits)
        update = Update(header, decode_tensors(encoded))
        check_header(self.task, device, header)
        self.server.check(self.task, model, update)
        check_clipped(self._privacy, update)
        small = len(frame) <= _SMALL_BYTES
        return _Received(
            header,
            frame,
            digest(frame),
            _parts(frame, encoded),
            update_norms(update),
            update if small else None,
        )

    def _folded(
        self, record: RoundRecord, received: Mapping[str, _Received], state: Blobs, limits: Limits
    ) -> tuple[RoundRecord, Blobs]:
        """The record and the next version.

        Raises:
            UnusableUpdates: as :func:`coordinator.aggregation.fold.fold_round`; nothing was changed.
        """
        updates, weights = list(received.values()), None
        norms = {update.digest: update.norms for update in updates}
        reference = screen_round(self.task, updates, limits, self.reference, norms)
        # protected rounds weigh all alike: no update is looked at
        if self.guide is not None and not (self.task.secure_aggregation or self.task.privacy):
            weights = self.guide.weigh(self.held or model_of(state), updates, limits)
        noise = self._noise(record.round)
        version = fold_screened(self.server, self.task, record.round, state, updates, limits, weights, noise)
        self.reference = {**self.reference, **reference}
        if self.guide is None:
            return record, version
        version, trained = self.guide.finish(record.round, version)
        return replace(record, weighing=weights, trained=trained), version

    @property
    def _sampled(self) -> bool:
        """Whether a version is made of a round's updates even if there are none."""
        return self.task.privacy is not None and self.task.privacy.rate is not None

    @property
    def _privacy(self) -> Privacy | None:
        """The task's table, with the clip of the round."""
        privacy = self.task.privacy
        return (
            privacy
            if privacy is None or self.clip is None
            else privacy.model_copy(update={"clip": self.clip})
        )

    def offered(self, held: Blobs) -> Blobs:
        """What devices get in the next round."""
        privacy = self._privacy
        return with_clip(held, privacy.clip) if privacy is not None and privacy.adaptive_clip else held

    def _adapt(self, round_: int, received: Mapping[str, _Received]) -> None:
        noise, privacy = self._noise(round_), self.task.privacy
        if noise is None or privacy is None or privacy.adaptive_clip is None:
            return
        bits = [one.header.metrics.get(WITHIN, 0.0) for one in received.values()]
        self.clip = next_clip(noise, privacy.clip, bits, [one.digest for one in received.values()])

    def _noise(self, round_: int) -> RoundNoise | None:
        if (privacy := self._privacy) is None:
            return None
        key = derived_key(self.noise_key, ("round", str(round_)))
        return RoundNoise(privacy, key, shared_noise(self.task))

    def _note(self, record: RoundRecord, folded: Iterable[_Received]) -> None:
        """Record the folded updates' bytes, messages and routes."""
        for update in folded:
            self.extra[update.device] = update.header.extra
            for part, size in update.parts.items():
                record.bytes_up[part] = record.bytes_up.get(part, 0) + size
            if self.choice is not None:
                moved = tuple(sorted(part for part in update.parts if part != _FRAME))
                self.choice.accept(record.round, update.header, moved)


def _parts(frame: bytes, encoded: Mapping[str, Encoded]) -> dict[str, int]:
    """A frame's bytes by blob; header, names and scales count as ``frame``. All are compressed alike."""
    sizes: dict[str, int] = {}
    for name, tensor in encoded.items():
        part = blob_of(name)
        sizes[part] = sizes.get(part, 0) + len(tensor.data)
    whole = len(plain(frame))
    parts = {part: size * len(frame) // whole for part, size in sizes.items()}
    return {**parts, _FRAME: len(frame) - sum(parts.values())}
