"""Models of the toy task in processes of their own."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.config.agent import InferSettings
from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.service import Inference
from edge_agent.inference.serving import model_server as servant
from edge_agent.inference.serving.codec import MessageReader, send
from edge_agent.inference.serving.zygote_client import Ready, ZygoteClient
from edge_agent.windows.quality.meter import REASONS, Quality, ScoredWindows
from models.data.streams.windows import Windows
from protocol.bundle import unpack
from runtime.clock import SystemClock
from tests.support.agent.bundle import bundle, tiny_onnx
from tests.support.agent.data import toy_task
from tests.support.agent.predicting import OBSERVED

TASK = toy_task()
NAMES = TASK.modality_names


def put(folder: Path, data: bytes | None = None) -> Path:
    """An unpacked bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest, files = unpack(bundle(TASK) if data is None else data)
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def other(bias: float = 5.0, version: int = 2) -> bytes:
    """A bundle with other answers."""
    return bundle(TASK, version, content=tiny_onnx(TASK, bias=bias))


def judged(count: int = 3, seed: int = 0) -> ScoredWindows:
    rng = np.random.default_rng(seed)
    x = {
        m.name: rng.standard_normal((count, m.channels, TASK.samples(m.name))).astype(np.float32)
        for m in TASK.modalities
    }
    covered = {name: np.ones((count, TASK.samples(name)), bool) for name in NAMES}
    windows = Windows(np.arange(count) * 1.28, x, covered, np.ones((count, 2), bool), np.arange(count) % 3)
    quality = Quality(np.ones((count, 2), np.float32), np.zeros((count, 2, len(REASONS)), bool))
    return ScoredWindows(TASK, windows, quality, SystemClock().now())


def probabilities(batch: ScoredWindows, bias: float = 0.0) -> np.ndarray:
    """The answer of ``tiny_onnx``."""
    mean_B = batch.windows.x[NAMES[0]][:, 0].mean(axis=1) + bias
    logits = mean_B[:, None] * np.linspace(1, -1, 3)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def watched(inference: Inference) -> list[BatchObservation]:
    """Observations of :func:`tests.support.agent.predicting.predicting`."""
    return OBSERVED.setdefault(inference, [])


def inference(zygote: ZygoteClient | None = None, **changes: Any) -> Inference:
    return Inference(InferSettings(**changes), SystemClock(), None, zygote)


def is_there(pid: int | None) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def own_bytes(pid: int | None) -> int:
    """Memory that a process has written to; PSS depends on the number of processes that share its pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


class InThreads(ZygoteClient):
    """Its servants are threads of this process: quick to start, and accessible to a test."""

    async def servant(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._live, args=(theirs,), daemon=True).start()
        return os.getpid(), ours

    def _live(self, sock: socket.socket) -> None:
        with sock:
            servant.serve(sock)

    async def fate(self, pid: int) -> int | None:  # noqa: ARG002 - unknown
        return None

    def end(self, pid: int) -> None:
        """They see the socket close."""


class Liar(ZygoteClient):
    """Its servants open any model, and then give scripted answers."""

    def __init__(self, say: Callable[[socket.socket], None], opened: dict[str, Any] | None = None) -> None:
        super().__init__()
        self._say, self._opened = say, opened or {}
        self.started = 0

    async def ready(self) -> Ready:
        return Ready("", "0", ("CPUExecutionProvider",))

    async def servant(self) -> tuple[int, socket.socket]:
        ours, theirs = socket.socketpair()
        self.started += 1
        threading.Thread(target=self._live, args=(theirs,), daemon=True).start()
        return os.getpid(), ours

    def _live(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):  # the agent has heard enough
            reader = MessageReader(sock)
            reader.message()
            send(sock, self._opened, {})
            while reader.message() is not None:
                self._say(sock)

    async def fate(self, pid: int) -> int | None:  # noqa: ARG002 - unknown
        return None

    def end(self, pid: int) -> None:
        """Nothing to end: they see the socket close."""
