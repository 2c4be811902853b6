"""The fault matrix: every fault at every step of a round, real processes over Mosquitto.

A row is one fleet of two agents that learns nine rounds; in round n the fault strikes at step n, where the
processes are held until then. The round must then end by itself. After the row each version is computed again
from the kept frames of exactly the accepted updates and compared by its digest.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection import refold
from lichen_lab.benchmarks.fault_injection.faults import FAULTS, InjectedFault
from lichen_lab.benchmarks.fault_injection.harness import disks, small_fleet
from lichen_lab.benchmarks.fault_injection.harness.trial import run_in_folder
from lichen_lab.benchmarks.fault_injection.matrix import DEVICES, FaultMatrix, MatrixRow
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows, row
from models.worker import job_folder
from protocol.errors import Misconfigured, Transient

_SECONDS: Final = "s from the fault to the end of its round"
_LEADER: Final = "s from the fault until another process led"
_VIOLATIONS: Final = "violations"
_EQUAL: Final = "versions equal to the undisturbed fold, %"
_DEATHS: Final = "processes that ended by themselves"
_ALL: Final = "all steps"
_DATA: Final = "synthetic, 2 modalities"

Trial = Callable[[str, Path | None, Path | None], MatrixRow]
"""Runs a row: name of the fault, initial model for processes without torch, parent of failed folders."""


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """All faults; quick: without torch and onnx, in about two minutes."""
    return measure((), say, light=quick)


def measure(
    names: tuple[str, ...], say: Say, *, light: bool, keep: Path | None = None, cluster: bool = False
) -> list[ResultRow]:
    """Run these rows.

    Args:
        names: of faults; none: all.
        say: called with the progress.
        light: without torch and onnx.
        keep: parent of the folders of rows that failed.
        cluster: over the roles of a coordinator of several processes, on PostgreSQL.

    Raises:
        Misconfigured: there is no such fault, or a requirement is missing.
    """
    known, trial = _on_cluster() if cluster else _on_one_process()
    strange = sorted(set(names) - set(known))
    if strange:
        raise Misconfigured(f"no fault {strange[0]!r}; there are {', '.join(known)}")
    rows: list[ResultRow] = []
    with initial_model(light=light) as model:
        for number, name in enumerate(wanted := names or tuple(known), start=1):
            if not cluster and FAULTS[name].disks and (why := disks.why_unavailable()):
                say(f"{name}: LEFT OUT: {why}")
                continue
            say(f"{name} ({number} of {len(wanted)}): {known[name]}")
            rows += _row(name, trial, say, model, keep)
    return rows


def _on_one_process() -> tuple[dict[str, str], Trial]:
    words = {name: fault.words for name, fault in FAULTS.items()}
    return words, lambda name, light, keep: run_row(FAULTS[name], light, keep)


def _on_cluster() -> tuple[dict[str, str], Trial]:
    from lichen_lab.benchmarks.fault_injection.cluster import runner  # noqa: PLC0415 - needs psycopg

    return runner.faults(), runner.run


def _row(name: str, trial: Trial, say: Say, model: Path | None, keep: Path | None) -> list[ResultRow]:
    started = time.perf_counter()
    try:
        result = trial(name, model, keep)
    except Transient as error:  # a step that was not reached, or a round that did not end, is a result
        say(f"{name}: VIOLATION: {error}")
        return [row(_DATA, name, _ALL, _VIOLATIONS, [1.0])]
    seconds = time.perf_counter() - started
    for cell in result.cells:
        say(f"{name} at {cell.step}: {cell.words()}")
    for words in result.verdict.violations:
        say(f"{name}: VIOLATION: {words}")
    for words in result.deaths:
        say(f"{name}: {words}")
    cells = [row(_DATA, name, cell.step, _SECONDS, [cell.seconds], seconds=seconds) for cell in result.cells]
    cells += [
        row(_DATA, name, cell.step, _LEADER, [cell.leader_s], seconds=seconds)
        for cell in result.cells
        if cell.leader_s is not None
    ]
    share = 100.0 * result.verdict.compared / (len(result.cells) + 1)
    whole = {
        _VIOLATIONS: len(result.verdict.violations),
        _EQUAL: share,
        _DEATHS: len(result.deaths),
        "updates accepted": result.verdict.accepted,
        "updates seen acknowledged": result.verdict.acknowledged,
    }
    return cells + figure_rows(_DATA, name, _ALL, whole, seconds=seconds)


def run_row(fault: InjectedFault, light: Path | None = None, keep: Path | None = None) -> MatrixRow:
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


BENCH: Final = Bench(
    name="matrix",
    run=run,
    promises=(Goal(_VIOLATIONS, 0.01), Goal(_EQUAL, 99.9, above=True)),
)
CLUSTER: Final = replace(BENCH, name="matrix-cluster", promises=(*BENCH.promises, Goal(_LEADER, 10.0)))
