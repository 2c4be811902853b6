"""All benchmarks: each module has a ``BENCH``."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from lichen_lab.benchmarks.result import Bench
from protocol.errors import Misconfigured

if TYPE_CHECKING:
    from lichen_lab.benchmarks.study.study import Study

_MODULES: Final = {
    "bytes": "suite.training_bytes",
    "calls": "suite.call_counts",
    "device": "suite.device_cost",
    "disentafl": "studies.disentafl",
    "fanin": "suite.coordinator.fan_in",
    "fold": "suite.coordinator.fold_memory",
    "hostile": "suite.coordinator.hostile_device",
    "idle": "suite.idle_traffic",
    "ingest": "suite.coordinator.ingest_processes",
    "int8": "suite.int8",
    "kills": "fault_injection.kills",
    "matrix": "fault_injection.matrix_bench",
    "mmfed3_hide": "studies.mmfed3_hide",
    "names": "suite.coordinator.fleet_names",
    "norms": "suite.update_norms",
    "observer": "suite.observer",
    "peers": "suite.peers",
    "qqr": "studies.qqr",
    "quality": "suite.quality_indicator",
    "scale": "suite.coordinator.scale",
    "serving": "suite.serving",
    "simulation": "suite.simulation_speed.bench",
    "spar": "suite.spar",
    "tactfl": "studies.tactfl",
    "wire": "suite.wire_bytes",
    "writes": "suite.disk_writes",
}
"""Name of a benchmark -> its module, below ``lichen_lab.benchmarks``."""


def names() -> tuple[str, ...]:
    """Their names, sorted."""
    return tuple(sorted(_MODULES))


def _module(name: str) -> ModuleType:
    return import_module(f"lichen_lab.benchmarks.{_MODULES[name]}")


def bench(name: str) -> Bench:
    """The benchmark of that name.

    Raises:
        Misconfigured: there is none; the message lists those there are.
    """
    if name not in names():
        raise Misconfigured(f"no benchmark {name!r}; there are {', '.join(names())}, and `all`")
    made: Bench = _module(name).BENCH
    return made


def study(name: str) -> "Study[Any, Any]":
    """The benchmark of that name, which is made of parts: its package has a ``STUDY``."""
    made: Study[Any, Any] = _module(name).STUDY
    return made
