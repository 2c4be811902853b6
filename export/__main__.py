"""``python -P -m export JOBDIR`` and ``python -P -m export --serve``."""

import sys

from export.job import do
from models.worker.job_loop import main

if __name__ == "__main__":
    sys.exit(main(do, "export", sys.argv[1:]))
