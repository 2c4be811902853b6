"""The newest version's model in memory: what updates are checked against and folded onto."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.aggregation.fold import limits_for
from coordinator.storage.model_registry import ModelRegistry
from models.aggregation.server_optimizer import model_of
from models.contract import Blobs
from protocol.errors import Refused, Transient
from protocol.frames.frame import Limits
from protocol.tasks.task import Task


class CurrentModel:
    """Reads the version that the round machine names, once a version.

    Args:
        task: what devices may see of the task.
        registry: holds the versions.
        manifest: the digest of the newest version's manifest.
        max_update_bytes: limit of one update, whatever the model.
    """

    def __init__(
        self, task: Task, registry: ModelRegistry, manifest: Callable[[], str], max_update_bytes: int
    ) -> None:
        self._task, self._registry, self._manifest = task, registry, manifest
        self._max_update_bytes = max_update_bytes
        self._loading = asyncio.Lock()
        self._loaded: tuple[str, Blobs] | None = None

    async def state(self) -> Blobs:
        """The newest version's model, which the next one is folded on; raises as :meth:`whole`.

        Its shapes are those of the published one, to which updates are relative, and its values near to them.
        """
        return model_of(await self.whole())

    async def published(self) -> Blobs:
        """The newest version's model as devices hold it, read again each time; raises as :meth:`whole`."""
        manifest = self._manifest()
        with _read_errors(manifest):
            return model_of(await asyncio.to_thread(self._registry.state, manifest))

    async def whole(self) -> Blobs:
        """The newest version's exact tensors, with the optimizer's moments; read once a version.

        Raises:
            Transient: the registry cannot read them; the message says which blob is gone or damaged.
        """
        if self._loaded is not None and self._loaded[0] == self._manifest():
            return self._loaded[1]
        async with self._loading:
            manifest = self._manifest()
            if self._loaded is None or self._loaded[0] != manifest:
                self._loaded = None  # before the next one is read: never two whole models in memory
                with _read_errors(manifest):
                    self._loaded = (manifest, await asyncio.to_thread(self._registry.exact_state, manifest))
            return self._loaded[1]

    def limits(self, state: Blobs) -> Limits:
        """Limits of an update of this model."""
        return limits_for(state, self._max_update_bytes, self._task)


@contextmanager
def _read_errors(manifest: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, Refused) as error:
        raise Transient(f"version {manifest[:12]} cannot be read from the registry: {error}") from error
