"""``lichen bench qqr --quick`` on the real data, over worker processes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lichen_lab.benchmarks import cli
from lichen_lab.benchmarks.studies.qqr.parts import bits
from lichen_lab.simulation.data.access import locations
from protocol.errors import Misconfigured


@pytest.fixture
def _uci_har() -> None:
    try:
        locations.folder("uci_har")
    except Misconfigured as error:
        pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.data
@pytest.mark.usefixtures("_uci_har")
def test_bench_qqr_quick_runs_on_the_real_windows_and_is_resumed(tmp_path: Path) -> None:
    page, runs = tmp_path / "page.html", tmp_path / "runs.jsonl"
    words = ["qqr", "--quick", "--part", "bits", "--format", "json"]
    words += ["--workers", "2", "--resume", str(runs), "--report", str(page)]
    first = CliRunner().invoke(cli.app, words)
    assert first.exit_code == 0, first.output
    count = len(bits.PART.variants)
    assert f"{count} runs" in first.stderr
    told = json.loads(first.stdout)
    assert told["bench"] == "qqr"
    assert all(0 <= row["mean"] <= 100 for row in told["rows"] if row["metric"].endswith(", %"))
    assert "a quick run" in page.read_text().lower()
    again = CliRunner().invoke(cli.app, words)
    assert f"{count} of {count} runs are in" in again.stderr
    assert json.loads(again.stdout)["rows"] == told["rows"]
