"""State, events and commands of the round machine. All frozen, all JSON.

Times are seconds on the driver's time line (it starts at the wall clock and then runs monotonically).
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from protocol.base import Wire
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
                **settings,
            }
        )

    def evaluates(self, version: int) -> bool:
        """Whether that version is evaluated; the initial and the last one always are."""
        return self.evaluate and (version % self.evaluate_every == 0 or version == self.rounds)

    def exports(self, version: int) -> bool:
        """Whether that version is exported; the last one always is."""
        if not self.export:
            return False
        return version == self.rounds or (
            version > 0 and self.export_every > 0 and version % self.export_every == 0
        )


class RoundState(Wire):
    """The state of the machine. Device tuples are sorted sets."""

    phase: RoundPhase = RoundPhase.INITIALISING
    round: int = 0
    """The round that is open or being finished; 0 makes the initial model."""
    attempt: int = 1
    version: int = -1
    """The newest version that exists; -1 before the initial model."""
    manifest: str = ""
    """Its manifest's digest: the base that updates must name."""
    invited: tuple[str, ...] = ()
    """Selected in any attempt of this round: their updates still count."""
    selected: tuple[str, ...] = ()
    delivered: tuple[str, ...] = ()
    since: float = 0.0
    until: float | None = None
    enough_since: float | None = None
    away_since: float | None = None
    """Since when every missing device of the open round is offline; None: one of them is online."""
    failures: int = 0
    retry_at: float | None = None
    closed_by: Literal["", "quorum", "deadline", "away"] = ""
    refused: tuple[tuple[str, str], ...] = ()
    """Devices whose update of this round can never be accepted, and why: not selected in its next attempts.
    """
    trouble: str = ""
    """The last failure, for people."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Selected devices that have not delivered."""
        here = set(self.delivered)
        return tuple(d for d in self.selected if d not in here)


class Begin(Wire):
    """The coordinator saw this task for the first time."""

    type: Literal["begin"] = "begin"


class Resumed(Wire):
    """The process started again: time may have jumped, and running work is lost."""

    type: Literal["resumed"] = "resumed"


class RoundTick(Wire):
    """Time passed.

    ``able``: devices that are online and have enough data. ``settled``: none joined for ``spread_s``.
    """

    type: Literal["tick"] = "tick"
    able: tuple[str, ...] = ()
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


class UpdateAccepted(Wire):
    """An update is in the journal (this event is written in the same transaction)."""

    type: Literal["update_accepted"] = "update_accepted"
    device: str
    round: int


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


class EvaluationDone(Wire):
    """A version has been evaluated."""

    type: Literal["evaluation_done"] = "evaluation_done"
    version: int


class ExportDone(Wire):
    """A version's bundle has been stored and announced."""

    type: Literal["export_done"] = "export_done"
    version: int


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
    | UpdateAccepted
    | UpdateRefused
    | UpdatesLost
    | VersionMade
    | EvaluationDone
    | ExportDone
    | WorkFailed
)
Journaled = Annotated[Event | Checkpoint, Field(discriminator="type")]
JOURNALED: TypeAdapter[Event | Checkpoint] = TypeAdapter(Journaled)


class Initialise(Wire):
    """Make version 0."""


class Select(Wire):
    """Select devices for this attempt and answer with ``Selected``."""

    round: int
    attempt: int


class SendOffers(Wire):
    """Offer the round to these devices now."""

    devices: tuple[str, ...]


class Aggregate(Wire):
    """Fold the journal's updates of these devices into version ``round``."""

    round: int
    devices: tuple[str, ...]


class Evaluate(Wire):
    """Evaluate that version."""

    version: int


class Export(Wire):
    """Export and announce that version."""

    version: int


class RecordAttempt(Wire):
    """An attempt is over: write its outcome for the history."""

    round: int
    attempt: int
    outcome: Literal["quorum", "deadline", "away", "given_up"]


class Finish(Wire):
    """All rounds are over."""


Command = Initialise | Select | SendOffers | Aggregate | Evaluate | Export | RecordAttempt | Finish
