"""``python -P -m coordinator.compute --serve``: does job folders on the cluster of ``LICHEN_RAY``.

It connects at the first job. When the cluster is gone it answers so and ends: the next job starts it anew.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from coordinator.compute.child_jobs import ClusterJobs
from coordinator.compute.cluster import Cluster
from models.worker import job_loop
from runtime.process.worker import Unreachable

ADDRESS = "LICHEN_RAY"


class _Child:
    def __init__(self, address: str) -> None:
        self._address = address
        self._cluster: Cluster | None = None
        self._jobs: ClusterJobs | None = None
        self._lost = False

    def do(self, job_dir: Path) -> None:
        """Do the job of a folder.

        Raises:
            LichenError: as the cluster's tasks.
            Unreachable: the cluster is gone, or Ray has ended this client.
        """
        try:
            if self._cluster is None or self._jobs is None:
                self._cluster = Cluster(self._address)
                self._jobs = ClusterJobs(self._cluster)
            self._jobs.do(job_dir)
        except Unreachable:
            self._lost = True
            raise
        except SystemExit:  # Ray's answer to the loss of its node
            self._lost = True
            raise Unreachable(f"compute.ray = {self._address!r}: the node of this machine is gone") from None

    def requests(self, lines: TextIO) -> Iterator[str]:
        """Requests while the cluster is there."""
        for line in lines:
            yield line
            if self._lost:
                return

    def close(self) -> None:
        """End the connection."""
        if self._cluster is not None and not self._lost:
            self._cluster.close()


def main() -> None:
    """Answer jobs until standard input ends."""
    job_loop.die_with_the_parent()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    child = _Child(os.environ[ADDRESS])
    with job_loop.claim_stdout() as answers:
        job_loop.serve(child.do, child.requests(sys.stdin), answers)
        child.close()
    os._exit(0)  # Ray's own exit may wait for a cluster that is gone


if __name__ == "__main__":
    main()
