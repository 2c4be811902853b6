"""The best version by the coordinator's evaluation. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

METRICS: Final = ("accuracy", "mrr")
"""Of evaluated versions, the one that rounds end by; larger is better."""
_TIE: Final = "macro_f1"


@dataclass(frozen=True)
class BestVersion:
    """A version, and the metric by which it is the best."""

    version: int
    metric: str
    value: float

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"version": self.version, "metric": self.metric, "value": self.value}

    @property
    def words(self) -> str:
        """For people."""
        return f"version {self.version} ({self.metric} {self.value:.3f})"


def best_of(versions: Iterable[tuple[int, Mapping[str, float]]]) -> BestVersion | None:
    """The best of these; of equal ones that of the larger macro F1, then the oldest.

    Args:
        versions: number and metrics of each, in any order.

    Returns:
        None: none is evaluated.
    """
    known = [(number, metrics) for number, metrics in versions if metrics]
    metric = next((name for name in METRICS if any(name in metrics for _, metrics in known)), None)
    if metric is None:
        return None
    number, metrics = max(
        ((number, metrics) for number, metrics in known if metric in metrics),
        key=lambda one: (one[1][metric], one[1].get(_TIE, 0.0), -one[0]),
    )
    return BestVersion(number, metric, metrics[metric])
