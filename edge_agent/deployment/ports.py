"""What a rollout needs of inference (``edge_agent.inference.service``)."""

from pathlib import Path
from typing import Any, Protocol

from protocol.bundle import BundleManifest


class Handle(Protocol):
    """A loaded model."""

    @property
    def manifest(self) -> BundleManifest:
        """Manifest of its bundle."""

    @property
    def digest(self) -> str:
        """Digest of its bundle."""

    def close(self) -> None:
        """End a model that was never active."""


class Runner(Protocol):
    """Runs one active model, and at most one shadow beside it."""

    available: bool
    disabled_reason: str

    @property
    def model(self) -> Any:
        """The :class:`Handle` of the active model, or None."""

    async def ready(self) -> str:
        """Why no model can run here; empty if one can. Kept in :attr:`available`."""

    async def load(self, folder: Path) -> Any:
        """Load and try a model once. Raises Refused; Transient if no process can be started."""

    def activate(self, model: Any) -> None:
        """Activate a model, or none, from the next batch on; end the former one unless it is the shadow."""

    def shadow(self, model: Any) -> None:
        """Run a model, or none, on the same batches; end the former shadow unless it is active."""
