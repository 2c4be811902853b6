"""Side job: accuracy of each device trained alone on its own store, and sizes of updates on the wire.

It runs beside the fleet because it trains.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from lichen_lab.benchmarks.support.packet_bytes import publish_bytes
from lichen_lab.demo.core.side_jobs import main
from models.contract import ClientContext, WindowSet
from protocol.tasks.task import Task

_STORE_BYTES: Final = 256 * 1024 * 1024
_MAX_WINDOWS: Final = 4096


def stored_windows(folder: Path, task: Task) -> WindowSet:
    """The labelled windows in an agent's store; the agent must not run."""
    from edge_agent.windows.store import WindowStore  # noqa: PLC0415 - only in the child

    store = WindowStore(folder, task, _STORE_BYTES)
    try:
        return store.recent(_MAX_WINDOWS)
    finally:
        store.close()


def frame_bytes(task: Task, windows: WindowSet, config: Mapping[str, Any], codec: str) -> int:
    """Bytes of the PUBLISH of an update that is trained once from a fresh model."""
    from lichen_lab.simulation.data.streams import Fixed  # noqa: PLC0415 - as above
    from lichen_lab.simulation.training.runner import VirtualDevice  # noqa: PLC0415 - only in the child
    from models import registry  # noqa: PLC0415 - as above
    from protocol.topics import Kind, device_topic  # noqa: PLC0415 - as above

    chosen = task.model_copy(
        update={
            "config": {**task.config, **config},
            "uplink": task.uplink.model_copy(update={"codec": codec}),
        }
    )
    client = registry.method(task.method).client()
    device = VirtualDevice("cladonia", Fixed(windows))
    frame, _ = device.update(
        ClientContext(chosen, device.name, 1, 0), client, client.initial(chosen, 0), "0" * 64
    )
    return publish_bytes(device_topic("demo", device.name, Kind.UPDATE), len(frame))


def parameter_bytes(task: Task) -> int:
    """The model's parameters in float32, without names, headers and prototypes."""
    from models import registry  # noqa: PLC0415 - only in the child

    state = registry.method(task.method).client().initial(task, 0)
    return sum(
        4 * values.size
        for blob, tensors in state.items()
        if blob.split("/")[0] in {"encoder", "head"}
        for values in tensors.values()
    )


def results(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The sizes first, then each device."""
    from lichen_lab.simulation.training.runner import alone  # noqa: PLC0415 - as above
    from models.data import window_set  # noqa: PLC0415 - as above

    task = Task.model_validate(job["task"])
    test = window_set.load(Path(job["unseen"]), task)
    devices = {name: stored_windows(Path(folder), task) for name, folder in job["stores"].items()}
    usable = {name: windows for name, windows in devices.items() if np.any(windows.y_B >= 0)}
    if usable:
        first = usable[min(usable)]
        prototypes = {"upload": "prototypes", "prototype_bits": 4}
        yield {
            "sizes": {
                "prototypes_4bit": frame_bytes(task, first, prototypes, "int8"),
                "delta_int8": frame_bytes(task, first, {}, "int8"),
                "delta_float32": frame_bytes(task, first, {"prototype_bits": 32}, "float32"),
                "parameters": parameter_bytes(task),
            }
        }
    for name, windows in usable.items():
        reached = alone(task, {name: windows}, test, int(job["seed"]), rounds=int(job["rounds"]))
        yield {"device": name, "accuracy": reached[name].metrics["accuracy"]}


if __name__ == "__main__":
    main(results)
