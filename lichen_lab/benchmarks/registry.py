"""All benchmarks: each module has a ``BENCH``."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from lichen_lab.benchmarks.result import Bench
from protocol.errors import Misconfigured

if TYPE_CHECKING:
    from lichen_lab.benchmarks.study.study import Study

_MODULES: Final = {
    "av_mnist": "suite.kinds.av_mnist",
    "bytes": "suite.training_bytes",
    "calls": "suite.call_counts",
    "console": "suite.console",
    "device": "suite.device",
    "disentafl": "studies.disentafl",
    "encoders": "suite.kinds.encoders",
    "fanin": "suite.coordinator.fan_in",
    "fedavg": "suite.fedavg",
    "fold": "suite.coordinator.fold_memory",
    "hostile": "suite.coordinator.hostile_device",
    "idle": "suite.idle_traffic",
    "images": "suite.kinds.images",
    "ingest": "suite.coordinator.ingest_processes",
    "int8": "suite.int8",
    "kills": "fault_injection.kills",
    "labels": "studies.labels",
    "matrix": "fault_injection.matrix_bench",
    "mmfed3_hide": "studies.mmfed3_hide",
    "names": "suite.coordinator.fleet_names",
    "norms": "suite.update_norms",
    "observer": "suite.observer",
    "peers": "suite.peers",
    "privacy": "studies.privacy",
    "qqr": "studies.qqr",
    "quality": "suite.quality_indicator",
    "scale": "suite.coordinator.scale",
    "secure": "suite.secure",
    "serving": "suite.serving",
    "simulation": "suite.simulation_speed.bench",
    "sound": "suite.kinds.sound",
    "spar": "suite.spar",
    "tactfl": "studies.tactfl",
    "wire": "suite.wire_bytes",
    "writes": "suite.disk_writes",
}
"""Name of a benchmark -> its module, below ``lichen_lab.benchmarks``."""
WORDS: Final = {
    "av_mnist": "A fleet that sees and hears digits, some devices lacking one, against central training.",
    "bytes": "Bytes of a whole training, both ways, beside float32 everywhere and the raw samples; accuracy.",
    "calls": "Functions and files that one update enters, from sample to receipt, from fold to prediction.",
    "console": "The console for 10,000 devices: paint, bytes, sorting, delay of news, what 20 viewers cost.",
    "device": "CPU, memory and bytes of a device's round: real processes, each method in three sizes.",
    "disentafl": "The study of DisentAFL: different sensors and targets, baselines, the worth of each piece.",
    "encoders": "Parameters, bytes and time of a window of each encoder, by kind of modality.",
    "fanin": "A thousand devices' updates through Mosquitto into one coordinator, each to its receipt.",
    "fedavg": "FedAvg beside FedProx, other codecs and QQR without prototypes; FedBN where sensors differ.",
    "fold": "The coordinator's memory while it folds 20 and 200 updates of a million parameters.",
    "hostile": "One malicious device in five, real training on SPAR: points of accuracy that it costs.",
    "idle": "Bytes that a connected agent at rest sends in a day.",
    "images": "A fleet of cameras with uneven classes against central training: MNIST, Fashion-MNIST.",
    "ingest": "A storm of updates into one process, and into a leader with one and two ingest processes.",
    "int8": "The int8 variant of a model against float32: what it costs in accuracy, what it saves.",
    "kills": "SIGKILL for broker, coordinator and agents at random times; a violation ends with status 70.",
    "labels": "What labels are worth that a device asks for, against random ones: people, devices, rules.",
    "matrix": "Faults x steps of a round, on real processes over Mosquitto; a violation ends with status 70.",
    "mmfed3_hide": "The study of MMFeD3-HidE: private knowledge graphs, absent features, bytes, throughput.",
    "names": "What 10,000 made-up names cost in a round: bytes of log, database and announcements.",
    "norms": "How far apart the updates of honest, uneven devices lie.",
    "observer": "Memory of an agent that only observes and infers, without torch.",
    "peers": "lichen and Flower on the same fleet, model, data and rounds: CPU, bytes, memory, time.",
    "privacy": "What protection costs in accuracy, and what attacks find with it and without.",
    "qqr": "The study of QQR: missing and noisy modalities, bytes, dead sensors, new classes; paired seeds.",
    "quality": "What the quality indicator finds of injected faults on real streams, and its false alarms.",
    "scale": "What an update costs in rounds of 100 to 10,000 devices; a start with 100,000 known.",
    "secure": "Secure aggregation: CPU and bytes of a device beyond training, beside Flower's SecAgg+.",
    "serving": "What the agent adds to ONNX Runtime: time around a prediction, memory over swaps.",
    "simulation": "Simulated client-rounds a CPU second, beside Flower's simulation and a plain torch loop.",
    "sound": "A fleet of microphones against central training, on a speaker whom no device met: FSDD.",
    "spar": "Sharing and prototypes against their baselines, on people whom no device has met.",
    "tactfl": "The study of TACTFL: no label on a device; missing sensors, shifted and broken devices.",
    "wire": "Bytes of an update on the wire, and the time of its codec.",
    "writes": "What an agent writes to its disk in an hour, at rest and collecting.",
}
"""Name of a benchmark -> what it measures."""


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
