"""Replaces inference: models without ONNX Runtime, and scripted batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_agent.inference.onnx_models.observation import BatchObservation
from edge_agent.inference.onnx_models.window_model import read_manifest
from protocol.bundle import BundleManifest, unpack
from protocol.errors import Reason, Refused
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_task


@dataclass
class FakeModel:
    folder: Path
    manifest: BundleManifest
    ended: bool = False

    @property
    def digest(self) -> str:
        return self.folder.name

    def close(self) -> None:
        self.ended = True


MODEL = FakeModel(Path("models/f"), unpack(bundle(toy_task()))[0])


def classes(*indices: int, classes: int = 3) -> dict[str, Any]:
    """Predictions of the target ``label``: these classes."""
    return {"label": np.eye(classes, dtype=np.float32)[list(indices)]}


@dataclass
class FakeRunner:
    """The interface of ``edge_agent.inference.service.Inference``; ended models are recorded."""

    refuses: set[str] = field(default_factory=set)
    """Bundles that fail to run here."""
    on_load: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.available = True
        self.disabled_reason = "no model yet"
        self.observe: Callable[[BatchObservation], None] = lambda _: None
        self.model: FakeModel | None = None
        self.beside: FakeModel | None = None
        self.loaded: list[str] = []

    async def ready(self) -> str:
        return "" if self.available else self.disabled_reason

    async def load(self, folder: Path) -> FakeModel:
        manifest = read_manifest(folder)
        self.loaded.append(folder.name)
        self.on_load(folder.name)
        if folder.name in self.refuses:
            raise Refused(Reason.MALFORMED, "it dies")
        return FakeModel(folder, manifest)

    def activate(self, model: FakeModel | None) -> None:
        self._require_alive(model)
        before, self.model = self.model, model
        self._end(before)
        if model is not None:
            self.disabled_reason = ""

    def shadow(self, model: FakeModel | None) -> None:
        self._require_alive(model)
        before, self.beside = self.beside, model
        self._end(before)

    def _end(self, model: FakeModel | None) -> None:
        if model is not None and model is not self.model and model is not self.beside:
            model.ended = True

    def _require_alive(self, model: FakeModel | None) -> None:
        assert model is None or not model.ended, "a model is used after its end"

    def answer(self, *said: int, error: str = "", before: tuple[int, ...] | None = None, **more: Any) -> None:
        """One batch; ``said``: classes that the model predicts, ``before``: those of the previous model."""
        assert self.model is not None
        shadow = self.beside is not None
        told = said if before is None else before
        seen = BatchObservation(
            self.model.digest,
            self.model.manifest,
            max(1, len(said)),
            more.pop("latency_s", 0.002),
            error=error,
            answers={} if error else classes(*said),
            before=classes(*told) if shadow and not error else None,
            before_latency_s=more.pop("before_latency_s", 0.002) if shadow and not error else None,
            before_manifest=self.beside.manifest if self.beside is not None else None,
            **{"y_B": np.full(max(1, len(said)), -1), **more},
        )
        self.observe(seen)
