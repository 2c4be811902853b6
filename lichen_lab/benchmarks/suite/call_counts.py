"""Functions and files that one update enters on a real run.

One device collects, trains one round and predicts with the model of that round: an agent, a coordinator and
their workers are processes over the embedded broker, each with a profile hook (``support/call_hook``). It
counts
distinct functions of the product, and the files in which they stand:

- *sample to receipt*: from 3 s before the offer of the round until 0.05 s after its receipt,
- *fold to prediction*: from the receipt until the first prediction of the new version.

Functions that run beside an update in these seconds (status files, pings) are counted, too.
``LICHEN_CALLS_ROOT`` names another checkout, whose code the daemons run.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from lichen_lab.benchmarks.result import Bench, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.benchmarks.support.tasks import demo_task
from protocol.errors import Transient
from protocol.tasks.rounds import Rounds

_HOOK: Final = Path(__file__).parents[1] / "support" / "call_hook"
_CHECKOUT: Final = Path(__file__).resolve().parents[3]
_WINDOWS: Final = 200
_SPEED: Final = 20.0
_TIMEOUT_S: Final = 240.0
_BEFORE_OFFER_S: Final = 3.0
_AFTER_RECEIPT_S: Final = 0.05


class CountedCall(NamedTuple):
    """A function was entered, or with ``file`` = ``publish`` a message published to topic ``function``."""

    wall: float
    file: str
    function: str


def read(folder: Path) -> list[CountedCall]:
    """The calls of all processes, by time; a last line that was cut off is left out."""
    lines = (line for file in folder.glob("*.calls") for line in file.read_text().splitlines(keepends=True))
    whole = (line.rstrip("\n").split("\t") for line in lines if line.endswith("\n"))
    return sorted(CountedCall(float(wall), file, function) for wall, file, function in whole)


def published(calls: Iterable[CountedCall], tail: str) -> list[float]:
    """When messages were published to a topic that ends so, Unix times.

    Raises:
        Transient: none was.
    """
    walls = [call.wall for call in calls if call.file == "publish" and call.function.endswith(tail)]
    if not walls:
        raise Transient(f"no message was published to a topic ...{tail}")
    return walls


def entered(calls: Iterable[CountedCall], since: float, until: float) -> set[tuple[str, str]]:
    """Files and functions entered in a span of time, each once."""
    return {
        (call.file, call.function) for call in calls if call.file != "publish" and since <= call.wall <= until
    }


def _first_prediction(output: Path) -> float:
    """When the first prediction of a trained version was written, Unix time; 0.0 where there is none yet."""
    lines = output.read_text().splitlines(keepends=True) if output.is_file() else []
    walls = (found for line in lines if line.endswith("\n") for found in [json.loads(line)])
    return next((float(found["wall"]) for found in walls if found["version"] >= 1), 0.0)


def measure(checkout: Path, say: Say) -> dict[str, set[tuple[str, str]]]:
    """Run one round with the code of a checkout: leg of the way -> files and functions.

    Raises:
        Transient: the run did not come to a prediction in 240 s.
    """
    rounds = Rounds(count=1, min_windows=_WINDOWS // 2, deadline_s=120.0)
    task = demo_task().model_copy(update={"rounds": rounds, "config": {"epochs": 1}})
    with ProcessFleet(task) as fleet:
        traces = fleet.root / "calls"
        traces.mkdir()
        env = {
            "PYTHONPATH": f"{checkout}:{_HOOK}",
            "LICHEN_CALLS": str(traces),
            "LICHEN_CALLS_ROOT": str(checkout),
        }
        output = fleet.root / "predictions.jsonl"
        file = noise_recording(fleet.root / "stream.npz", task, _WINDOWS)
        fleet.broker()
        fleet.coordinator(env, spread_s=0.5)
        fleet.agent(
            "device",
            file,
            speed=_SPEED,
            env=env,
            infer={"output": str(output)},
            state_every_s=1.0,
            source=[{"kind": "replay", "file": str(file), "speed": _SPEED, "loop": True}],
        )
        say(f"one round of one device, with the code of {checkout}")
        fleet.until(lambda: _first_prediction(output) > 0, _TIMEOUT_S, "the device predicts with version 1")
        fleet.stop("device")
        calls, predicted = read(traces), _first_prediction(output)
    offer, receipt = published(calls, "/b/offer")[0], published(calls, "/down/receipt")[-1]
    return {
        "sample to receipt": entered(calls, offer - _BEFORE_OFFER_S, receipt + _AFTER_RECEIPT_S),
        "fold to prediction": entered(calls, receipt, predicted),
        "both": entered(calls, offer - _BEFORE_OFFER_S, predicted),
    }


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: ARG001, FBT001 - every benchmark's signature
    """Functions and files of each leg in one round, in all and by package."""
    started = time.perf_counter()
    legs = measure(Path(os.environ.get("LICHEN_CALLS_ROOT", _CHECKOUT)).resolve(), say)
    taken = time.perf_counter() - started
    made: list[ResultRow] = []
    for leg, found in legs.items():
        files = {file for file, _ in found}
        packages = sorted({file.partition("/")[0] for file in files})
        figures = {"functions": len(found), "files": len(files)}
        figures |= {
            f"functions of {package}": sum(file.startswith(f"{package}/") for file, _ in found)
            for package in packages
        }
        made += figure_rows("noise at 50 Hz", "one update", leg, figures, seconds=taken)
    return made


BENCH: Final = Bench(name="calls", run=run)
