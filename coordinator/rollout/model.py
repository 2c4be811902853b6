"""State, events and commands of the rollout's state machine. All frozen, all JSON.

Times are Unix seconds.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from coordinator.config.rollout import Mode, Plan
from coordinator.fleet.routes import ReleaseBundle
from coordinator.rollout.device_record import DeviceReport, Refuser, RolloutDevice
from coordinator.rollout.stage_devices import Fact
from protocol.base import Count, Digest, Name, Share, Wire
from protocol.frames.frame import digest
from protocol.rollout import Trial

MAX_STORY: Final = 100
MAX_FAILED: Final = 50
_SERIALS_BEGAN_S: Final = 1_577_836_800.0


class RolloutPhase(StrEnum):
    """Phase of the last rollout."""

    NONE = "none"
    """There was none."""
    OPEN = "open"
    PAUSED = "paused"
    COMPLETE = "complete"
    FAILED = "failed"
    ABORTED = "aborted"


OVER: Final = frozenset({RolloutPhase.NONE, RolloutPhase.COMPLETE, RolloutPhase.FAILED, RolloutPhase.ABORTED})


class Release(Wire):
    """The unit of a rollout: a version's bundle, or its bundles by route."""

    version: Count
    pieces: Annotated[tuple[ReleaseBundle, ...], Field(min_length=1)]

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of its bundles, sorted, each once."""
        return tuple(sorted({piece.bundle.digest for piece in self.pieces}))

    @property
    def key(self) -> str:
        """Key that distinguishes releases by what devices would run."""
        return digest("\n".join(self.digests).encode())

    @property
    def words(self) -> str:
        """As text."""
        first, *more = self.digests
        return f"version {self.version} ({first[:12]}{f' and {len(more)} more' if more else ''})"


class StableRelease(Wire):
    """The release for devices that are in no stage."""

    release: Release
    serial: Count
    trial: Trial | None = None


class RolloutLogEntry(Wire):
    """One line of a rollout's log."""

    wall: float
    what: str
    """One word for programs."""
    words: str


class Rollout(Wire):
    """One rollout; its devices are stored beside it."""

    number: Count
    release: Release
    plan: Plan
    phase: RolloutPhase = RolloutPhase.OPEN
    began: float
    stage: Count = 0
    since: float
    """When the stage began, or went on after a pause."""
    good_since: float | None = None
    """Since when enough of its devices have committed."""
    paused: float | None = None
    over: float | None = None
    why: str = ""
    """Why it is paused or over."""
    cleared: bool = False
    """Its devices' own pointers were cleared."""
    story: tuple[RolloutLogEntry, ...] = ()
    members: dict[Name, RolloutDevice] = Field(default_factory=dict, exclude=True)

    @property
    def until(self) -> float:
        """The stage's deadline."""
        return self.since + self.plan.deadline_s

    @property
    def stage_words(self) -> str:
        """Number of the stage, of how many, and its devices."""
        stages = self.plan.stages
        name = "canary" if self.stage == 0 else f"wave {self.stage} of {len(stages) - 1}"
        return f"{name} ({stages[self.stage]})"

    def with_entry(self, now: float, what: str, words: str) -> "Rollout":
        """The rollout with one more line in its log."""
        story = (*self.story, RolloutLogEntry(wall=now, what=what, words=words[:500]))
        return self.model_copy(update={"story": story[-MAX_STORY:]})


class FailedRelease(Wire):
    """A release that failed: it is not rolled out again by itself."""

    key: Digest
    version: Count
    bundles: tuple[Digest, ...]
    why: str
    wall: float


class QueuedRelease(Wire):
    """A release that waits for its turn."""

    release: Release
    mode: Mode
    plan: Plan
    since: float


class RolloutState(Wire):
    """All decisions of the coordinator on what devices run."""

    serial: Count = 0
    """Serial of the last decision."""
    number: Count = 0
    """Number of the last rollout."""
    begun: bool = False
    """What was announced before the first rollout has been recorded."""
    stable: StableRelease | None = None
    newest: Release | None = None
    """The last export."""
    rollout: Rollout | None = None
    waiting: QueuedRelease | None = None
    failed: tuple[FailedRelease, ...] = ()
    refusers: dict[Name, Refuser] = Field(default_factory=dict)
    base_share: Share = 0.0
    """Share of the devices that failed the last version which the fleet kept."""

    @property
    def phase(self) -> RolloutPhase:
        """Devices of the last rollout."""
        return RolloutPhase.NONE if self.rollout is None else self.rollout.phase

    @property
    def open(self) -> Rollout | None:
        """The rollout that is not over."""
        return None if self.rollout is None or self.phase in OVER else self.rollout

    @property
    def running(self) -> tuple[Release, ...]:
        """The releases of present pointers: the stable release, and the candidate."""
        stable = () if self.stable is None else (self.stable.release,)
        return stable if self.open is None else (*stable, self.open.release)

    @property
    def named(self) -> Iterable[Release]:
        """All releases that may still be needed."""
        yield from self.running
        if self.newest is not None:
            yield self.newest
        if self.waiting is not None:
            yield self.waiting.release

    def next_serial(self, now: float) -> int:
        """Serial of a new decision; above those of a file that was lost, or restored from an old copy.

        From this state and the clock alone: a device could report the highest number there is, and no
        decision could follow it. A device counts decisions that it accepted, less than one a minute; with a
        root of trust it accepts only signed ones.
        """
        return max(self.serial + 1, int((now - _SERIALS_BEGAN_S) // 60))

    def with_rollout(self, rollout: Rollout) -> "RolloutState":
        """The state with its rollout changed."""
        return self.model_copy(update={"rollout": rollout})


class Begun(Wire):
    """Event at every start of the coordinator. ``release``: announced to all before the first rollout."""

    mode: Mode
    release: Release | None = None


class Exported(Wire):
    """A version was exported."""

    release: Release
    mode: Mode
    plan: Plan


class Create(Wire):
    """The operator starts a rollout."""

    release: Release
    plan: Plan


class Pause(Wire):
    """The operator pauses it."""


class Resume(Wire):
    """The operator resumes it."""


class Abort(Wire):
    """The operator ends it."""


class RolloutTick(Wire):
    """Time passes.

    ``heard``: reports of the rollout's devices; ``fleet``: if a stage is to be filled
    (:func:`coordinator.rollout.transitions.needs_fleet`), every device that may get the candidate.
    """

    heard: dict[Name, DeviceReport] = Field(default_factory=dict)
    fleet: dict[Name, Fact] | None = None


class Cleared(Wire):
    """The pointers of the last rollout's devices were cleared."""

    number: Count


Event = Begun | Exported | Create | Pause | Resume | Abort | RolloutTick | Cleared


class Point(Wire):
    """Point these devices at the candidate."""

    devices: tuple[Name, ...]


class Promote(Wire):
    """Point all at the stable release; no device has a pointer of its own any more."""


class Say(Wire):
    """Write into the log."""

    what: str
    words: str
    trouble: bool = False


Command = Point | Promote | Say
Outcome = tuple[RolloutState, tuple[Command, ...]]
