"""``models.worker`` that also writes down what each training costs: for the ``device`` benchmark.

The file named by ``BENCH_TRAIN_LOG`` gets a JSON line a round: round, CPU seconds inside the method's
training, those of the whole process until then, the process's highest memory until then in bytes, and how
many numbers the device holds of the global version. The file beside it, with :data:`BEGUN` behind its name,
gets the round's number before the training.
"""

import json
import os
import resource
import runpy
import time
from pathlib import Path
from typing import Any, Final

from models.contract import (
    Blobs,
    Client,
    ClientContext,
    LocalResult,
)
from models.spec import MethodSpec

VARIABLE: Final = "BENCH_TRAIN_LOG"
BEGUN: Final = ".begun"
_make_client: Final = MethodSpec.client
_KIB: Final = 1024
"""Linux counts the highest memory in these."""


def _client(spec: MethodSpec[Any]) -> Client:
    """The method's client with a timed ``train``."""
    client = _make_client(spec)
    train = client.train

    def timed(context: ClientContext, material: Any, state: Blobs, *rest: Any) -> LocalResult:
        log = Path(os.environ[VARIABLE])
        with log.with_name(log.name + BEGUN).open("a") as begun:
            begun.write(f"{context.round}\n")
        before = time.process_time()
        result = train(context, material, state, *rest)
        now = time.process_time()
        line = {
            "round": context.round,
            "train_cpu_s": now - before,
            "process_cpu_s": now,
            "peak_bytes": _KIB * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "numbers": sum(tensor.size for blob in state.values() for tensor in blob.values()),
        }
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    vars(client)["train"] = timed
    return client


if __name__ == "__main__":
    type.__setattr__(MethodSpec, "client", _client)  # the worker finds the timed one
    runpy.run_module("models.worker", run_name="__main__", alter_sys=True)
