import asyncio
import builtins
import pickle

import numpy as np
import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.sources import REGISTRY, LabelBatch, SampleBatch
from edge_agent.sources.registry import open_source
from edge_agent.sources.system import readings
from edge_agent.sources.task_match import matching_modalities
from edge_agent.windows.collector import Collector
from models.data.streams.recording import Recording, read, write_npz
from protocol.errors import Misconfigured
from runtime.clock import SystemClock
from runtime.concurrency.signals import Signal
from runtime.process.daemon import Progress
from tests.support.agent.data import toy_recording, toy_task, write_toy
from tests.support.agent.parts import collector_of
from tests.support.clock import ManualClock
from tests.support.services import beside, until


def replay(folder, known=("acc", "gyr"), clock=None, **options):
    table = {"kind": "replay", "file": "toy.npz", **options}
    return open_source(table, "source[0]", folder, known, clock or SystemClock())


def write_csv(path, rows, header="t,acc.x,acc.y,acc.z,label"):
    path.write_text("\n".join([header, *rows]) + "\n")


def test_the_kinds_are_found_by_folder():
    media = {"camera", "gstreamer", "microphone"}
    assert set(REGISTRY.kinds()) == {"hotplug", "iio", "mqtt", "replay", "serial", "system", *media}


async def test_a_replay_gives_back_the_recording_in_order(tmp_path):
    write_toy(tmp_path, 30)
    source = replay(tmp_path, speed=10_000)
    batches = [b async for b in source.samples()]
    t = np.concatenate([b.t for b in batches if isinstance(b, SampleBatch) and b.modality == "acc"])
    np.testing.assert_array_equal(t, toy_recording(30).streams["acc"].t)
    labels = [b for b in batches if isinstance(b, LabelBatch)]
    assert labels[-1].label[-1] == -1, "after the end no label holds"
    assert source.channels == {"acc": 3, "gyr": 2}


async def test_a_replay_keeps_recorded_speed(tmp_path):
    write_toy(tmp_path, 30)
    clock = ManualClock()
    source = replay(tmp_path, speed=2.0, clock=clock)
    seen: list[float] = []

    async def collect():
        async for batch in source.samples():
            seen.extend([float(batch.t[-1])] if isinstance(batch, SampleBatch) else [])

    async with beside(collect()):
        for _ in range(50):
            await clock.advance(0.1)
        assert max(seen) == pytest.approx(10, abs=1.1)
        assert 15 <= len(seen) <= 60, "few wake-ups: CPU stays small"


async def test_a_loop_goes_on_in_time_with_a_gap(tmp_path):
    write_toy(tmp_path, 10)
    source = replay(tmp_path, speed=10_000, loop=True, loop_gap_s=5)
    t: list[float] = []
    async for batch in source.samples():
        if isinstance(batch, SampleBatch) and batch.modality == "acc":
            t += batch.t.tolist()
        if len(t) > 1200:
            break
    step = np.diff(t)
    assert (step > 0).all()
    assert step.max() == pytest.approx(5.02, abs=0.05)


async def test_names_are_mapped(tmp_path):
    write_toy(tmp_path, 5)
    source = replay(tmp_path, ("wrist",), modalities={"wrist": "acc"}, speed=10_000)
    assert source.channels == {"wrist": 3}
    assert {b.modality async for b in source.samples() if isinstance(b, SampleBatch)} == {"wrist"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "gone.npz"}, r"source\[0\]: recording .*gone.npz: No such file"),
        ({"fiel": "toy.npz"}, r"source\[0\].fiel: unknown key; did you mean 'file'"),
        ({"speed": -1}, r"source\[0\].speed"),
        ({"kind": "radar"}, r"source\[0\].kind: 'radar' .*replay"),
        ({"modalities": {"acc": "akk"}}, r"modalities.acc: .*has no 'akk'; it has acc, gyr"),
        (
            {"modalities": {"wrist": "acc"}},
            r"modalities.wrist: the task has no such modality; it has acc, gyr",
        ),
    ],
)
def test_a_wrong_table_names_the_culprit(tmp_path, options, words):
    write_toy(tmp_path, 5)
    with pytest.raises(Misconfigured, match=words):
        replay(tmp_path, **options)


def test_nothing_in_common_is_said(tmp_path):
    write_toy(tmp_path, 5)
    with pytest.raises(Misconfigured, match=r"has acc, gyr, the task radar: none in common"):
        replay(tmp_path, ("radar",))


def test_csv_and_parquet_read_like_npz(tmp_path):
    rows = [f"{k / 50},{k},{-k},0,{'' if k == 3 else k // 10}" for k in range(20)]
    rows[5] = "0.1,,,,0"
    write_csv(tmp_path / "a.csv", rows)
    found = read(tmp_path / "a.csv")
    assert len(found.streams["acc"].t) == 19
    assert found.label.tolist() == [0, -1, 0, 1]
    import pyarrow.csv  # noqa: PLC0415 - an optional part
    import pyarrow.parquet  # noqa: PLC0415 - an optional part

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(tmp_path / "a.csv"), tmp_path / "a.parquet")
    again = read(tmp_path / "a.parquet")
    np.testing.assert_array_equal(found.streams["acc"].values, again.streams["acc"].values)
    np.testing.assert_array_equal(found.label, again.label)


