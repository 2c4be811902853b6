"""What every kind of source must do, over all that the registry finds."""

import asyncio
import gc
import threading
import time
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from edge_agent.sources import REGISTRY, LabelBatch, SampleBatch
from edge_agent.sources.base import ChecksTask, ReportsStatus
from edge_agent.sources.registry import open_source
from protocol.errors import Misconfigured
from protocol.tasks.task import Modality, Task
from runtime.clock import SystemClock
from tests.support.sensors.source_cases import CASES
from tests.support.services import until

kinds = pytest.mark.parametrize("kind", sorted(CASES))


def opened(case, folder, known=None, **changes):
    names = list(case.channels) if known is None else known
    return open_source({**case.table, **changes}, "agent.toml: source[0]", folder, names, SystemClock())


async def first(source, enough, seconds=15.0):
    """Batches until every modality has given so many samples."""
    got, counts = [], dict.fromkeys(source.channels, 0)
    async with asyncio.timeout(seconds), aclosing(source.samples()) as stream:
        async for batch in stream:
            got.append(batch)
            if isinstance(batch, SampleBatch):
                counts[batch.modality] += len(batch.t)
            if min(counts.values()) >= enough:
                break
    return got


def held():
    """Open files and threads of this process; an MQTT client's go with its collection."""
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()]), threading.active_count()


def test_every_kind_of_source_has_a_case():
    assert set(REGISTRY.kinds()) == set(CASES)


@kinds
async def test_it_delivers_sound_batches_again_after_a_stop_and_leaves_nothing_open(tmp_path, kind):
    async with CASES[kind](tmp_path) as case:
        source = opened(case, tmp_path)
        assert source.channels == case.channels, "known before anything was read"
        assert kind in source.name
        await first(source, 1)  # what is only made once is made
        before = held()
        for _ in range(2):
            batches = await first(source, 3)
            now = time.time()
            for name, channels in case.channels.items():
                mine = [b for b in batches if isinstance(b, SampleBatch) and b.modality == name]
                t = np.concatenate([b.t for b in mine])
                assert t.dtype == np.float64
                assert (np.diff(t) >= 0).all()
                assert all(b.values.shape == (len(b.t), channels) for b in mine)
                assert {b.values.dtype for b in mine} == {np.dtype(np.float32)}
                if case.live:
                    assert np.abs(t - now).max() < 10
            assert all(b.t.shape == b.label.shape for b in batches if isinstance(b, LabelBatch))
        await until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


@kinds
async def test_a_cancelled_source_ends_at_once(tmp_path, kind):
    async with CASES[kind](tmp_path) as case:
        task = asyncio.create_task(first(opened(case, tmp_path), 10**9, 60))
        await asyncio.sleep(0.3)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done


@kinds
async def test_a_wrong_key_is_named_with_its_table_and_the_nearest_key(tmp_path, kind):
    async with CASES[kind](tmp_path) as case:
        some = max(REGISTRY.kinds()[kind].settings.model_fields)
        with pytest.raises(Misconfigured, match=rf"agent\.toml: source\[0\]\.{some}x: unknown key.*'{some}'"):
            opened(case, tmp_path, **{f"{some}x": 1})


@kinds
async def test_a_modality_that_the_task_does_not_have_is_refused_with_those_that_it_has(tmp_path, kind):
    async with CASES[kind](tmp_path) as case:
        with pytest.raises(Misconfigured, match=r"agent\.toml: source\[0\].*the task.*sonar"):
            opened(case, tmp_path, known=["sonar"])


@kinds
async def test_what_it_says_of_itself_is_words_and_numbers(tmp_path, kind):
    async with CASES[kind](tmp_path) as case:
        source = opened(case, tmp_path)
        task = Task(
            name="t",
            labels=("a", "b"),
            modalities=tuple(
                Modality(name=name, channels=n, rate_hz=20, unit="furlong")
                for name, n in case.channels.items()
            ),
        )
        if isinstance(source, ChecksTask):
            assert all(isinstance(words, str) and source.name in words for words in source.doubts(task))
        if isinstance(source, ReportsStatus):
            await first(source, 2)
            assert isinstance(source.state, str)
            assert all(float(value) >= 0 for value in source.counters.values())
        if kind == "iio":
            assert any("'furlong'" in words for words in source.doubts(task))
