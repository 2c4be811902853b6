"""The sensor that is plugged in while the agent runs."""

import asyncio

import numpy as np
import pytest

from edge_agent.sources import LabelBatch, SampleBatch
from edge_agent.sources.registry import open_source
from models.data.labels.labels import TargetTrack
from models.data.labels.rules import Labels
from models.data.streams.recording import Recording, read, write_npz
from tests.support.agent.data import write_toy
from tests.support.clock import ManualClock


async def test_it_delivers_only_while_its_file_is_there_and_time_does_not_wait(tmp_path):
    write_toy(tmp_path, 30)
    whole = read(tmp_path / "toy.npz")
    write_npz(tmp_path / "toy.npz", Recording({"acc": whole.streams["acc"]}))
    clock, when = ManualClock(), tmp_path / "plugged"
    table = {"kind": "hotplug", "file": "toy.npz", "when": "plugged", "speed": 1.0}
    source = open_source(table, "source[0]", tmp_path, ("acc", "gyr"), clock)
    seen: list[float] = []
    labels: list[LabelBatch] = []

    async def collect():
        async for batch in source.samples():
            if isinstance(batch, SampleBatch):
                seen.extend(batch.t.tolist())
            else:
                labels.append(batch)

    task = asyncio.create_task(collect())

    async def pass_s(seconds: int):
        for _ in range(10 * seconds):
            await clock.advance(0.1)

    await pass_s(10)
    assert seen == []
    assert source.channels == {"acc": 3}, "what it would deliver is known from the start"
    when.touch()
    await pass_s(5)
    assert min(seen) == pytest.approx(10, abs=1.1)
    when.unlink()
    await pass_s(5)
    assert max(seen) == pytest.approx(15, abs=1.1)
    when.touch()
    await pass_s(15)
    assert max(seen) == pytest.approx(whole.span()[1])
    assert not [t for t in seen if 17 < t < 19], "what was recorded meanwhile is lost"
    assert labels == [], "another source's labels are not ended by it"
    await asyncio.wait_for(task, 5)


async def test_labels_end_when_it_is_pulled_out_and_hold_again_when_it_is_back(tmp_path):
    """A label holds until the next one: other sensors' windows would be labelled by what was pulled out."""
    write_toy(tmp_path, 30)
    whole = read(tmp_path / "toy.npz")
    changes = (np.array([0.0, 12.0]), np.array([1, 2]))
    speed = TargetTrack(np.array([0.0]), np.array([3.0]))
    write_npz(tmp_path / "toy.npz", Recording(whole.streams, *changes, {"speed": speed}))
    clock, when = ManualClock(), tmp_path / "plugged"
    table = {"kind": "hotplug", "file": "toy.npz", "when": "plugged"}
    source = open_source(table, "source[0]", tmp_path, ("acc", "gyr"), clock)
    tracks = {"label": Labels(3), "speed": Labels(0)}

    async def collect():
        async for batch in source.samples():
            if isinstance(batch, LabelBatch):
                tracks[batch.target].add(batch)

    async def pass_s(seconds: int):
        for _ in range(10 * seconds):
            await clock.advance(0.1)

    when.touch()
    task = asyncio.create_task(collect())
    await pass_s(5)
    when.unlink()
    await pass_s(10)
    when.touch()
    await pass_s(20)
    await asyncio.wait_for(task, 5)
    start = np.array([2.0, 8.0, 13.0, 17.0])
    for name, expected in {"label": [1, np.nan, np.nan, 2], "speed": [3, np.nan, np.nan, 3]}.items():
        np.testing.assert_array_equal(tracks[name].of(start, start + 1), expected)
