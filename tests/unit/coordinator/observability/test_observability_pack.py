"""The files for Prometheus and Grafana: equal to their code, accepted by promtool, and full of data."""

import asyncio
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.observability.dashboards import DASHBOARDS, FOLDER, rendered
from coordinator.observability.scrape import CONFIG, RULES
from coordinator.status.prometheus import serve_metrics
from protocol import messages
from protocol.messages import Metric
from protocol.telemetry import Telemetry
from protocol.topics import Kind
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET as FLEET_NAME
from tests.support.coordinator.fake import frame, header, tiny_task
from tests.support.network.brokers import free_port
from tests.support.processes.prometheus import PROMTOOL, needs_prometheus, prometheus

HERE = Path(__file__).parent
EXPRESSIONS = {
    f"{title}: {panel.title}: {legend}": expression
    for title, panels in DASHBOARDS.values()
    for panel in panels
    for legend, expression in panel.expressions.items()
}


def promtool(*arguments: object) -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_committed_dashboards_are_those_of_the_code():
    for file, text in rendered().items():
        assert (FOLDER / file).read_text() == text, "run: make docs"


def test_every_panel_has_words_fits_the_grid_and_chooses_the_fleet():
    for file in DASHBOARDS:
        panels = json.loads((FOLDER / file).read_text())["panels"]
        places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}
        assert len(places) == len(panels)
        assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= 24 and p["description"] for p in panels)
    for where, expression in EXPRESSIONS.items():
        names = re.findall(r"lichen_\w+", expression)
        assert names, where
        assert expression.count('fleet="$fleet"') == len(names), where
        of_process = {"lichen_loop_stall_seconds", "lichen_disk_free_bytes"}
        assert ('task=~"$task"' in expression) == (not set(names) & of_process), where


@pytest.mark.long
@needs_prometheus
def test_promtool_accepts_the_rules_and_each_alert_fires_as_its_test_says(tmp_path):
    promtool("check", "rules", FOLDER / RULES)
    promtool("test", "rules", HERE / "alerts_test.yml")
    alerts = set(re.findall(r"- alert: (\w+)", (FOLDER / RULES).read_text()))
    tested = (HERE / "alerts_test.yml").read_text()
    assert {name for name in alerts if name not in tested} == set()
    assert len(alerts) > 15
    broken = tested.replace(str(Path("../../../../coordinator/observability")), str(FOLDER))
    (tmp_path / "broken.yml").write_text(broken.replace("'2x500'", "'0x500'"))
    with pytest.raises(AssertionError, match="LichenDevicesInQuarantine"):
        promtool("test", "rules", tmp_path / "broken.yml")


def reports(n: int) -> Telemetry:
    return Telemetry(
        uptime_s=100.0,
        spool_updates=n,
        spool_bytes=1000 * n,
        disk_free_bytes=10**9,
        memory_bytes=60_000_000,
        memory_available_bytes=300_000_000,
        cpu_share=0.1,
        load_share=0.2,
        temperature_c=50.0 + n,
        reconnects=n,
        predictions_per_s=0.8,
        latency_p50_s=0.01,
        latency_p95_s=0.02,
        modalities={name: {"windows_per_s": 0.8, "quality": 0.9} for name in ("acc", "gyro")},
    )


@needs_prometheus
async def test_every_expression_of_every_panel_has_data_from_a_coordinator_at_work(tmp_path):
    rollout = {"mode": "staged", "canary": "share:1", "soak_s": 60.0}
    port = free_port()
    settings = {"rollout": rollout, "export": {"every_rounds": 1}, "metrics": {"prometheus_port": port}}
    settings["evaluation"] = {"data": tmp_path / "any.npz"}
    async with bench(tmp_path, tiny_task(min_devices=2, count=3), **settings) as made:
        with serve_metrics(made.app.settings.metrics, made.app.measured):
            await made.online("a", "b")
            await made.phase("collecting")
            await made.give("a", Kind.UPDATE, b"no frame")
            base = made.app.driver.state.manifest
            for device in ("a", "b"):
                await made.give(device, Kind.UPDATE, frame(header(device, 1, base)))
                told = Metric(device=device, metrics={}, telemetry=reports(device == "a"))
                await made.give(device, Kind.METRIC, messages.encode(told))
            await made.until(lambda: made.app.driver.state.version == 1 and made.app.rollout is not None)
            await asyncio.to_thread(check, tmp_path, f"127.0.0.1:{port}")


def chosen(expression: str, task: str = ".*") -> str:
    return expression.replace("$fleet", FLEET_NAME).replace("$task", task)


def has_numbers(found: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(sample["value"][1])) for sample in found)


def check(folder: Path, target: str) -> None:
    """All panels have data; each alert's expression is sound."""
    with prometheus(folder / "prometheus", FLEET_NAME, target) as server:
        assert server.until("rate(lichen_bytes_up_total[5m])"), server.ask("targets")["activeTargets"]
        empty = [
            where
            for where, expression in EXPRESSIONS.items()
            if not has_numbers(server.until(chosen(expression), seconds=5.0))
        ]
        assert empty == []
        assert len(EXPRESSIONS) > 60
        rules = server.ask("rules")["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
        series = server.samples("scrape_samples_scraped")[0]["value"][1]
        assert 200 < int(series) < 2000


def test_the_command_writes_the_files_and_overwrites_none(tmp_path):
    (tmp_path / "coordinator.toml").write_text(
        'fleet = "barn"\nstate_dir = "state"\ntask = "task.toml"\n[metrics]\nprometheus_port = 9464\n'
    )
    arguments = ["monitoring", str(tmp_path / "out"), "--config", str(tmp_path / "coordinator.toml")]
    for _ in range(2):
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {CONFIG, RULES, *DASHBOARDS}
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    [place] = config["scrape_configs"][0]["static_configs"]
    assert place == {"targets": ["127.0.0.1:9464"], "labels": {"fleet": "barn"}}
    if PROMTOOL is not None:
        promtool("check", "config", tmp_path / "out" / CONFIG)
    (tmp_path / "out" / RULES).write_text("groups: []")
    assert "differs" in str(CliRunner().invoke(app, arguments).exception)
    assert (tmp_path / "out" / RULES).read_text() == "groups: []"
