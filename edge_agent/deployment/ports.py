"""What a rollout needs of inference (``edge_agent.inference.service``)."""

from pathlib import Path
from typing import Any, Protocol

from protocol.bundle import BundleManifest


class Handle(Protocol):
    """A model that is loaded."""

    @property
    def manifest(self) -> BundleManifest:
        """Of its bundle."""

    @property
    def digest(self) -> str:
        """Of its bundle."""

    def close(self) -> None:
        """End it, where it never answered."""


class Runner(Protocol):
    """Runs one model, and at most one beside it."""

    available: bool
    disabled_reason: str

    @property
    def model(self) -> Any:
        """The :class:`Handle` of what answers now, or None."""

    async def ready(self) -> str:
        """Why no model can run here, in words, empty where one can; kept in :attr:`available`."""

    async def load(self, folder: Path) -> Any:
        """A :class:`Handle`, tried once. Raises Refused; Transient where no process can be had."""

    def install(self, model: Any) -> None:
        """It, or nothing, answers from the next batch on; the one before ends unless it is the shadow."""

    def shadow(self, model: Any) -> None:
        """It, or nothing, sees the same batches; the one before ends unless it is what answers."""
