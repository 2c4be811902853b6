"""What a coordinator does with updates, by its own code: the checks on arrival, the fold, the noise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from coordinator.aggregation.fold import add_updates, close_fold, limits_for, open_fold
from coordinator.ingest.header_checks import check_header
from edge_agent.training.update_encoding import encode_update
from models import registry
from models.contract import Blobs, LocalResult, Server, Update, WindowSet
from models.privacy.clipping import check_clipped
from models.privacy.noisy_fold import RoundNoise
from protocol.frames.frame import Limits, decode_frame, digest
from protocol.frames.headers import UpdateHeader
from protocol.messages import MAX_BLOB_BYTES, Offer
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task

_BASE = "0" * 64


@dataclass(frozen=True)
class CheckedUpdate:
    """An update that passed the checks (:class:`coordinator.aggregation.fold.RoundUpdate`)."""

    header: UpdateHeader
    frame: bytes
    digest: str
    folder: None = None

    @property
    def device(self) -> str:
        """Of its header."""
        return self.header.device

    def read(self, limits: Limits) -> Update:
        """Decode it."""
        return Update(*decode_frame(self.frame, UpdateHeader, limits))


@dataclass(frozen=True)
class CoordinatorSide:
    """A coordinator's code for one round, from one version.

    Attributes:
        task: what is learned.
        state: the version that updates start from.
        server: of the method.
        limits: of an update.
    """

    task: Task
    state: Blobs
    server: Server
    limits: Limits

    @classmethod
    def of(cls, task: Task, state: Blobs) -> Self:
        """With the method's server and the usual limits."""
        return cls(
            task, state, registry.method(task.method).server(), limits_for(state, MAX_BLOB_BYTES, task)
        )

    def at(self, state: Blobs) -> Self:
        """The same from another version."""
        return replace(self, state=state)

    def received(self, device: str, frame: bytes, privacy: Privacy | None) -> CheckedUpdate:
        """An update after the checks on arrival; of its norm, by ``privacy``.

        Raises:
            Refused: as a coordinator refuses it.
        """
        update = Update(*decode_frame(frame, UpdateHeader, self.limits))
        check_header(self.task, device, update.header)
        self.server.check(self.task, self.state, update)
        check_clipped(privacy, update)
        return CheckedUpdate(update.header, frame, digest(frame))

    def folded(
        self,
        round_: int,
        received: Sequence[CheckedUpdate],
        noise: RoundNoise | None,
        privacy: Privacy | None,
    ) -> Blobs:
        """The next version; the fold checks norms by ``privacy``.

        Raises:
            ValueError: the fold refuses what passed the checks on arrival.
        """
        fold = open_fold(self.server, self.task, round_, self.state, None)
        if lost := add_updates(fold, self.task, received, self.limits, privacy):
            raise ValueError(f"the fold refused what the checks on arrival took: {lost}")
        return close_fold(self.task, self.state, fold, noise, [one.digest for one in received])


def framed(task: Task, device: str, round_: int, windows: WindowSet, result: LocalResult) -> bytes:
    """The frame of a device's result, clipped if the task has the table, and quantized without error carry.

    Raises:
        Refused: a value is not finite.
    """
    offer = Offer(task=task.name, round=round_, base=_BASE, base_size=0, closes_in_s=0)
    return encode_update(offer, task, (device, task.modality_names), windows, result, carry={})[0]
