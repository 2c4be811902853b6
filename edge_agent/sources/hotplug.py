"""The ``hotplug`` source: the recording of a sensor that is plugged in, and pulled out, while the agent runs.

It delivers while the file ``when`` exists, labels too: they end when it is pulled out. Time passes all the
same: what was recorded while the sensor was out is lost, so that it stays in step with a ``replay`` source of
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
    """Keys of ``[[source]] kind = "hotplug"``: those of ``replay``, and one more."""

    when: ConfigPath
    """The sensor is plugged in while this file exists."""


class Hotplug(Replay):
    """A :class:`Replay` that can be silent. A recording without labels says nothing of labels."""

    def __init__(self, settings: HotplugSettings, known: Sequence[str] | None, clock: Clock) -> None:
        super().__init__(settings, known, clock)
        self.name = f"hotplug {settings.file.name}"
        self._when = settings.when
        self._labelled = bool(label_tracks(self.recording))

    @property
    def plugged(self) -> bool:
        """Whether it delivers now."""
        return self._when.exists()

    async def samples(self) -> AsyncIterator[Batch]:
        """Yield what is recorded while it is plugged in; see :class:`edge_agent.sources.base.Source`."""
        now, moment = False, (float("nan"), 0.0)
        async for batch in super().samples():
            if moment != (self._position, self._offset):  # batches of one moment belong together
                moment, was, now = (self._position, self._offset), now, self.plugged
                for label in self._labels_in_force() if now != was else ():
                    yield label if now else _ended(label)
            if now and (self._labelled or not isinstance(batch, LabelBatch)):
                yield batch


def _ended(label: LabelBatch) -> LabelBatch:
    """From then on nothing is known: a label holds until the next one, and other sensors go on."""
    return LabelBatch(label.t, np.full(1, np.nan), label.target)


REGISTRY.add("hotplug", SourceKind(HotplugSettings, Hotplug))
