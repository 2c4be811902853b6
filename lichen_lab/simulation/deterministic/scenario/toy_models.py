"""Models of the simulated fleet: real bundles, deployed by the real agent, answered without ONNX Runtime.

The seed makes some versions bad: they fail on every device that tries them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from coordinator.workers.jobs import ExportLineage
from edge_agent.config.agent import InferSettings
from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.onnx_models.window_model import read_manifest
from edge_agent.inference.service import Inference, Observe, Publish
from edge_agent.windows.quality.meter import ScoredWindows
from models.contract import Blobs
from protocol.bundle import BundleManifest, pack
from protocol.errors import Reason, Refused
from protocol.tasks.task import LABEL, Task
from runtime.clock import Clock

_BAD: Final = 0.3
"""Share of bad versions."""
_REFUSED: Final = 0.3
"""Share of those that cannot be loaded at all."""


def is_bad(seed: int, version: int) -> bool:
    """Whether a version fails on every device."""
    return random.Random(f"bad model {seed} {version}").random() < _BAD  # noqa: S311 - a seed


def _loads(seed: int, version: int) -> bool:
    dies = random.Random(f"model that dies {seed} {version}").random() < _REFUSED  # noqa: S311 - a seed
    return not (is_bad(seed, version) and dies)


def bundle(task: Task, state: Blobs, lineage: ExportLineage) -> bytes:
    """A bundle that agents accept; its model is the bytes of the version's head."""
    manifest = BundleManifest(
        task=task.name,
        method=task.method,
        version=lineage.version,
        labels=task.labels,
        modalities=task.modalities,
        window=task.window,
        samples={m.name: task.samples(m.name) for m in task.modalities},
        inputs=(*task.modality_names, "present"),
        outputs=("probabilities",),
        round=lineage.version,
        base=lineage.manifest,
        parent=lineage.parent,
        files={},
        parity={},
    )
    return pack(manifest, {"model.onnx": state["head"]["head/w"].tobytes()})


@dataclass
class ToyModel:
    """A loaded model; attributes as of ``edge_agent.inference.serving.served_model.ServedModel``."""

    digest: str
    manifest: BundleManifest
    bad: bool
    failures: int = 0
    choice: str | None = None
    own: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Nothing runs."""


class ToyInference(Inference):
    """Inference without ONNX Runtime.

    Args:
        settings: of the agent.
        clock: virtual.
        seed: of the world: decides which versions are bad.
        rng: durations.
        on_swap: called with the digest of a model that becomes active.
    """

    def __init__(
        self,
        settings: InferSettings,
        clock: Clock,
        *,
        seed: int,
        rng: random.Random,
        on_swap: Callable[[str], None],
    ) -> None:
        super().__init__(settings, clock)
        self._seed = seed
        self._rng = rng
        self._on_swap = on_swap

    async def ready(self) -> str:
        """Models always run here."""
        return ""

    async def load(self, folder: Path) -> Any:
        """See the base class."""
        manifest = read_manifest(folder)
        await self._clock.sleep(self._rng.uniform(0.01, 1.0))
        if not _loads(self._seed, manifest.version):
            raise Refused(Reason.MALFORMED, "its process dies, says the seed")
        return ToyModel(folder.name, manifest, is_bad(self._seed, manifest.version))

    def activate(self, model: Any) -> None:
        """See the base class."""
        super().activate(model)
        if model is not None:
            self._on_swap(model.digest)

    async def run(self, *, publish: Publish | None = None, observe: Observe | None = None) -> None:
        """Answer for ever: every model the same, bad ones nothing."""
        del publish
        try:
            while True:
                await self._wake.wait()
                while self._waiting:
                    batch: Any = self._waiting.popleft()
                    await self._clock.sleep(self._rng.uniform(0.001, 0.2))
                    if isinstance(batch, ScoredWindows) and observe is not None:
                        self._answer(batch, observe)
        finally:
            await self.close()

    def _answer(self, batch: ScoredWindows, observe: Observe) -> None:
        model: Any = self.model
        shadow: Any = self.shadowing
        if model is None or model.manifest.task != batch.task.name or not len(batch.windows):
            return
        answers = {LABEL: np.tile(np.array([1, 0], np.float32), (len(batch.windows), 1))}
        about = (model.digest, model.manifest, len(batch.windows), 0.01)
        error = "no answer, says the seed" if model.bad else ""
        before = None if shadow is None or shadow.bad else answers
        unknown_B = np.full(len(batch.windows), -1)
        said = {} if error else answers
        manifest = None if before is None else shadow.manifest
        observe(BatchObservation(*about, error, said, unknown_B, before, 0.01, manifest))
