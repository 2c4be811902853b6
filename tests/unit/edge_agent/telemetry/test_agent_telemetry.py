import asyncio
import json
from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings
from edge_agent.drift.service import DriftService
from edge_agent.inference.latency import Latency
from edge_agent.telemetry.host import HostReading, cpu_seconds, read_host
from edge_agent.telemetry.reporter import TelemetryReporter
from edge_agent.windows.collector import ModalityTotal
from protocol.messages import MAX_MESSAGE_BYTES, Metric, decode
from runtime.storage.spool import Spool
from tests.support.agent.collecting import TASK, collecting
from tests.support.agent.data import write_toy
from tests.support.agent.link import FakeLink
from tests.support.clock import ManualClock
from tests.support.services import beside, until

READING = HostReading(12_345_678_901, 61_440_000, 512_000_000, 0.123456, 48.25)


class Collecting:
    """What the reporter reads of a collector."""

    def __init__(self) -> None:
        self.totals: dict[str, ModalityTotal] = {}
        self.workspace: object = type("Work", (), {"modalities": ("acc",)})()


class Predicting:
    def __init__(self) -> None:
        self.predictions = 0
        self.latency = Latency()


def machine(folder: Path, zones: dict[str, str]) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable:     512 kB\n")
    (folder / "proc/self/status").write_text("Name: lichen\nVmRSS:\t   61440 kB\n")
    for name, text in zones.items():
        (folder / "sys/class/thermal" / name).mkdir(parents=True)
        (folder / "sys/class/thermal" / name / "temp").write_text(text)
    return folder


@pytest.fixture
def parts(tmp_path):
    settings = AgentSettings(
        fleet="f", device="d", source=({},), state_dir=tmp_path, telemetry={"every_s": 60.0}
    )
    spool = Spool(tmp_path / "spool.sqlite3", 1_000_000)
    link, clock, collector, inference = FakeLink(), ManualClock(), Collecting(), Predicting()
    made = TelemetryReporter(
        settings,
        link,
        spool=spool,
        collector=collector,
        inference=inference,
        drift=DriftService(settings.drift, tmp_path, clock),
        clock=clock,
        read=lambda _: READING,
    )
    yield made, link, clock, spool, collector, inference
    spool.close()


def test_the_machine_is_read(tmp_path):
    found = read_host(tmp_path, machine(tmp_path, {"thermal_zone0": "48250\n", "thermal_zone1": "61000\n"}))
    assert (found.memory_bytes, found.memory_available_bytes) == (61440 * 1024, 512 * 1024)
    assert found.temperature_c == 61.0
    assert found.disk_free_bytes > 0
    assert found.load_share >= 0


def test_a_machine_without_these_files_reports_what_it_can(tmp_path):
    found = read_host(tmp_path / "gone", tmp_path / "nothing")
    assert (found.disk_free_bytes, found.memory_bytes, found.temperature_c) == (None, None, None)


def test_a_broken_or_absurd_thermal_zone_does_not_count(tmp_path):
    zones = {"thermal_zone0": "no number", "thermal_zone1": "-274000", "thermal_zone2": "40000"}
    assert read_host(tmp_path, machine(tmp_path, zones)).temperature_c == 40.0


def test_this_machine_is_read():
    assert read_host(Path.cwd()).memory_bytes > 1_000_000
    assert cpu_seconds() > 0


async def test_rates_quality_and_latency_are_of_the_time_since_the_last_report(parts):
    made, _, clock, spool, collector, inference = parts
    await clock.advance(10.0)
    collector.totals = {"acc": ModalityTotal(20, 10.0), "air": ModalityTotal(5, 5.0)}
    inference.predictions = 40
    inference.latency.add(0.9, times=40)
    first = await made.measure()
    assert first.modalities.keys() == {"acc"}, "the device does not read the other one"
    assert (first.modalities["acc"].windows_per_s, first.modalities["acc"].quality) == (2.0, 0.5)
    assert (first.predictions_per_s, first.latency_p50_s) == (4.0, 0.9)
    spool.put(task="t", round_=1, digest="a" * 64, payload=b"frame", carry=None)
    await clock.advance(20.0)
    collector.totals["acc"].windows += 2
    collector.totals["acc"].quality += 2.0
    inference.latency.add(0.0015, times=19)
    inference.latency.add(0.4)
    second = await made.measure()
    assert (second.modalities["acc"].windows_per_s, second.modalities["acc"].quality) == (0.1, 1.0)
    assert second.predictions_per_s == 0.0
    assert (second.latency_p50_s, second.latency_p95_s) == (0.002, 0.002)
    assert second.spool_updates == 1
    assert second.spool_bytes >= len(b"frame")
    assert second.uptime_s == 30.0
    await clock.advance(20.0)
    third = await made.measure()
    assert third.modalities["acc"].quality is None
    assert third.latency_p95_s is None


async def test_another_task_counts_from_zero(parts):
    made, _, clock, _, collector, _ = parts
    collector.totals = {"acc": ModalityTotal(100, 100.0)}
    await clock.advance(10.0)
    await made.measure()
    collector.totals = {"acc": ModalityTotal(10, 5.0)}
    await clock.advance(10.0)
    found = (await made.measure()).modalities["acc"]
    assert (found.windows_per_s, found.quality) == (1.0, 0.5)


async def test_reports_are_sent_at_their_pace_and_not_without_a_link(parts):
    made, link, clock, *_ = parts
    async with beside(made.run(), forever=True):
        await clock.advance(60.0)
        await until(lambda: len(link.sent) == 1)
        link.connected = False
        await asyncio.sleep(0.05)
        await clock.advance(120.0)
        await asyncio.sleep(0.05)
        assert len(link.sent) == 1
        link.connected = True
        await clock.advance(60.0)
        await until(lambda: len(link.sent) == 2)
    message = decode(link.sent[0][1], Metric)
    assert message.telemetry.temperature_c == 48.2
    assert message.telemetry.disk_free_bytes == READING.disk_free_bytes
    assert message.round is None


async def test_a_report_of_four_modalities_is_small(parts):
    made, link, clock, _, collector, inference = parts
    names = ("accelerometer", "gyroscope", "magnetometer", "microphone")
    collector.workspace.modalities = names
    collector.totals = {name: ModalityTotal(123_456, 100_000.123) for name in names}
    inference.latency.add(0.0123, times=1000)
    async with beside(made.run(), forever=True):
        await clock.advance(60.0)
        await until(lambda: link.sent)
    payload = link.sent[0][1]
    assert len(payload) < 800 < MAX_MESSAGE_BYTES
    assert json.loads(payload)["metrics"] == {}


async def test_the_collector_counts_windows_by_modality(tmp_path):
    write_toy(tmp_path, 30)
    async with collecting(tmp_path, {"kind": "replay", "file": "toy.npz", "speed": 100}) as (made, seen):
        await until(lambda: seen and made.finished)
        windows = sum(len(one.windows) for one in seen)
        present = sum(int(one.windows.present_BM[:, 0].sum()) for one in seen)
        total = made.totals[TASK.modality_names[0]]
        assert 0 < present <= windows
        assert total.windows == present
        assert 0 < total.quality <= total.windows
