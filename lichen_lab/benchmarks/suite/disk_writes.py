"""What an agent writes to its SD card in an hour: at rest, and collecting two sensors in real time.

Two real agents beside a broker and a coordinator, watched for a while. Bytes are the kernel's count for the
agent's process (whole pages, its status file included); commits and syncs are those the agent counts itself.
An hour is what was seen, times 3,600 s over the time watched.
"""

import json
import time
from typing import Final

import psutil

from edge_agent.status.status_file import STATUS_FILE
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.support.fleet import ProcessFleet, noise_recording
from lichen_lab.benchmarks.support.tasks import demo_task
from protocol.tasks.rounds import Rounds

_HOUR_S: Final = 3600.0
_MB: Final = 1e6
_FEW: Final = 60
_WAIT_S: Final = 60.0
_SETTLE_S: Final = 8.0
_AT_REST: Final = "at rest"
_COLLECTING: Final = "collecting, 2 sensors at 50 Hz"
_BYTES: Final = "MB an hour"


def _told(fleet: ProcessFleet, name: str) -> dict[str, float]:
    """The agent's counters and when it reported them."""
    found = json.loads((fleet.files.state(name) / "cache" / STATUS_FILE).read_text())
    return {"wall": found["wall"], **found["disk_writes"]}


def _seen(fleet: ProcessFleet, name: str) -> tuple[float, int]:
    """The time, and the kernel's count of bytes written."""
    return time.monotonic(), psutil.Process(fleet.pid(name)).io_counters().write_bytes


def _written(fleet: ProcessFleet, name: str) -> bool:
    return (fleet.files.state(name) / "cache" / STATUS_FILE).is_file()


def measure(watch_s: float, say: Say) -> dict[str, dict[str, float]]:
    """Measure both agents; figures by setting and name."""
    task = demo_task().model_copy(update={"rounds": Rounds(min_devices=1000)})
    names = {"rest": _AT_REST, "busy": _COLLECTING}
    with ProcessFleet(task) as fleet:
        fleet.broker()
        fleet.coordinator(export={"enabled": False})
        few = noise_recording(fleet.root / "few.npz", task, _FEW)
        windows = round((watch_s + _WAIT_S) / task.window.stride_s) + _FEW
        fleet.agent("rest", few, speed=200.0)
        fleet.agent("busy", noise_recording(fleet.root / "many.npz", task, windows, seed=1), speed=1.0)
        fleet.until(lambda: "source_ended" in fleet.said("rest"), _WAIT_S, "one agent is at rest")
        fleet.until(lambda: all(_written(fleet, name) for name in names), _WAIT_S, "both say how they are")
        time.sleep(_SETTLE_S)
        say(f"watching an agent at rest and one that collects for {watch_s:g} s")
        before = {name: (_seen(fleet, name), _told(fleet, name)) for name in names}
        time.sleep(watch_s)
        return {
            setting: _figures(before[name], (_seen(fleet, name), _told(fleet, name)))
            for name, setting in names.items()
        }


def _figures(
    before: tuple[tuple[float, int], dict[str, float]], after: tuple[tuple[float, int], dict[str, float]]
) -> dict[str, float]:
    (then, bytes_then), told_then = before
    (now, bytes_now), told_now = after
    figures = {_BYTES: (bytes_now - bytes_then) / (now - then) * _HOUR_S / _MB}
    said_s = told_now["wall"] - told_then["wall"]
    for what in ("commits", "syncs"):  # an agent at rest says nothing new for a minute: nothing was counted
        seen = told_now[what] - told_then[what]
        figures[f"{what} an hour"] = seen / said_s * _HOUR_S if said_s > 0 else 0.0
    return figures


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Watch for 125 s; quick: 25 s."""
    started = time.perf_counter()
    watch_s = 25.0 if quick else 125.0
    found = measure(watch_s, say)
    taken = time.perf_counter() - started
    dataset = f"2 modalities, watched {watch_s:g} s"
    return [
        one
        for setting, figures in found.items()
        for one in figure_rows(dataset, "agent", setting, figures, seconds=taken)
    ]


BENCH: Final = Bench(
    name="writes",
    run=run,
    goals=(Goal(_BYTES, 100, setting=_COLLECTING),),
)
