"""The ``hotplug`` source: a recording of a sensor that is plugged in and unplugged while the agent runs.

It delivers samples and labels while the file ``when`` exists; labels end when the sensor is unplugged. Time
goes on meanwhile, and samples of that time are lost, so the source stays in step with a ``replay`` source of
the same span and speed. For demonstrations and for trying out a fleet.
"""

from collections.abc import AsyncIterator, Sequence

import numpy as np

from edge_agent.sources.base import REGISTRY, SourceKind
from edge_agent.sources.replay import Replay, ReplaySettings
from models.data.streams.batches import Batch, LabelBatch
from models.data.streams.recording import label_tracks
from runtime.clock import Clock
from runtime.settings.load import ConfigPath


class HotplugSettings(ReplaySettings):
    """Keys of ``[[source]] kind = "hotplug"``: those of ``replay``, and ``when``."""

    when: ConfigPath
    """The sensor is plugged in while this file exists."""


class Hotplug(Replay):
    """A :class:`Replay` that can pause. A recording without labels sends no end of labels."""

    def __init__(self, settings: HotplugSettings, known: Sequence[str] | None, clock: Clock) -> None:
        super().__init__(settings, known, clock)
        self.name = f"hotplug {settings.file.name}"
        self._when = settings.when
        self._labelled = bool(label_tracks(self.recording))

    @property
    def plugged(self) -> bool:
        """Whether the source delivers now."""
        return self._when.exists()

    async def samples(self) -> AsyncIterator[Batch]:
        """Yield the recording while the sensor is plugged in; see :class:`edge_agent.sources.base.Source`."""
        now, moment = False, (float("nan"), 0.0)
        async for batch in super().samples():
            if moment != (self._position, self._offset):  # batches of the same time belong together
                moment, was, now = (self._position, self._offset), now, self.plugged
                for label in self._labels_in_force() if now != was else ():
                    # A label holds until the next one, and other sensors go on: this one ends all labels.
                    yield label if now else LabelBatch(label.t, np.full(1, np.nan), label.target)
            if now and (self._labelled or not isinstance(batch, LabelBatch)):
                yield batch


REGISTRY.add("hotplug", SourceKind(HotplugSettings, Hotplug))
