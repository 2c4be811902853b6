"""What a world comes to."""

from collections import Counter
from dataclasses import dataclass, field

from lichen_lab.simulation.deterministic.protected.uniformity import Histogram, deviation, nothing
from lichen_lab.simulation.deterministic.scenario.scenario import Scenario


@dataclass
class JournalBytes:
    """How often each value of a byte occurs in the masked updates of coordinators' journals, (256,) each.

    ``control_V``: the same of these vectors without their masks.
    """

    masked_V: Histogram = field(default_factory=nothing)
    control_V: Histogram = field(default_factory=nothing)

    def add(self, other: "JournalBytes") -> None:
        """Add the counts of another world."""
        self.masked_V += other.masked_V
        self.control_V += other.control_V

    @property
    def count(self) -> int:
        """Number of bytes."""
        return int(self.masked_V.sum())

    @property
    def deviations(self) -> tuple[float, float]:
        """From uniform bytes, in standard deviations of chi-square; and those of the control."""
        return deviation(self.masked_V), deviation(self.control_V)


@dataclass
class WorldOutcome:
    """The result of a seed."""

    seed: int
    scenario: Scenario
    violation: str = ""
    """The broken promise, and when; empty if none was."""
    steps: int = 0
    """Callbacks of the event loop."""
    messages: int = 0
    threads: int = 0
    moments: int = 0
    """Moments for a power cut: disk operations, commits, threads, messages."""
    virtual_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    """Kind -> number of faults that happened."""
    counted: int = 0
    """Updates in versions."""
    lost: int = 0
    """Updates that rotted after their receipt; reported, and asked for again."""
    journal: JournalBytes = field(default_factory=JournalBytes)
    """Of secure rounds."""
    mark: str = ""
    """SHA-256 of the whole trace: the same seed gives the same."""
    trace: list[str] = field(default_factory=list)
    kind: str = "plain"
    """Of :class:`lichen_lab.simulation.deterministic.batch.WorldKind`."""
