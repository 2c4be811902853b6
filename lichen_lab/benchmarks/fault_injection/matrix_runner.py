"""Runs rows of the matrix, each in a folder of its own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lichen_lab.benchmarks.fault_injection import refold
from lichen_lab.benchmarks.fault_injection.faults import InjectedFault
from lichen_lab.benchmarks.fault_injection.harness import small_fleet
from lichen_lab.benchmarks.fault_injection.harness.trial import run_in_folder
from lichen_lab.benchmarks.fault_injection.matrix import DEVICES, FaultMatrix
from lichen_lab.benchmarks.fault_injection.matrix_results import MatrixRow
from models.worker import job_folder


def run(fault: InjectedFault, light: Path | None = None, keep: Path | None = None) -> MatrixRow:
    """Run one row in a folder of its own.

    Args:
        fault: to inject.
        light: see :class:`FaultMatrix`.
        keep: parent of the folder if the row failed; None: it is removed.

    Raises:
        Transient: a step was not reached, or its round did not end in time.
        Misconfigured: a requirement of the fault is missing.
    """
    row, _ = run_in_folder(
        f"matrix-{fault.name}", keep, lambda root: FaultMatrix(root, fault, light=light).run()
    )
    return row


@contextmanager
def initial_model(*, light: bool) -> Iterator[Path | None]:
    """For rows without torch the initial model as an npz, made once by the real worker; else None.

    Raises:
        Transient: the worker failed.
    """
    if not light:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="lichen-matrix-initial-") as name:
        folder = Path(name)
        file = folder / "initial.npz"
        job_folder.write_state(file, refold.initial(small_fleet.task(1, len(DEVICES), 0), folder / "job"))
        yield file
