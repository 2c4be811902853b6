"""The fault matrix: every fault at every step of a round, real processes over Mosquitto.

A row is one fleet of two agents that learns nine rounds; in round n the fault strikes at step n, where the
processes are held until then. The round must then end by itself. After the row each version is computed again
from the kept frames of exactly the accepted updates and compared by its digest.
"""

import time
from pathlib import Path
from typing import Final

from lichen_lab.benchmarks.fault_injection import matrix_runner as trial
from lichen_lab.benchmarks.fault_injection.faults import FAULTS, InjectedFault
from lichen_lab.benchmarks.fault_injection.harness import disks
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, row
from protocol.errors import Misconfigured, Transient

_SECONDS: Final = "s from the fault to the end of its round"
_VIOLATIONS: Final = "violations"
_EQUAL: Final = "versions equal to the undisturbed fold, %"
_DEATHS: Final = "processes that ended by themselves"
_ALL: Final = "all steps"
_DATA: Final = "synthetic, 2 modalities"


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """All faults; quick: without torch and onnx, in about two minutes."""
    return measure((), say, light=quick)


def measure(names: tuple[str, ...], say: Say, *, light: bool, keep: Path | None = None) -> list[ResultRow]:
    """Run these rows.

    Args:
        names: of faults; none: all.
        say: called with the progress.
        light: without torch and onnx.
        keep: parent of the folders of rows that failed.

    Raises:
        Misconfigured: there is no such fault.
    """
    strange = sorted(set(names) - set(FAULTS))
    if strange:
        raise Misconfigured(f"no fault {strange[0]!r}; there are {', '.join(FAULTS)}")
    rows: list[ResultRow] = []
    with trial.initial_model(light=light) as model:
        for number, name in enumerate(wanted := names or tuple(FAULTS), start=1):
            fault = FAULTS[name]
            if fault.disks and (why := disks.why_unavailable()):
                say(f"{name}: LEFT OUT: {why}")
                continue
            say(f"{name} ({number} of {len(wanted)}): {fault.words}")
            rows += _row(fault, say, model, keep)
    return rows


def _row(fault: InjectedFault, say: Say, model: Path | None, keep: Path | None) -> list[ResultRow]:
    started = time.perf_counter()
    try:
        result = trial.run(fault, model, keep)
    except Transient as error:  # a step that was not reached, or a round that did not end, is a result
        say(f"{fault.name}: VIOLATION: {error}")
        return [row(_DATA, fault.name, _ALL, _VIOLATIONS, [1.0])]
    seconds = time.perf_counter() - started
    for cell in result.cells:
        say(f"{fault.name} at {cell.step}: {cell.words()}")
    for words in result.verdict.violations:
        say(f"{fault.name}: VIOLATION: {words}")
    for words in result.deaths:
        say(f"{fault.name}: {words}")
    cells = [
        row(_DATA, fault.name, cell.step, _SECONDS, [cell.seconds], seconds=seconds) for cell in result.cells
    ]
    share = 100.0 * result.verdict.compared / (len(result.cells) + 1)
    whole = {
        _VIOLATIONS: float(len(result.verdict.violations)),
        _EQUAL: share,
        _DEATHS: float(len(result.deaths)),
        "updates accepted": float(result.verdict.accepted),
        "updates seen acknowledged": float(result.verdict.acknowledged),
    }
    return cells + [
        row(_DATA, fault.name, _ALL, name, [value], seconds=seconds) for name, value in whole.items()
    ]


BENCH: Final = Bench(
    name="matrix",
    title="faults x steps of a round, real processes: does every round end, with the model it must have?",
    run=run,
    promises=(Goal(_VIOLATIONS, 0.01), Goal(_EQUAL, 99.9, above=True)),
)
