"""The agent's worker with a gate before training: ``python -P -m lichen.reliability.gated_worker --serve``.

Without ``LIGHT`` in the environment it is ``models.worker``. With it no torch is loaded: the update is small
numbers, different for each device and round, which is enough to tell updates apart.
"""

import os
import sys
from pathlib import Path
from typing import Final

import numpy as np

from lichen.reliability.gates import gate
from models import jobs, serve, worker
from models.contract import LocalResult
from models.params import flatten

LIGHT: Final = "LICHEN_TRIAL_LIGHT"
"""Names an npz: the initial model, made once by the real worker."""


def do(job_dir: Path) -> None:
    """Do the job; a training one waits at ``train-<round>-<device>``."""
    job = jobs.read_job(job_dir)
    if isinstance(job, jobs.TrainJob):
        gate(f"train-{job.round}-{job.device}")
        if LIGHT in os.environ:
            _pretend(job_dir, job)
            return
    worker.do(job_dir)


def _pretend(job_dir: Path, job: jobs.TrainJob) -> None:
    rng = np.random.default_rng([job.round, *job.device.encode()])
    state = flatten(jobs.load_state(job_dir / jobs.STATE))
    deltas = {
        name: rng.normal(0, 0.01, tensor.shape).astype(np.float32)
        for name, tensor in state.items()
        if not name.startswith("prototypes/")
    }
    jobs.save_local_result(job_dir, LocalResult(deltas, metrics={"loss": 1.0}))


if __name__ == "__main__":
    sys.exit(serve.main(do, "lichen.reliability.gated_worker", sys.argv[1:]))
