"""One fresh process that folds a journal as the coordinator does. It loads no torch.

``python -P -m lichen_lab.benchmarks.support.fold_child ROOT COUNT`` prints one JSON object: updates folded,
seconds, and the
process's peak memory before and after.
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

from coordinator.aggregation.fold import fold_round, limits_for
from coordinator.storage.database import Database
from coordinator.storage.update_journal import Journal
from models.registry import method
from models.worker.job_folder import load_state
from protocol.tasks.task import Task

TASK_FILE: Final = "task.json"
STATE_FILE: Final = "state.npz"
DATABASE: Final = "coordinator.sqlite3"
UPDATES: Final = "updates"
MAX_UPDATE_BYTES: Final = 64 * 1024 * 1024
_KIB: Final = 1024


def peak_bytes() -> int:
    """The most memory this program ever had resident (``VmHWM``, which Linux counts in KiB).

    Not ``getrusage``: its ``ru_maxrss`` survives exec, so a child starts with its parent's peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KIB
    raise OSError("/proc/self/status names no VmHWM: this measures on Linux alone")


def main(root: Path, count: int) -> dict[str, float]:
    """Fold the first ``count`` updates of round 1 in the journal under ``root``."""
    task = Task.model_validate_json((root / TASK_FILE).read_bytes())
    state = load_state(root / STATE_FILE)
    with Database(root / DATABASE, read_only=True) as store:
        entries = Journal(store, root / UPDATES).entries(1, [device_name(i) for i in range(count)])
        before, started, used = peak_bytes(), time.perf_counter(), time.process_time()
        fold_round(method(task.method).server(), task, 1, state, entries, limits_for(state, MAX_UPDATE_BYTES))
    return {
        "updates": len(entries),
        "seconds": time.perf_counter() - started,
        "cpu_s": time.process_time() - used,
        "before": before,
        "peak": peak_bytes(),
    }


def device_name(number: int) -> str:
    """The name of a numbered device."""
    return f"device-{number:04d}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
