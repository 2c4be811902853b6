"""Folds whose passes are spans of the round's trace; used only where tracing is on."""

from collections.abc import Mapping

from coordinator.aggregation.outlier_screen import Magnitudes
from coordinator.aggregation.round_fold import FoldRunner, RoundUpdates
from coordinator.telemetry.round_tracing import RoundTracing
from models.contract import Blobs, Server
from models.guided import DeviceWeights


class TracedFolds:
    """See :class:`coordinator.aggregation.round_fold.FoldRunner`.

    Args:
        inner: does the work.
        tracing: records it.
    """

    def __init__(self, inner: FoldRunner, tracing: RoundTracing) -> None:
        self._inner = inner
        self._tracing = tracing
        self.views_a_job = inner.views_a_job

    async def screen(
        self, updates: RoundUpdates, before: Mapping[str, float], known: Mapping[str, Magnitudes]
    ) -> dict[str, float]:
        """See :class:`FoldRunner`."""
        since = self._tracing.wall()
        found = await self._inner.screen(updates, before, known)
        self._tracing.step("screen", since, updates=len(updates.entries))
        return found

    async def fold(
        self, server: Server, updates: RoundUpdates, state: Blobs, weighing: DeviceWeights | None
    ) -> Blobs:
        """See :class:`FoldRunner`."""
        since = self._tracing.wall()
        found = await self._inner.fold(server, updates, state, weighing)
        self._tracing.step("fold", since, updates=len(updates.entries))
        return found
