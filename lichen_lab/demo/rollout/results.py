"""Results of the rollouts, as plain data."""

from dataclasses import dataclass, field
from typing import Final

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
TRIAL: Final = "trial"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
PAUSED: Final = "paused"


@dataclass
class Watcher:
    """A device that only predicts."""

    name: str
    person: int
    site: str


@dataclass
class WatchPrediction:
    """One window of one watcher; ``at`` in seconds of the demo, ``right`` None if the truth is unknown."""

    at: float
    version: int
    right: bool | None


@dataclass
class Move:
    """A device's report on a model's trial (``up/state``)."""

    at: float
    device: str
    phase: str
    version: int
    why: str = ""
    measures: dict[str, float] = field(default_factory=dict)


@dataclass
class DemoRelease:
    """One ``lichen rollout create`` and its outcome. Times in seconds of the demo."""

    version: int
    made: str
    """Where the model comes from, in words."""
    command: str
    began: float
    ended: float | None = None
    phase: str = ""
    """As the coordinator reports it."""
    why: str = ""


@dataclass
class RolloutResults:
    """All rollouts."""

    watchers: list[Watcher]
    canary: str
    """The name of the watcher that tries first."""
    before: int = 0
    """The version that all watchers ran at first."""
    began: float = 0.0
    first: DemoRelease | None = None
    """Release of :attr:`before` to all at once."""
    bad: DemoRelease | None = None
    good: DemoRelease | None = None
    moves: list[Move] = field(default_factory=list)
    said: dict[str, list[WatchPrediction]] = field(default_factory=dict)
    """Watcher -> every window that it predicted."""

    @property
    def others(self) -> list[str]:
        """All watchers but the canary."""
        return [one.name for one in self.watchers if one.name != self.canary]

    @property
    def releases(self) -> list[DemoRelease]:
        """The started releases, in order."""
        return [one for one in (self.first, self.bad, self.good) if one is not None]

    def windows(self, device: str, version: int) -> int:
        """How many windows a device answered with a version."""
        return sum(one.version == version for one in self.said.get(device, ()))

    def saw(self, version: int) -> list[str]:
        """Watchers that got a pointer to a version, or predicted with it."""
        names = [one.name for one in self.watchers]
        return [name for name in names if self.last(name, version) or self.windows(name, version)]

    def kept(self, version: int) -> list[str]:
        """Watchers that predicted with a version and committed it."""
        return [
            name
            for name in self.saw(version)
            if (move := self.last(name, version)) is not None
            and move.phase == COMMITTED
            and self.windows(name, version)
        ]

    def lasted_s(self, version: int) -> float:
        """From the first window that was answered with a version to the last one."""
        times = [one.at for rows in self.said.values() for one in rows if one.version == version]
        return max(times) - min(times) if times else 0.0

    def first_answer(self, device: str, version: int) -> float | None:
        """When a device first answered with a version."""
        return min((one.at for one in self.said.get(device, ()) if one.version == version), default=None)

    def last(self, device: str, version: int) -> Move | None:
        """A device's last report on a version."""
        found = [one for one in self.moves if (one.device, one.version) == (device, version)]
        return found[-1] if found else None

    def decisions(self) -> list[Move]:
        """Moves that dropped a version, or committed one for the first time."""
        found: dict[tuple[str, int, str], Move] = {}
        for move in self.moves:
            if move.phase in {COMMITTED, ROLLED_BACK}:
                found.setdefault((move.device, move.version, move.phase), move)
        return list(found.values())

    def went_back(self, device: str, version: int) -> bool:
        """Whether it answered with the first version again after the last window of this one."""
        rows = self.said.get(device, [])
        gone = max((row.at for row in rows if row.version == version), default=None)
        return gone is not None and any(row.at > gone and row.version == self.before for row in rows)
