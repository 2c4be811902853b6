"""Labels windows one after the other, and says each on standard output: ``label_child FOLDER NAME...``."""

import sys
from pathlib import Path

from edge_agent.windows.store import WindowStore
from edge_agent.windows.window_labels import label
from tests.support.agent.data import toy_task

if __name__ == "__main__":
    store = WindowStore(Path(sys.argv[1]), toy_task(), 10_000_000)
    for window in sys.argv[2:]:
        label(store, window, 1, 1.0, "child")
        sys.stdout.write(f"{window}\n")
        sys.stdout.flush()
    sys.stdin.read()
