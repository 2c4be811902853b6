"""State and events of the round machine. All frozen, all JSON.

Times are seconds on the driver's time line (it starts at the wall clock and then runs monotonically).
"""

import heapq
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from coordinator.round_machine.device_sets import NO_WORDS, NONE, DeviceSet, DeviceWords
from protocol.base import Wire
from protocol.cohort import is_below
from protocol.tasks.task import Task


class RoundPhase(StrEnum):
    """Phase of the task. The value travels in ``RoundAnnouncement.phase``."""

    INITIALISING = "initialising"
    WAITING = "waiting_for_devices"
    COLLECTING = "collecting"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    EXPORTING = "exporting"
    DONE = "done"


class Rules(Wire):
    """The part of task and settings that the machine decides by."""

    rounds: int
    deadline_s: float
    devices_per_round: int | None = None
    quorum: float = 1.0
    min_devices: int = 1
    spread_s: float = 0.0
    """Once enough devices are online, wait this long for more before selecting."""
    away_grace_s: float = 20.0
    """If all missing devices are offline, wait this long for one to return, then close without them."""
    evaluate: bool = False
    evaluate_every: int = 1
    export: bool = False
    export_every: int = 0
    """0: only the last version."""
    sampled: bool = False
    """Devices take part by chance alone (``privacy.sampling``): a round closes with any number, also none."""
    max_lost: float | None = None
    """Of secure rounds: share of devices that a sum can lack."""
    patience: int = 0
    """Versions without a gain after which the rounds end; 0: never."""

    @classmethod
    def of(cls, task: Task, **settings: float | bool) -> Self:
        """The rules of a task; ``settings`` are the coordinator's own."""
        rounds = task.rounds
        return cls.model_validate(
            {
                "rounds": rounds.count,
                "deadline_s": rounds.deadline_s,
                "devices_per_round": rounds.devices_per_round,
                "quorum": rounds.quorum,
                "min_devices": rounds.min_devices,
                "patience": rounds.patience,
                "sampled": bool(task.privacy and task.privacy.rate),
                "max_lost": getattr(task.secure_aggregation, "max_lost", None),
                **settings,
            }
        )

    def evaluates(self, version: int) -> bool:
        """Whether that version is evaluated; the initial and the last one always are."""
        return self.evaluate and (version % self.evaluate_every == 0 or version == self.rounds)

    def exports(self, version: int) -> bool:
        """Whether that version is exported; the last one always is."""
        in_between = version > 0 and self.export_every > 0 and version % self.export_every == 0
        return self.export and (version == self.rounds or in_between)


class RoundState(Wire):
    """The state of the machine. A new one costs the same however many devices a round has."""

    phase: RoundPhase = RoundPhase.INITIALISING
    round: int = 0
    """The round that is open or being finished; 0 makes the initial model."""
    attempt: int = 1
    version: int = -1
    """The newest version that exists; -1 before the initial model."""
    manifest: str = ""
    """Its manifest's digest: the base that updates must name."""
    invited: DeviceSet = NONE
    """Selected in any attempt of this round: their updates still count."""
    salt: str = ""
    """Of the round, for places (``protocol.cohort``)."""
    below: str = ""
    """Updates of devices with a place below this count, too, even if they were away when the round opened;
    empty: of none."""
    by_name: bool = True
    """Whether this attempt asks the selected devices alone, and not all below the threshold."""
    selected: DeviceSet = NONE
    delivered: DeviceSet = NONE
    """Those whose update counts; in an open round, devices of ``selected``."""
    since: float = 0.0
    until: float | None = None
    enough_since: float | None = None
    away_since: float | None = None
    """Since when every missing device of the open round is offline; None: one of them is online."""
    failures: int = 0
    retry_at: float | None = None
    closed_by: Literal["", "quorum", "deadline", "away"] = ""
    refused: DeviceWords = NO_WORDS
    """Devices whose update of this round can never be accepted, and why: not selected in its next attempts.
    """
    trouble: str = ""
    """The last failure, for people."""
    ended: str = ""
    """Why the rounds end with this version, before the last one of the task; empty: they do not."""
    stopped: bool = False
    """Whether an operator ended them: once that is taken back, a restart goes on."""

    def missing(self) -> tuple[str, ...]:
        """Selected devices that have not delivered, sorted: looks at all of them, so not for each message."""
        return tuple(sorted(self.each_missing()))

    def first_missing(self, count: int) -> tuple[str, ...]:
        """The first of them by name, for people."""
        return tuple(heapq.nsmallest(count, self.each_missing()))

    def asks(self, device: str) -> bool:
        """Whether an update of this device may count: an attempt of this round asked it."""
        return device in self.invited or is_below(self.salt, device, self.below)

    def lacks(self, device: str) -> bool:
        """Whether this device is selected and has not delivered."""
        return device in self.selected and device not in self.delivered

    @property
    def missing_count(self) -> int:
        """How many selected devices have not delivered."""
        return max(0, len(self.selected) - len(self.delivered))

    def each_missing(self) -> Iterator[str]:
        """The same in no order."""
        return self.selected.not_in(self.delivered)


