"""A worker that tries to open the files of its coordinator's state folder, as malicious code in it would."""

import json
import sys
from pathlib import Path

from models.worker.job_loop import main


def do(job: Path) -> None:
    """Record the first bytes of each file below the state folder, or the number of the error."""
    found = {}
    for path in sorted(job.parent.parent.rglob("*")):
        if path.is_file():
            try:
                found[path.name] = path.read_bytes()[:8].hex()
            except OSError as error:
                found[path.name] = error.errno
    (job / "result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main(do, "tests.support.identity.secret_reader", sys.argv[1:]))
