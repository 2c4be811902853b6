"""What the rollout's machine knows, what happens to it, and what it asks for. All frozen, all JSON.

Times are unix seconds.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from coordinator.config.rollout import Mode, Plan
from coordinator.fleet.routes import ReleaseBundle
from coordinator.rollout.device_record import DeviceReport, Refuser
from coordinator.rollout.stage_devices import Fact
from protocol.base import Count, Digest, Name, Share, Wire
from protocol.frames.frame import digest
from protocol.rollout import Trial

MAX_STORY: Final = 100
MAX_FAILED: Final = 50
_SERIALS_BEGAN_S: Final = 1_577_836_800.0


class RolloutPhase(StrEnum):
    """Where the last rollout stands."""

    NONE = "none"
    """There was none."""
    OPEN = "open"
    PAUSED = "paused"
    COMPLETE = "complete"
    FAILED = "failed"
    ABORTED = "aborted"


OVER: Final = frozenset({RolloutPhase.NONE, RolloutPhase.COMPLETE, RolloutPhase.FAILED, RolloutPhase.ABORTED})


class Release(Wire):
    """What is rolled out as one: a version's bundle, or its bundles by route."""

    version: Count
    pieces: Annotated[tuple[ReleaseBundle, ...], Field(min_length=1)]

    @property
    def digests(self) -> tuple[str, ...]:
        """Of its bundles, sorted, each once."""
        return tuple(sorted({piece.bundle.digest for piece in self.pieces}))

    @property
    def key(self) -> str:
        """Tells releases apart by what devices would run."""
        return digest("\n".join(self.digests).encode())

    @property
    def words(self) -> str:
        """For people."""
        first, *more = self.digests
        return f"version {self.version} ({first[:12]}{f' and {len(more)} more' if more else ''})"


class StableRelease(Wire):
    """What devices run that are in no stage."""

    release: Release
    serial: Count
    trial: Trial | None = None


class RolloutDevice(Wire):
    """A device that was pointed at the candidate, and what came of it."""

    stage: Count
    serial: Count
    """Of its pointer."""
    seen: bool = False
    """It was here since then."""
    phase: Literal["waiting", "trial", "committed", "rolled_back", "refused"] = "waiting"
    why: str = ""
    measures: dict[str, float] = Field(default_factory=dict)
    times: dict[str, float] = Field(default_factory=dict)
    """When each phase was first heard of; ``waiting``: when it was pointed at it."""
    barred: bool = False
    """Nothing is taken from it now (quarantined, revoked): nobody waits for it."""
    left_out: bool = False
    """Its refusals do not count: it refused the last versions that others kept."""
    runs: bool = False
    """It runs the candidate and says nothing of a trial: an agent of a release that knows none."""

    @property
    def failed(self) -> bool:
        """It did not keep the candidate."""
        return self.phase in {"rolled_back", "refused"}


class RolloutLogEntry(Wire):
    """One line of a rollout's story."""

    wall: float
    what: str
    """One word for programs."""
    words: str


class Rollout(Wire):
    """One rollout; its devices are kept beside it."""

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
    """Its devices' own pointers were taken back."""
    story: tuple[RolloutLogEntry, ...] = ()
    members: dict[Name, RolloutDevice] = Field(default_factory=dict, exclude=True)

    @property
    def until(self) -> float:
        """The stage's deadline."""
        return self.since + self.plan.deadline_s

    @property
    def stage_words(self) -> str:
        """Which stage of how many, and whose."""
        stages = self.plan.stages
        name = "canary" if self.stage == 0 else f"wave {self.stage} of {len(stages) - 1}"
        return f"{name} ({stages[self.stage]})"

    def with_entry(self, now: float, what: str, words: str) -> "Rollout":
        """With one more line in its story."""
        story = (*self.story, RolloutLogEntry(wall=now, what=what, words=words[:500]))
        return self.model_copy(update={"story": story[-MAX_STORY:]})


class FailedRelease(Wire):
    """A release that failed: it does not go out again by itself."""

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
    """All that the coordinator decided of what devices run."""

    serial: Count = 0
    """Of the last decision."""
    number: Count = 0
    """Of the last rollout."""
    begun: bool = False
    """It was looked at what was announced before."""
    stable: StableRelease | None = None
    newest: Release | None = None
    """The last export."""
    rollout: Rollout | None = None
    waiting: QueuedRelease | None = None
    failed: tuple[FailedRelease, ...] = ()
    refusers: dict[Name, Refuser] = Field(default_factory=dict)
    base_share: Share = 0.0
    """Of the devices, that failed the last version which the fleet kept."""

    @property
    def phase(self) -> RolloutPhase:
        """Of the last rollout."""
        return RolloutPhase.NONE if self.rollout is None else self.rollout.phase

    @property
    def open(self) -> Rollout | None:
        """The rollout that is not over."""
        return None if self.rollout is None or self.phase in OVER else self.rollout

    @property
    def running(self) -> tuple[Release, ...]:
        """What devices may be pointed at now: the stable release, and the candidate."""
        stable = () if self.stable is None else (self.stable.release,)
        return stable if self.open is None else (*stable, self.open.release)

    @property
    def named(self) -> Iterable[Release]:
        """All that may still be needed."""
        yield from self.running
        if self.newest is not None:
            yield self.newest
        if self.waiting is not None:
            yield self.waiting.release

    def next_serial(self, now: float) -> int:
        """Of a new decision; above those of a file that was lost, or put back from an old copy.

        By this state and the clock alone. A device could report the highest number there is, and no decision
        could follow it. A device counts decisions that it took, less than one a minute; with a root of trust
        it takes none but signed ones.
        """
        return max(self.serial + 1, int((now - _SERIALS_BEGAN_S) // 60))

    def with_rollout(self, rollout: Rollout) -> "RolloutState":
        """With its rollout changed."""
        return self.model_copy(update={"rollout": rollout})


class Begun(Wire):
    """At every start of the coordinator. ``release``: what was announced to all before there was a book."""

    mode: Mode
    release: Release | None = None


class Exported(Wire):
    """A version was exported."""

    release: Release
    mode: Mode
    plan: Plan


class Create(Wire):
    """The operator begins a rollout."""

    release: Release
    plan: Plan


class Pause(Wire):
    """The operator stops it where it is."""


class Resume(Wire):
    """The operator lets it go on."""


class Abort(Wire):
    """The operator ends it."""


class RolloutTick(Wire):
    """Time passes.

    ``heard``: the devices that were pointed at the candidate; ``fleet``: where a stage is to be filled
    (:func:`coordinator.rollout.transitions.needs_fleet`), every device that may get it.
    """

    heard: dict[Name, DeviceReport] = Field(default_factory=dict)
    fleet: dict[Name, Fact] | None = None


class Cleared(Wire):
    """The pointers of the last rollout's devices were taken back."""

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
