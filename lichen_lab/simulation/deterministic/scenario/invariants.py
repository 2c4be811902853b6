"""Invariants of every simulation, and the observations that they are checked against.

Nothing here relies on the daemons' own state: frames are kept as the agents wrote them, receipts as they
were decided, and every version is folded once more from those frames by the method's own equations.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import sqlalchemy as sa

from coordinator.aggregation.round_fold import finish_seed, guiding
from coordinator.daemon import Coordinator
from coordinator.intake.intake_table import intake_of
from coordinator.round_machine.closing import closes_at
from coordinator.round_machine.events import RoundPhase, RoundState
from coordinator.storage import schema
from lichen_lab.simulation.deterministic.scenario.coordinator_state import (
    Outside,
    Violation,
    arrives,
    read_state,
    row_of,
    updates_of,
    version_of,
)
from lichen_lab.simulation.deterministic.scenario.rollout_truth import RolloutTruth
from lichen_lab.simulation.deterministic.scenario.toy_guided import train_step, viewed
from models.contract import Blobs, Server, Update
from models.tensors import flatten
from protocol.frames.frame import decode_frame
from protocol.frames.headers import UpdateHeader
from protocol.messages import Receipt
from protocol.tasks.task import Task

_WRITING_S: Final = 0.5
"""A deadline counts from the decision; an attempt is seen when that is on disk, at most so much later."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An update as its device put it into the spool."""

    device: str
    round: int
    data: bytes


