"""Results of the fault matrix: a cell for each step, a row for each fault."""

from dataclasses import dataclass, field

from lichen_lab.benchmarks.fault_injection.verdict import Verdict


@dataclass
class StepResult:
    """The result at one step.

    Attributes:
        fault: its name.
        step: its name.
        seconds: from the beginning of the fault until the round was over.
        trained: how often the target agent trained in this round.
        sent: how often its update was sent.
        deaths: processes that ended by themselves meanwhile.
    """

    fault: str
    step: str
    seconds: float
    trained: int
    sent: int
    deaths: int

    def words(self) -> str:
        """Text for the table."""
        extra = [
            f"trained {self.trained} times" if self.trained > 1 else "",
            f"{self.deaths} ended by themselves" if self.deaths else "",
        ]
        return "; ".join([f"round over after {self.seconds:.1f} s", *(one for one in extra if one)])


@dataclass
class MatrixRow:
    """One fault at all steps.

    Attributes:
        fault: its name.
        steps: how many there are.
        cells: in the order of the steps.
        verdict: on the whole run.
        deaths: processes that ended by themselves, as text.
    """

    fault: str
    steps: int
    cells: list[StepResult] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    deaths: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Every step was reached and every promise held."""
        return len(self.cells) == self.steps and not self.verdict.violations