def test_parquet_without_its_extra_says_which(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Misconfigured, match=r"lichen\[parquet\]"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"t,acc.x\n0,1\n1,zwei\n", "line 3, column 'acc.x': 'zwei' is not a number"),
        ("a.csv", b"t,acc.x\n0,1,2\n", "line 2 has 3 cells, the header 2"),
        ("a.csv", b"time,acc.x\n0,1\n", "no column 't'"),
        ("a.npz", b"PK nonsense", "not a plain npz"),
        ("a.parquet", b"nonsense", "not a parquet file"),
        ("a.wav", b"", "suffix '.wav'"),
    ],
)
def test_a_broken_file_names_file_and_place(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Misconfigured, match=words) as error:
        read(tmp_path / name)
    assert name in str(error.value)


def test_a_pickle_in_an_npz_is_never_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", **{"acc/t": np.array([{"a": 1}], object), "acc/values": np.zeros((1, 3))})
    with pytest.raises(Misconfigured, match="not a plain npz file: acc/t holds Python objects") as error:
        read(tmp_path / "a.npz")
    assert "allow_pickle" not in str(error.value)


def test_one_array_or_a_pickle_named_npz_is_said_in_our_words(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps({"acc": 1}))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(Misconfigured, match=r"not a plain npz file, which numpy\.savez writes"):
            read(tmp_path / name)


def test_npz_with_a_missing_key_or_a_wrong_shape_names_it(tmp_path):
    np.savez(tmp_path / "a.npz", **{"acc/t": np.zeros(3)})
    with pytest.raises(Misconfigured, match="key 'acc/values' is missing"):
        read(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **{"acc/t": np.zeros(3), "acc/values": np.zeros((4, 3))})
    with pytest.raises(Misconfigured, match=r"'acc/t' \(3,\) and 'acc/values' \(4, 3\)"):
        read(tmp_path / "b.npz")


async def test_the_system_source_reads_this_machine():
    table = {
        "kind": "system",
        "interval_s": 0.02,
        "modalities": {"cpu": ["cpu.percent", "load.1", "memory.percent"]},
    }
    source = open_source(table, "source[0]", None, ("cpu",), SystemClock())
    batches = []
    async for batch in source.samples():
        batches.append(batch)
        if len(batches) == 3:
            break
    assert all(b.values.shape == (1, 3) and np.isfinite(b.values).all() for b in batches)


def test_an_unknown_reading_is_named():
    table = {"kind": "system", "modalities": {"cpu": ["cpu.mood"]}}
    with pytest.raises(Misconfigured, match=r"no reading 'cpu.mood'; it has .*cpu.percent"):
        open_source(table, "source[0]", None, None, SystemClock())
    assert "load.1" in readings()


class Flaky:
    """Fails twice, then delivers."""

    name = "flaky"
    channels = {"acc": 3, "gyr": 2}  # noqa: RUF012 - a fake

    def __init__(self):
        self.calls = 0

    async def samples(self):
        self.calls += 1
        if self.calls < 3:
            raise OSError("the cable is out")
        for name, stream in toy_recording(20).streams.items():
            yield SampleBatch(name, stream.t, stream.values)


async def test_a_source_that_fails_comes_back_and_the_agent_goes_on(tmp_path):
    clock, source, seen = ManualClock(), Flaky(), []
    settings = AgentSettings(fleet="f", device="d", state_dir=tmp_path, cache_dir=tmp_path, source=({},))
    collector = collector_of(settings, [source], clock, seen.append)
    await collector.use(toy_task())
    async with beside(collector.run_source(source), collector.run()):
        async with asyncio.timeout(5):
            while "flaky" not in collector.finished:
                await clock.advance(0.5)
        await until(lambda: seen)
        assert collector.restarts == {"flaky": 2}


async def test_another_grid_leaves_the_old_windows_behind_and_the_same_grid_keeps_them(tmp_path):
    settings = AgentSettings(fleet="f", device="d", state_dir=tmp_path, cache_dir=tmp_path, source=({},))
    source = Flaky()
    collector = Collector(
        settings,
        [source],
        clock=ManualClock(),
        listener=lambda _: None,
        changed=Signal(),
        progress=Progress(),
    )
    await collector.use(toy_task())
    first = collector.workspace
    await collector.use(toy_task(seed=5))
    assert collector.workspace is first
    assert first.task.seed == 5
    await collector.use(toy_task(labels=("a", "b")))
    assert collector.workspace is not first
    assert [p.name for p in (tmp_path / "store").glob("*.sqlite3")] == [collector.workspace.store.path.name]
    collector.workspace.store.close()


def test_channels_must_agree():
    source = Flaky()
    source.channels = {"acc": 2, "gyr": 2}
    assert matching_modalities(toy_task(), [source]) == ("gyr",)


def test_write_and_read_npz(tmp_path):
    write_npz(tmp_path / "r.npz", toy_recording(5))
    found = read(tmp_path / "r.npz")
    assert isinstance(found, Recording)
    assert found.span() == pytest.approx((0.0, 4.98))
