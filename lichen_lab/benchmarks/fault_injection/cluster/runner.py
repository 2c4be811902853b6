"""Runs rows of the matrix over the roles, each in a folder of its own."""

from pathlib import Path

from lichen_lab.benchmarks.fault_injection.cluster.faults import CLUSTER_FAULTS
from lichen_lab.benchmarks.fault_injection.cluster.matrix import CLUSTER_STEPS, ClusterMatrix
from lichen_lab.benchmarks.fault_injection.harness.trial import run_in_folder
from lichen_lab.benchmarks.fault_injection.matrix import MatrixRow
from lichen_lab.benchmarks.fault_injection.steps import Step


def faults() -> dict[str, str]:
    """The faults, and what each does."""
    return {name: words for name, (words, _) in CLUSTER_FAULTS.items()}


def run(
    name: str,
    light: Path | None = None,
    keep: Path | None = None,
    steps: tuple[Step, ...] = CLUSTER_STEPS,
) -> MatrixRow:
    """Run the row of a fault.

    Args:
        name: of the fault.
        light: see :class:`ClusterMatrix`.
        keep: parent of the folder if the row failed; None: it is removed.
        steps: at which it is injected.

    Raises:
        Transient: a step was not reached, or its round did not end in time.
        Misconfigured: Mosquitto or PostgreSQL is missing.
    """
    row, _ = run_in_folder(
        f"cluster-{name}", keep, lambda root: ClusterMatrix(root, name, steps, light).run()
    )
    return row
