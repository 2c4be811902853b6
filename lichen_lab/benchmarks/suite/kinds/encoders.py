"""What each encoder costs at its defaults: parameters, bytes of the ONNX model, time of a window."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from lichen_lab.benchmarks.result import Bench, ResultRow, Say, row
from protocol.tasks.kinds import KINDS
from protocol.tasks.network import Encoder, Network
from protocol.tasks.task import Modality, Task, Window

_REPETITIONS: Final = 5
_RUNS: Final = 40
_DIM: Final = 128
_SECOND: Final = Window(length_s=1, stride_s=1)
INPUTS: Final[dict[str, tuple[Modality, Window]]] = {
    "image, 28 x 28 x 1": (
        Modality(name="camera", kind="image", channels=1, height=28, width=28, rate_hz=1),
        _SECOND,
    ),
    "image, 96 x 96 x 3": (
        Modality(name="camera", kind="image", channels=3, height=96, width=96, rate_hz=1),
        _SECOND,
    ),
    "sound, 1 s of 16 kHz": (
        Modality(name="microphone", kind="sound", channels=1, rate_hz=16_000),
        _SECOND,
    ),
    "stream, 3 channels, 2.56 s of 50 Hz": (
        Modality(name="accelerometer", channels=3, rate_hz=50),
        Window(length_s=2.56, stride_s=1.28),
    ),
    "vector, 64 values": (Modality(name="vector", kind="vector", channels=64, rate_hz=1), _SECOND),
    "text, 1,024 buckets": (Modality(name="text", kind="text", channels=1024, rate_hz=1), _SECOND),
}
_RESIDUAL: Final = ("cnn2d", "mel")


def tasks() -> Iterator[tuple[str, str, Task]]:
    """Input, encoder and task: one modality, two classes, all sizes as they are by default."""
    for title, (modality, window) in INPUTS.items():
        for kind in KINDS[modality.kind].encoders:
            for residual in (False, True) if kind in _RESIDUAL else (False,):
                network = Network(
                    encoders={modality.name: Encoder(kind=kind, residual=residual)}, feature_dim=_DIM
                )
                task = Task(
                    name="cost", labels=("a", "b"), modalities=(modality,), window=window, network=network
                )
                yield title, f"`{kind}`, residual" if residual else f"`{kind}`", task


def figures(task: Task) -> dict[str, list[float]]:
    """Values by metric; ``ms a window`` is the shortest of 40 calls, five times."""
    from export.bundle_builder import inference_module  # noqa: PLC0415 - torch and onnx, only in this bench
    from export.onnx_graph import to_onnx  # noqa: PLC0415 - as above
    from export.parity.gate import session  # noqa: PLC0415 - as above
    from models.multimodal.encoders.registry import make_encoder  # noqa: PLC0415 - as above
    from models.registry import method  # noqa: PLC0415 - as above

    (modality,) = task.modalities
    samples = task.samples(modality.name)
    encoder = make_encoder(task.encoder(modality.name), modality, samples, task.network.feature_dim)
    module = inference_module(task, method(task.method).client().initial(task, 0))
    graph = to_onnx(module, task)
    loaded = session(graph)
    x_BCT = np.random.default_rng(0).random((1, modality.channels, samples), np.float32)
    present, window = (one.name for one in loaded.get_inputs())
    feed = {present: np.ones((1, 1), np.float32), window: x_BCT}
    return {
        "parameters": [float(sum(parameter.numel() for parameter in encoder.parameters()))],
        "bytes of model.onnx": [float(len(graph))],
        "ms a window": [
            min(_ms(lambda: loaded.run(None, feed)) for _ in range(_RUNS)) for _ in range(_REPETITIONS)
        ],
    }


def _ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begun)


def run(quick: bool, say: Say) -> list[ResultRow]:  # noqa: FBT001 - every benchmark's signature
    """Each encoder on each kind that it takes; quick: the first input alone."""
    import torch  # noqa: PLC0415 - heavy, and only needed here

    torch.set_num_threads(1)
    rows = []
    for title, encoder, task in tasks():
        if quick and title != next(iter(INPUTS)):
            break
        say(f"{title}: {encoder}")
        begun = time.perf_counter()
        found = figures(task)
        seconds = time.perf_counter() - begun
        rows += [
            row(f"{title}: {encoder}", "encoder", "", metric, values, seconds=seconds)
            for metric, values in found.items()
        ]
    return rows


BENCH: Final = Bench(name="encoders", run=run)
