"""Verifies an update, header first: a thread opens frames in groups, then decodes their tensors in groups.

An update that no round wants is refused after the first step, so it never waits for a large one that is
decoded. Small ones are opened and decoded in one step: a second one would cost as much as their tensors.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coordinator.aggregation.current_model import CurrentModel
from coordinator.aggregation.fold import update_norms
from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.aggregation.secure.rounds import SecureRounds
from coordinator.errors import contain_faults
from coordinator.ingest.grouped import Grouped
from coordinator.ingest.header_checks import check_header
from coordinator.ingest.round_access import RoundAccess
from coordinator.privacy.account_store import AccountStore
from coordinator.round_machine.events import RoundState
from coordinator.round_machine.queries import check_acceptable
from models.contract import Blobs, Server, Update
from models.privacy.clipping import check_clipped
from models.tensors import blobs_of
from protocol.errors import Reason, Refused
from protocol.frames.frame import Limits, decode_tensors, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Encoded
from protocol.tasks.folding import Privacy
from protocol.tasks.task import Task

SMALL_BYTES: Final = 16 * 1024
DECODED: Final = 2
"""Groups that are decoded at a time, one update of each after the other: bounds the memory."""


@dataclass(eq=False, slots=True)
class OfferedUpdate:
    """An update on its way in; ``round`` is its header's as soon as that is read."""

    device: str
    payload: bytes
    round: int


@dataclass(frozen=True, slots=True)
class Verified:
    """An update that may be counted; ``blobs``: names of the blobs that it changes."""

    header: UpdateHeader
    norms: Magnitudes
    blobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """What the threads work on: an update, and what it is checked against."""

    offered: OfferedUpdate
    model: Blobs
    limits: Limits
    rounds: RoundState
    privacy: Privacy | None


_Opened = tuple[_Step, UpdateHeader, Mapping[str, Encoded]]


class Verifier:
    """For use from one event loop.

    Args:
        task: what devices may see of the task.
        server: checks tensors.
        model: the version that updates are checked against.
        driver: knows the open round.
        accounts: know its clip.
        secure: checks masked updates; None: updates are plain.
    """

    def __init__(
        self,
        task: Task,
        server: Server,
        model: CurrentModel,
        driver: RoundAccess,
        accounts: AccountStore,
        *,
        secure: SecureRounds | None = None,
    ) -> None:
        self._secure = secure
        self._task = task
        self._server = server
        self._model = model
        self._driver = driver
        self._accounts = accounts
        self.small: Grouped[_Step, Verified] = Grouped(lambda step: self._decode(self._open(step)), 1)
        self.opening: Grouped[_Step, _Opened] = Grouped(self._open, 1)
        self.decoding: Grouped[_Opened, Verified] = Grouped(self._decode, DECODED)
        self._private: tuple[str, Privacy | None] = "", task.privacy
        """Manifest, and the table with the clip of the round on it."""
        self._limits: dict[str, Limits] = {}
        """By manifest, of the newest version alone."""

    def offered(self, device: str, payload: bytes) -> OfferedUpdate:
        """An update for :meth:`verify`."""
        return OfferedUpdate(device, payload, self._driver.state.round)

    async def verify(self, one: OfferedUpdate) -> Verified:
        """Open an update, check its header, then decode and check its tensors.

        Raises:
            Refused: it may not be counted.
            Transient: the model cannot be read now.
        """
        model, rounds = await self._model.state(), self._driver.state
        if rounds.manifest not in self._limits:
            self._limits = {rounds.manifest: self._model.limits(model)}
        step = _Step(one, model, self._limits[rounds.manifest], rounds, await self._privacy(rounds))
        if len(one.payload) <= SMALL_BYTES:
            return await self.small.do(step, len(one.payload))
        opened = await self.opening.do(step, len(one.payload))
        return await self.decoding.do(opened, len(one.payload))

    async def _privacy(self, rounds: RoundState) -> Privacy | None:
        """The task's table with the clip of the open round, read once a version if it adapts."""
        private = self._task.privacy
        if private is None or private.adaptive_clip is None:
            return private
        if self._private[0] != rounds.manifest:
            found = await asyncio.to_thread(self._accounts.current, self._task, rounds.version)
            self._private = rounds.manifest, found
        return self._private[1]

    def _open(self, step: _Step) -> _Opened:
        one, rounds = step.offered, step.rounds
        device = one.device
        with contain_faults("decoding"):
            header, encoded = open_frame(one.payload, UpdateHeader, step.limits)
        one.round = header.round
        check_header(self._task, device, header, masked=self._secure is not None)
        if header.round == rounds.round and device in rounds.delivered:
            words = f"{device} already delivered another update in round {header.round}"
            raise Refused(Reason.DUPLICATE, words)
        check_acceptable(rounds, device, header.round, header.base)
        return step, header, encoded

    def _decode(self, opened: _Opened) -> Verified:
        step, header, encoded = opened
        if self._secure is not None:
            with contain_faults("checking"):
                self._secure.check_update(step.model, header, encoded)
            return Verified(header, {}, ())
        with contain_faults("decoding"):
            update = Update(header, decode_tensors(encoded))
        with contain_faults(f"{self._task.method}'s check"):
            self._server.check(self._task, step.model, update)
            check_clipped(step.privacy, update)
            return Verified(header, update_norms(update), blobs_of(update.tensors))
