"""A real collector on real sources."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from edge_agent.config.agent import AgentSettings, WindowSettings
from edge_agent.sources.registry import open_source
from edge_agent.windows.collector import Collector
from edge_agent.windows.quality.meter import ScoredWindows
from protocol.tasks.task import Modality, Task, Window
from runtime.clock import SystemClock
from tests.support.agent.parts import collector_of
from tests.support.services import beside

TASK = Task(
    name="t",
    labels=("a", "b"),
    modalities=(
        Modality(name="acc", channels=3, rate_hz=50, unit="m/s2"),
        Modality(name="air", channels=1, rate_hz=20),
    ),
    window=Window(length_s=0.4, stride_s=0.2, max_gap_s=0.2),
)


@asynccontextmanager
async def collecting(
    folder: Path, *tables: dict[str, Any]
) -> AsyncIterator[tuple[Collector, list[ScoredWindows]]]:
    """A real collector on these sources; yields it and the windows that it made."""
    clock = SystemClock()
    seen: list[ScoredWindows] = []
    settings = AgentSettings(
        fleet="f",
        device="d",
        state_dir=folder / "state",
        cache_dir=folder / "state",
        source=tuple(tables),
        windows=WindowSettings(lateness_s=0.3),
    )
    names = TASK.modality_names
    sources = [open_source(t, f"source[{i}]", folder, names, clock) for i, t in enumerate(tables)]
    collector = collector_of(settings, sources, clock, seen.append)
    await collector.use(TASK)
    async with beside(collector.run(), *map(collector.run_source, sources)):
        yield collector, seen
