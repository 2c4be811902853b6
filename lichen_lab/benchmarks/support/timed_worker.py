"""``models.worker`` that also writes down the CPU seconds of each training: for the ``device`` benchmark.

The file named by ``BENCH_TRAIN_LOG`` gets a JSON line a round: round, CPU seconds inside the method's
training, and those of the whole process until then.
"""

import json
import os
import runpy
import time
from pathlib import Path
from typing import Any, Final

from models.contract import (
    Client,
    ClientContext,
    LocalResult,
)
from models.spec import MethodSpec

VARIABLE: Final = "BENCH_TRAIN_LOG"
_make_client: Final = MethodSpec.client


def _client(spec: MethodSpec[Any]) -> Client:
    """The method's client with a timed ``train``."""
    client = _make_client(spec)
    train = client.train

    def timed(context: ClientContext, *rest: Any) -> LocalResult:
        before = time.process_time()
        result = train(context, *rest)
        now = time.process_time()
        line = {"round": context.round, "train_cpu_s": now - before, "process_cpu_s": now}
        with Path(os.environ[VARIABLE]).open("a") as log:
            log.write(json.dumps(line) + "\n")
        return result

    vars(client)["train"] = timed
    return client


if __name__ == "__main__":
    type.__setattr__(MethodSpec, "client", _client)  # the worker finds the timed one
    runpy.run_module("models.worker", run_name="__main__", alter_sys=True)
