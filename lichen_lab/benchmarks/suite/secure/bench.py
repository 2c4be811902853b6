"""CPU and bytes of a secure round beyond training: one device of 100, and the coordinator.

Real messages of both machines (``lichen_lab.simulation.secure_rounds``), with signed keys, without a broker.
The update is FedAvg's of the network with 223,622 parameters. CPU is this process's own time, from the
trained update to the last answer. Bytes count MQTT PUBLISH with topics, chunks and pointers, as
``lichen bench wire``. The newcomer of each round has met no certificate before.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np

from coordinator.secure_aggregation.events import SecurePhase
from lichen_lab.benchmarks.result import Bench, Goal, ResultRow, Say, figure_rows
from lichen_lab.benchmarks.suite.peers.flower_fleet import require_flower, version
from lichen_lab.benchmarks.suite.wire_bytes import learned, message_bytes
from lichen_lab.simulation.processes.process import ONE_THREAD
from lichen_lab.simulation.secure_rounds.driver import SimulatedDevice, play
from lichen_lab.simulation.secure_rounds.fleet import attempt_of, fleet_of, identities
from models import registry
from models.aggregation.masked_sums import layout_of, vector_of
from models.contract import Blobs, Tensors, Update
from models.multimodal.network import two_branch_task
from protocol.errors import Misconfigured, Transient
from protocol.frames.fixed_point import all_rounded
from protocol.frames.frame import digest, encode_frame, open_frame
from protocol.frames.headers import UpdateHeader
from protocol.frames.tensors import Codec, encode
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import IdentitySigner, KeyAuthority, certificate_holder
from protocol.secure_aggregation.messages import SecureMessage
from protocol.secure_aggregation.messages import encode as encode_message
from protocol.secure_aggregation.neighbours import graph_size
from protocol.secure_aggregation.ring import Words, packed
from protocol.tasks.folding import SecureAggregation
from protocol.tasks.task import Task

_DEVICES: Final = 100
_LOST: Final = 30
_DATASET: Final = "223,622 parameters, 100 devices"
_CPU: Final = "CPU ms a device, beyond training"
_MORE: Final = "% more bytes up than the same vector unmasked"
_MASKING: Final = "CPU ms of keys, shares, masks and messages"
_COLD: Final = "the same, all certificates new"
_UP: Final = "bytes up"
_WAIT_S: Final = 600.0
_FLOWER_SIDE: Final = Path(__file__).parent / "flower_side.py"
OPTIONS: Final = {
    "16 bits": SecureAggregation(ring_bits=16, fraction_bits=11, bound=0.15),
    "32 bits": SecureAggregation(ring_bits=32),
    "16 bits, max_lost 0.1": SecureAggregation(ring_bits=16, fraction_bits=11, bound=0.15, max_lost=0.1),
}
"""By words, what a task asks for."""
METHOD: Final = "lichen"
FLOWER: Final = "Flower's SecAgg+"


@dataclass
class MeteredDevice(SimulatedDevice):
    """A device that measures its own steps: CPU seconds, and bytes on the wire both ways."""

    cold: bool = False
    """It has met no certificate of its neighbours before."""
    cpu_s: float = 0.0
    up: list[int] = field(default_factory=list)
    down: int = 0

    def join(self, attempt: Attempt) -> list[SecureMessage]:
        """See the base."""
        begun = time.process_time()
        return self._counted(begun, super().join(attempt))

    def receive(self, payload: bytes) -> list[SecureMessage]:
        """See the base."""
        self.down += message_bytes(payload)
        if self.cold:
            certificate_holder.cache_clear()
        begun = time.process_time()
        return self._counted(begun, super().receive(payload))

    def _counted(self, begun: float, made: list[SecureMessage]) -> list[SecureMessage]:
        payloads = [encode_message(message) for message in made]
        self.cpu_s += time.process_time() - begun
        self.up += [message_bytes(payload) for payload in payloads]
        return made


@dataclass(frozen=True)
class MeasuredUpdate:
    """A real update of one device, and the version that it starts from."""

    task: Task
    state: Blobs
    tensors: Tensors
    header: UpdateHeader

    @classmethod
    def of_noise(cls) -> Self:
        """FedAvg after one round on noise."""
        task = two_branch_task().model_copy(update={"method": "fedavg", "config": {}})
        device, context, result = learned(task)
        state = registry.method(task.method).client().initial(task, 0)
        frame = device.pack(context, device.labelled(1), result, digest(b"base"))
        return cls(task, state, result.tensors, open_frame(frame, UpdateHeader)[0])

    def vector(self, options: SecureAggregation) -> Words:
        """What is masked: rounded, folded alone, flattened."""
        made, _ = all_rounded(self.tensors, {}, options.fraction_bits, options.level)
        header = self.header.model_copy(update={"weight": min(self.header.weight, options.heaviest)})
        fold = registry.method(self.task.method).server().open(self.task, 1, self.state)
        fold.fold(Update(header, made))
        return vector_of(fold, layout_of(fold), options)

    def int8_bytes(self) -> int:
        """On the wire, in the method's usual codec of a plain round."""
        encoded = {name: encode(tensor, Codec.INT8) for name, tensor in self.tensors.items()}
        return message_bytes(encode_frame(self.header, encoded))


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Each ring, then Flower."""
    repeats, update = 1 if quick else 5, MeasuredUpdate.of_noise()
    names = [f"d{number:03}" for number in range(_DEVICES)]
    known = identities(names)
    rows: list[ResultRow] = []
    for words, options in OPTIONS.items():
        say(f"a secure round of {_DEVICES} devices, {words}")
        rows += _ours(update, words, options, known, repeats)
    try:
        programs = require_flower()
    except Misconfigured as why:
        say(f"without Flower: {why}")
        return rows
    for words, options in OPTIONS.items():
        say(f"Flower's client, {words}")
        rows += _flowers(update, words, options, programs, repeats)
    return rows


def _ours(
    update: MeasuredUpdate,
    words: str,
    options: SecureAggregation,
    known: tuple[KeyAuthority, Mapping[str, IdentitySigner]],
    repeats: int,
) -> list[ResultRow]:
    started = time.perf_counter()
    size = graph_size(_DEVICES, options.max_lost)
    begun = time.process_time()
    for _ in range(repeats):
        vector_N = update.vector(options)
    vector_ms = 1e3 * (time.process_time() - begun) / repeats
    plain = message_bytes(packed(vector_N, options.ring_bits))
    found: dict[str, list[float]] = {}
    for number in range(repeats):
        for metric, value in _one_round(vector_N, options, known, number).items():
            found.setdefault(metric, []).append(value)
    found[_CPU] = [vector_ms + masking for masking in found[_MASKING]]
    found[_MORE] = [100 * (up / plain - 1) for up in found[_UP]]
    found["times the bytes of int8 in a plain round"] = [up / update.int8_bytes() for up in found[_UP]]
    figures: dict[str, float | Sequence[float]] = {
        "neighbours": float(size.neighbours),
        "threshold": float(size.threshold),
        "CPU ms to round, fold and flatten": vector_ms,
        **found,
    }
    return figure_rows(_DATASET, METHOD, words, figures, seconds=time.perf_counter() - started)


def _one_round(
    vector_N: Words,
    options: SecureAggregation,
    known: tuple[KeyAuthority, Mapping[str, IdentitySigner]],
    number: int,
) -> dict[str, float]:
    """A round without losses for a device's cost, and one with losses for the coordinator's."""
    names = sorted(known[1])
    figures: dict[str, float] = {}
    for lost in (0, _LOST):
        attempt = attempt_of(1 + number, 1 + lost)
        coordinator, devices = fleet_of(
            dict.fromkeys(names, vector_N), options, attempt=attempt, known=known, device=MeteredDevice
        )
        gone = {"masked": names[:lost]} if lost <= options.max_lost * len(names) else {}
        newcomer = devices[names[-1]]
        if isinstance(newcomer, MeteredDevice):
            newcomer.cold = True
        play(coordinator, devices, gone)
        if coordinator.state.phase is not SecurePhase.DONE:
            why = coordinator.state.why
            raise Transient(f"the round has failed: {why}")
        if gone or not lost:
            begun = time.process_time()
            coordinator.opened()
            figures[f"CPU ms to open the sum, {lost} lost"] = 1e3 * (time.process_time() - begun)
        if not lost:
            metered = [one for one in devices.values() if isinstance(one, MeteredDevice)]
            known_by_all = [one for one in metered if not one.cold]
            figures[_MASKING] = 1e3 * statistics.fmean(one.cpu_s for one in known_by_all)
            figures[_COLD] = 1e3 * statistics.fmean(one.cpu_s for one in metered if one.cold)
            figures[_UP] = statistics.fmean(sum(one.up) for one in metered)
            figures["bytes down"] = statistics.fmean(one.down for one in metered)
    return figures


def _flowers(
    update: MeasuredUpdate, words: str, options: SecureAggregation, programs: Path, repeats: int
) -> list[ResultRow]:
    """Flower's client functions on the same number of values, with the same graph."""
    started, size = time.perf_counter(), graph_size(_DEVICES, options.max_lost)
    values = np.concatenate([x.reshape(-1) for _, x in sorted(update.tensors.items())])
    with tempfile.TemporaryDirectory(prefix="lichen-secure-") as folder:
        np.save(Path(folder) / "vector.npy", values)
        numbers = (size.neighbours, size.threshold, options.ring_bits, repeats)
        command = [str(programs / "python"), str(_FLOWER_SIDE), f"{folder}/vector.npy", *map(str, numbers)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                timeout=_WAIT_S,
                env=os.environ | ONE_THREAD,
            )
        except subprocess.SubprocessError as error:
            raise Transient(f"Flower's client: {error}: {getattr(error, 'stderr', '')}") from None
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    stages = [values for name, values in found.items() if name.endswith(" ms")]
    figures: dict[str, float | Sequence[float]] = {
        _CPU: [sum(one) for one in zip(*stages, strict=True)],
        **{
            f"CPU ms, stage {name.removesuffix(' ms')}": found[name] for name in found if name.endswith(" ms")
        },
        "bytes up, contents alone": found["bytes up"],
        "neighbours": float(size.neighbours),
        "threshold": float(size.threshold),
    }
    method = f"{FLOWER}, {version(programs)}"
    return figure_rows(_DATASET, method, words, figures, seconds=time.perf_counter() - started)


BENCH: Final = Bench(
    name="secure",
    run=run,
    goals=(
        Goal(_CPU, 50, method=METHOD),
        Goal(_MORE, 10, method=METHOD),
    ),
)
