"""The agent's worker with a gate before training: ``python -P -m ...harness.gated_worker --serve``.

Without ``LIGHT`` in the environment it is ``models.worker``. With it no torch is loaded: the update is small
numbers, different for each device and round, so that updates can be told apart.
"""

import os
import sys
from pathlib import Path
from typing import Final

import numpy as np

from lichen_lab.benchmarks.fault_injection.harness.gates import gate
from models.contract import LocalResult
from models.tensors import flatten
from models.worker import __main__, job_folder, job_loop

LIGHT: Final = "LICHEN_TRIAL_LIGHT"
"""Names an npz: the initial model, made once by the real worker."""


def do(job_dir: Path) -> None:
    """Do the job; training waits at ``train-<round>-<device>``."""
    job = job_folder.read_job(job_dir)
    if isinstance(job, job_folder.TrainJob):
        gate(f"train-{job.round}-{job.device}")
        if LIGHT in os.environ:
            _pretend(job_dir, job)
            return
    __main__.do(job_dir)


def _pretend(job_dir: Path, job: job_folder.TrainJob) -> None:
    rng = np.random.default_rng([job.round, *job.device.encode()])
    state = flatten(job_folder.load_state(job_dir / job_folder.STATE))
    deltas = {
        name: rng.normal(0, 0.01, tensor.shape).astype(np.float32)
        for name, tensor in state.items()
        if not name.startswith("prototypes/")
    }
    job_folder.save_local_result(job_dir, LocalResult(deltas, metrics={"loss": 1.0}))


if __name__ == "__main__":
    sys.exit(job_loop.main(do, "lichen_lab.benchmarks.fault_injection.harness.gated_worker", sys.argv[1:]))