class Begin(Wire):
    """The coordinator saw this task for the first time."""

    type: Literal["begin"] = "begin"


class Resumed(Wire):
    """The process started again: time may have jumped, and running work is lost."""

    type: Literal["resumed"] = "resumed"


class RoundTick(Wire):
    """Time passed.

    Attributes:
        able: number of devices that a round could select: online, with enough data, not refused.
        present: number of those, and of others that delivered already.
        settled: none joined for ``spread_s``.
    """

    type: Literal["tick"] = "tick"
    able: int = 0
    present: int = 0
    settled: bool = False


class DeviceOnline(Wire):
    """A device (re)appeared."""

    type: Literal["device_online"] = "device_online"
    device: str
    came: bool = False
    """It was offline before: a repaired device restarts, so it may be selected again."""


class Presence(Wire):
    """For an open round: whether one of the missing devices is online, so that waiting is useful."""

    type: Literal["presence"] = "presence"
    here: bool


class Selected(Wire):
    """The answer to ``Select``."""

    type: Literal["selected"] = "selected"
    round: int
    attempt: int
    devices: tuple[str, ...]
    salt: str = ""
    below: str = ""
    """All devices with a place below this are asked, also those that come later; empty: the named alone."""


class UpdatesAccepted(Wire):
    """Updates are in the journal (this event is written in the same transaction).

    ``devices``: all of them count, also those that come after the one that closes the round.
    """

    type: Literal["updates_accepted"] = "updates_accepted"
    round: int
    devices: tuple[str, ...]


class UpdateRefused(Wire):
    """An update was refused for its content: the same bytes would be refused again."""

    type: Literal["update_refused"] = "update_refused"
    device: str
    round: int
    reason: str


class UpdatesLost(Wire):
    """Updates of these devices were unusable in the fold; the devices have been told."""

    type: Literal["updates_lost"] = "updates_lost"
    round: int
    devices: tuple[str, ...]
    outliers: tuple[str, ...] = ()
    """Like ``refused``, for outliers, in older journals."""
    refused: tuple[tuple[str, str], ...] = ()
    """Those among them that would send the same again, and the reason: not asked again in this round."""


class VersionMade(Wire):
    """The initial model, or the aggregate of a round, is in the registry."""

    type: Literal["version_made"] = "version_made"
    version: int
    manifest: str
    ended: str = ""
    """As in :class:`EvaluationDone`, where versions are not evaluated."""


class EvaluationDone(Wire):
    """A version has been evaluated."""

    type: Literal["evaluation_done"] = "evaluation_done"
    version: int
    ended: str = ""
    """Why no further round would gain anything; empty: it may."""


class ExportDone(Wire):
    """A version's bundle has been stored and announced."""

    type: Literal["export_done"] = "export_done"
    version: int


class EndRounds(Wire):
    """An operator ends the rounds; ``why``: in words."""

    type: Literal["end_rounds"] = "end_rounds"
    why: str


class WorkFailed(Wire):
    """Work that the machine asked for failed; ``phase`` and ``version`` identify it."""

    type: Literal["work_failed"] = "work_failed"
    phase: RoundPhase
    version: int
    detail: str = ""
    passing: bool = False
    """Whether the same work may succeed later (the disk was full)."""


class Checkpoint(Wire):
    """The whole state, and the rules from then on: replay starts at the last one.

    Written at every start, and at the end of each round or attempt.
    """

    type: Literal["checkpoint"] = "checkpoint"
    state: RoundState
    rules: Rules


Event = (
    Begin
    | Resumed
    | RoundTick
    | DeviceOnline
    | Presence
    | Selected
    | UpdatesAccepted
    | UpdateRefused
    | UpdatesLost
    | VersionMade
    | EvaluationDone
    | ExportDone
    | EndRounds
    | WorkFailed
)
Journaled = Annotated[Event | Checkpoint, Field(discriminator="type")]
JOURNALED: TypeAdapter[Event | Checkpoint] = TypeAdapter(Journaled)