@dataclass
class GroundTruth:
    """The knowledge of an outside observer of the fleet.

    Args:
        task: what is learned.
        server: a half of the method of our own.
        first: version 0.
        tolerant: bits were rotted on purpose: accepted updates may be reported as lost.
        time: true seconds, of no machine's clock; None: not told, and deadlines are taken on trust.
    """

    task: Task
    server: Server
    first: Blobs
    tolerant: bool = False
    time: Callable[[], float] | None = None
    frames: dict[str, Frame] = field(default_factory=dict)
    accepted: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Digest -> (device, round) of every accepted update."""
    refused: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """Accepted updates that rotted, or whose attempt failed, and were reported."""
    heard: dict[str, set[str]] = field(default_factory=dict)
    """Digests by device whose receipt arrived there."""
    refusals_heard: dict[str, set[str]] = field(default_factory=dict)
    """The same, of refusals."""
    states: list[Blobs] = field(default_factory=list)
    manifests: list[str] = field(default_factory=list)
    counted: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Round -> digests that its version was folded from."""
    last: RoundState | None = None
    away: float | None = None
    """True time at which all missing devices were away; None: they were not, or it is unknown."""
    opened: tuple[int, int, float] = (0, 0, 0.0)
    """Round, attempt, and the true time at which it began to collect."""
    looked: float = 0.0
    """True time of the last look at the state."""
    rollouts: RolloutTruth | None = None
    """Of a world with rollouts."""
    living: Coordinator | None = None
    """The observed life."""

    def spooled(self, device: str, round_: int, digest: str, data: bytes) -> None:
        """A device is about to keep an update."""
        self.frames[digest] = Frame(device, round_, data)

    def cleared(self, device: str, digest: str) -> None:
        """A device forgets an update.

        Raises:
            Violation: no receipt for it ever arrived there.
        """
        if digest not in self.heard.get(device, set()):
            raise Violation(f"{device} forgets update {digest[:8]} that no receipt was heard for")

    def arrived(self, device: str, receipt: Receipt) -> None:
        """A receipt has come to its device."""
        self.heard.setdefault(device, set()).add(receipt.digest)
        if receipt.status == "refused":
            self.refusals_heard.setdefault(device, set()).add(receipt.digest)

    def unreported(self) -> list[str]:
        """Accepted updates that do not count and were not refused afterwards, in words."""
        return [
            f"{device} was not told that its accepted update {digest[:8]} for round {round_} does not count"
            for digest, (device, round_) in self.accepted.items()
            if digest not in {*self.counted.get(round_, ()), *self.refusals_heard.get(device, ())}
        ]

    @property
    def may_lose(self) -> bool:
        """Whether an accepted update may be reported as lost to its device."""
        return self.tolerant

    def told(self, outside: Outside, device: str, receipt: Receipt) -> None:
        """The coordinator decides to send a receipt.

        Raises:
            Violation: it promises what is not on disk, or refuses what it counts.
        """
        row = row_of(outside, device, receipt.digest)
        words = f"{device}'s update {receipt.digest[:8]} for round {receipt.round}"
        if receipt.status == "refused":
            if row is not None and not row["lost"]:
                raise Violation(f"{words} is refused ({receipt.reason}: {receipt.detail}) and counted")
            self.refused[receipt.digest] = f"{receipt.reason}: {receipt.detail}"
            return
        if row is None or row["lost"]:
            raise Violation(f"{words} gets its receipt before it is in the journal")
        if receipt.digest not in self.frames:
            raise Violation(f"{words} is accepted, but no device ever made it")
        file, folded = row["file"] or receipt.digest, -1 if self.last is None else self.last.version
        if row["round"] > folded and not self.tolerant and not outside.is_durable(row["round"], file):
            raise Violation(f"{words} gets its receipt, but a power cut would take its frame")
        self.accepted[receipt.digest] = (device, row["round"])

    def changed(self, app: Coordinator, outside: Outside, *, reopened: bool = False) -> None:
        """The round machine's state has changed, or was read from disk again.

        Raises:
            Violation: a round closed too early, a version is not the fold of its updates, or one is missing.
        """
        state, before = app.driver.state, RoundState() if self.last is None else self.last
        reopened, self.living = reopened or app is not self.living, app
        if len(set(state.delivered)) != len(state.delivered):
            raise Violation(f"a device counts twice in round {state.round}: {state.delivered}")
        if (state.version < before.version or state.round < before.round) and not self.tolerant:
            raise Violation(
                f"round {before.round} (version {before.version}) was forgotten: now {state.round}"
            )
        if state.phase is RoundPhase.AGGREGATING and before.phase is not RoundPhase.AGGREGATING:
            self._closed(before, state, None if reopened else app.driver.now())
        self._collects(before, state, reopened=reopened)
        self._bundles_are_there(outside)
        while len(self.states) <= state.version:
            self._made(outside, len(self.states), state)
        self._none_missing(outside, state)
        self.look_at_rollouts(app)
        self.last = state

    def look_at_rollouts(self, app: Coordinator) -> None:
        """The decisions on what devices run, as they are on disk.

        Raises:
            Violation: see :class:`RolloutTruth`.
        """
        if self.rollouts is not None and app.storage.rollouts is not None:
            self.rollouts.decided(app.storage.rollouts.course())

    def _closed(self, before: RoundState, state: RoundState, now: float | None) -> None:
        """A round closed just now; ``now`` is None where it did in the coordinator's last life."""
        rounds = self.task.rounds
        delivered, selected = set(state.delivered), set(state.selected)
        least = rounds.min_devices if self.task.privacy is None or self.task.privacy.rate is None else 0
        if len(delivered) < least:
            raise Violation(f"round {state.round} closed with {len(delivered)} of {least} devices")
        wanted = math.ceil(rounds.quorum * len(selected) - 1e-9)
        if state.closed_by == "quorum" and len(delivered & selected) < wanted:
            raise Violation(
                f"round {state.round} closed on a quorum of {sorted(delivered & selected)}, selected are "
                f"{sorted(selected)} and {wanted} are needed"
            )
        ends = None if self.living is None else closes_at(self.living.driver.rules, before)
        timely = before.phase is RoundPhase.COLLECTING and now is not None and (ends is None or now < ends)
        if state.closed_by != "quorum" and timely:
            raise Violation(f"round {state.round} closed {before.until} on no quorum, at {now}")

    def _collects(self, before: RoundState, state: RoundState, *, reopened: bool) -> None:
        """No attempt ends before its deadline but on a quorum, by a clock that is not the coordinator's."""
        if self.time is None:
            return
        now, (round_, attempt, since) = self.time(), self.opened
        looked, self.looked = self.looked, now
        if state.away_since != before.away_since and state.phase is RoundPhase.COLLECTING:
            self.away = None if state.away_since is None or reopened else now
        if state.phase is RoundPhase.COLLECTING:
            if (state.round, state.attempt) != (round_, attempt):
                # Found at a start, it began in the life before: at any time since that one was last seen.
                self.opened = state.round, state.attempt, looked if reopened else now
            return
        ended = before.phase is RoundPhase.COLLECTING and (before.round, before.attempt) == (round_, attempt)
        if reopened and self.tolerant:  # a rotten journal is rebuilt without its last entries
            return
        if ended and state.closed_by == "away":
            self._waited_for_the_away(state, now)
            return
        least = self.task.rounds.deadline_s - _WRITING_S
        if ended and state.closed_by != "quorum" and now - since < least:
            raise Violation(
                f"round {round_}, attempt {attempt} ended after {now - since:.2f} s without a quorum; its "
                f"deadline is {self.task.rounds.deadline_s:.2f} s"
            )

    def _waited_for_the_away(self, state: RoundState, now: float) -> None:
        """An absent device was given its grace, by a clock that is not the coordinator's."""
        grace = 0.0 if self.living is None else self.living.settings.away_grace_s - _WRITING_S
        if self.away is not None and now - self.away < grace:
            raise Violation(
                f"round {state.round} closed {now - self.away:.2f} s after the last device went away"
            )

    def _made(self, outside: Outside, version: int, state: RoundState) -> None:
        """Fold a new version again, and compare."""
        row = version_of(outside, version)
        if row is None:
            raise Violation(f"the machine is at version {state.version}; {version} has no row")
        expected, digests = (self.first, ()) if version == 0 else self._fold(outside, version, row)
        actual = read_state(outside, row["manifest"])
        if not equal(expected, actual):
            raise Violation(f"version {version} is not the fold of {sorted(row['devices'])}")
        self.states.append(expected)
        self.manifests.append(row["manifest"])
        self.counted[version] = digests

    def _fold(self, outside: Outside, version: int, row: dict[str, Any]) -> tuple[Blobs, tuple[str, ...]]:
        rows = [r for r in updates_of(outside, version) if not r["lost"]]
        if sorted(r["device"] for r in rows) != sorted(row["devices"]):
            raise Violation(
                f"version {version} is made of {sorted(row['devices'])}, accepted are "
                f"{sorted(r['device'] for r in rows)}"
            )
        updates: list[Update] = []
        for one in rows:
            frame = self.frames.get(one["digest"])
            if frame is None or (frame.device, frame.round) != (one["device"], version):
                raise Violation(
                    f"version {version} counts {one['digest'][:8]} of {one['device']}: whose is it?"
                )
            header, tensors = decode_frame(frame.data, UpdateHeader)
            if header.base != self.manifests[version - 1]:
                raise Violation(f"version {version} counts an update on another base, of {one['device']}")
            updates.append(Update(header, tensors))
        digests = tuple(sorted(r["digest"] for r in rows))
        return self._folded(version, updates, digests), digests

    def _folded(self, version: int, updates: list[Update], digests: tuple[str, ...]) -> Blobs:
        """By the method's own equations; of a guided round with the looks before and the training after."""
        del digests  # of noise, which only tasks with privacy have
        task, before, guided = self.task, self.states[version - 1], guiding(self.server)
        if guided is None:
            fold = self.server.open(task, version, before)
        else:
            weighing = guided.weigh(task, {one.header.device: viewed(one) for one in updates})
            fold = guided.open_guided(task, version, before, weighing)
        for one in updates:
            fold.fold(one)
        made = fold.close()
        return made if guided is None else train_step(version, finish_seed(task, version), made)

    def _bundles_are_there(self, outside: Outside) -> None:
        """Every blob that a device may be pointed to can be fetched."""
        for table in (schema.exports, schema.bundles):
            newest = sa.select(table).order_by(table.c.version.desc())
            for row in outside.rows(newest if table is schema.bundles else newest.limit(1)):
                if outside.blob(row["digest"]) is None and not self.tolerant:
                    raise Violation(f"{table.name}: the bundle of version {row['version']} is gone")

    def _none_missing(self, outside: Outside, state: RoundState) -> None:
        """Every accepted update counts, or will count, or was reported as lost to its device."""
        for digest, (device, round_) in self.accepted.items():
            if digest in self.counted.get(round_, ()) or digest in self.lost:
                continue
            if round_ == state.round > state.version and device in state.delivered:
                continue
            if round_ == state.round and intake_of(state).taking and arrives(outside, round_, device):
                continue
            if digest in self.refused and self.tolerant:
                continue
            if self.may_lose and (row := row_of(outside, device, digest)) is not None and row["lost"]:
                self.lost.add(digest)
                continue
            where = f"version {state.version}, round {state.round} has {state.delivered}"
            raise Violation(f"{device}'s accepted update {digest[:8]} for round {round_} is gone; {where}")


def equal(a: Blobs, b: Blobs) -> bool:
    """Whether two states are the same, to the bit."""
    one, other = flatten(a), flatten(b)
    return one.keys() == other.keys() and all(np.array_equal(x, other[name]) for name, x in one.items())
