"""``lichen export mlflow`` with real stores: a database of this machine, and ``mlflow server``."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from coordinator.config.coordinator import CoordinatorSettings, load_settings
from coordinator.round_machine.events import RoundPhase
from lichen.commands.export import app
from lichen.tracking.follower import Follower
from lichen.tracking.mlflow_store import MlflowStore
from lichen_lab.simulation.processes.embedded_broker import free_port
from protocol.errors import Misconfigured, Transient
from tests.support.console.history import History, digest_of, settings_in
from tests.support.python import ROOT

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
WAIT_S = 120.0


def wait_for(what: Callable[[], bool], why: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with MLflow's tables, which take seconds to make."""
    from mlflow import MlflowClient  # noqa: PLC0415 - takes seconds to import

    file = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{file}").search_experiments()
    return file.read_bytes()


@pytest.fixture
def store(tmp_path: Path, empty: bytes) -> str:
    (tmp_path / "mlflow.db").write_bytes(empty)
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "coordinator.toml"
    file.write_text('fleet = "test"\nstate_dir = "coordinator"\ntask = "task.toml"\n')
    return file


def play(
    tmp_path: Path, *rounds: int, exported: bool = True, settings: CoordinatorSettings | None = None
) -> dict[int, bytes]:
    """Rounds of the coordinator; version -> its bundle."""
    bundles = {}
    with History(settings or settings_in(tmp_path)) as history:
        if 1 in rounds:
            history.makes(0)
        for number in rounds:
            history.plays(number, ["a", "b"])
            if exported:
                bundles[number] = b"bundle %d" % number * 100
                asyncio.run(history.exports(number, bundles[number]))
        history.stands(RoundPhase.DONE, max(rounds), max(rounds))
    return bundles


def export(config: Path, store: str, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(
        app, ["mlflow", "-c", str(config), "--store", store, "--format", "json", *words]
    )
    assert done.exit_code == 0, (done.output, done.exception)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


class Written:
    """What a store holds, by MLflow's own client."""

    def __init__(self, store: str, name: str = "test") -> None:
        from mlflow import MlflowClient  # noqa: PLC0415 - as above

        self.client: Any = MlflowClient(store, store)
        [experiment] = [one for one in self.client.search_experiments() if one.name == name]
        self.runs = self.client.search_runs([experiment.experiment_id])
        self.run = self.runs[0]
        self.versions = sorted(
            self.client.search_model_versions(f"name='{name}'"),
            key=lambda one: int(one.tags["lichen:version"]),
        )

    def values(self, name: str) -> list[tuple[int, float]]:
        points = self.client.get_metric_history(self.run.info.run_id, name)
        return sorted((one.step, one.value) for one in points)


def test_tracking_versions_metrics_and_lineage_are_written_once(
    tmp_path: Path, config: Path, store: str
) -> None:
    bundles = play(tmp_path, 1, 2, 3)
    assert export(config, store) == {"store": store, "values": 26, "registered": 3, "newest": 3}
    found = Written(store)
    assert found.run.info.status == "FINISHED"
    assert found.run.data.params["modalities.acc.channels"] == "3"
    assert found.run.data.tags["lichen:method"] == "qqr"
    expected = [(step, 1 - 1 / (step + 2)) for step in range(4)]
    values = found.values("accuracy")
    assert [step for step, _ in values] == [step for step, _ in expected]
    assert [value for _, value in values] == pytest.approx([value for _, value in expected])
    assert found.values("bytes_up") == [(1, 5000.0), (2, 5000.0), (3, 5000.0)]
    assert [one.tags["lichen:parent_version"] for one in found.versions] == ["0", "1", "2"]
    assert found.versions[1].tags["lichen:updates"].startswith(f"a {digest_of(2, 'a')[:16]}, b ")
    for alias in ("newest", "best"):
        assert found.client.get_model_version_by_alias("test", alias).tags["lichen:version"] == "3"
    folder = folder_of(found.versions[2])
    [bundle] = folder.glob("test-version-3-*.bundle")
    assert bundle.read_bytes() == bundles[3]
    assert [one["version"] for one in json.loads((folder / "lineage.json").read_text())["versions"]] == [3]
    before = (tmp_path / "mlflow.db").read_bytes()
    assert export(config, store) == {"store": store, "values": 0, "registered": 0, "newest": 3}
    assert (tmp_path / "mlflow.db").read_bytes() == before, "the second run writes nothing at all"


def test_tracking_a_further_task_has_its_own_experiment_and_model(
    tmp_path: Path, config: Path, store: str
) -> None:
    config.write_text(f'{config.read_text()}[[tasks]]\nname = "sound"\ntask = "sound.toml"\n')
    play(tmp_path, 1)
    play(tmp_path, 1, 2, settings=load_settings(config).for_task("sound"))
    assert export(config, store)["registered"] == 1
    assert export(config, store, "--task", "sound")["registered"] == 2
    assert len(Written(store).versions) == 1
    found = Written(store, "test~sound")
    assert found.run.data.tags["lichen:fleet"] == "test~sound"
    assert [one.tags["lichen:version"] for one in found.versions] == ["1", "2"]
    done = CliRunner().invoke(app, ["mlflow", "-c", str(config), "--store", store, "--task", "sounds"])
    assert isinstance(done.exception, Misconfigured)
    assert "its [[tasks]] are sound" in str(done.exception)


def test_tracking_what_comes_later_is_added(tmp_path: Path, config: Path, store: str) -> None:
    follower = Follower(load_settings(config), MlflowStore(store, "test", "test"), bundles=False)
    with History(settings_in(tmp_path)) as history:
        history.makes(0)
        history.opens(1, ["a"])
        history.delivers(1, ["a"])
        history.makes(1, ["a"], evaluated=False)
        history.stands(RoundPhase.EVALUATING, 1, 1)
        first = follower.copy()
        assert first is not None
        assert (first.values, first.registered) == (8, 0)
        assert follower.copy() is None, "nothing was written to the tables"
        history.evaluates(1)
        asyncio.run(history.exports(1, b"a bundle"))
        second = follower.copy()
        assert second is not None
        assert (second.values, second.registered, second.aliases) == (4, 1, 2)
        assert Written(store).run.info.status == "RUNNING"
    follower.close()
    found = Written(store)
    assert [step for step, _ in found.values("accuracy")] == [0, 1]
    assert not list(folder_of(found.versions[0]).glob("*.bundle"))
    (tmp_path / "coordinator" / "run_id").write_text("cd" * 16)
    export(config, store)
    assert len(Written(store).runs) == 2, "a training that began anew is another run"


def folder_of(version: Any) -> Path:
    return Path(urlsplit(str(version.source)).path)


@contextmanager
def command(config: Path, store: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    log = config.with_name("mlflow.log")
    line = [sys.executable, "-P", "-m", "lichen.cli", "export", "mlflow", "-c", str(config), "--store", store]
    with log.open("a") as out:
        process = subprocess.Popen(
            [*line, *words], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=out, stderr=out, text=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def registered(file: Path) -> int:
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as tables:
        return int(tables.execute("SELECT count(*) FROM model_versions").fetchone()[0])


def test_tracking_a_kill_is_followed_by_the_rest_and_no_double(
    tmp_path: Path, config: Path, store: str
) -> None:
    count = 40
    play(tmp_path, *range(1, count + 1))
    for stop_at in (2, 9):
        with command(config, store) as process:
            wait_for(lambda: registered(tmp_path / "mlflow.db") >= stop_at)  # noqa: B023 - called in this turn
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    left = export(config, store)
    assert 0 < left["registered"] < count
    found = Written(store)
    assert [int(one.tags["lichen:version"]) for one in found.versions] == list(range(1, count + 1))
    assert [step for step, _ in found.values("accuracy")] == list(range(count + 1))
    assert len(found.runs) == 1


def test_tracking_a_follower_waits_for_a_server_and_goes_on(tmp_path: Path, config: Path) -> None:
    port, log = free_port(), tmp_path / "server.log"
    store = f"http://127.0.0.1:{port}"
    play(tmp_path, 1)
    serve = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    serve += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    serve += ["--artifacts-destination", str(tmp_path / "server-files")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    followed = config.with_name("mlflow.log")
    with command(config, store, "--follow", "--every-s", "0.2") as process:
        wait_for(lambda: "mlflow_not_written" in followed.read_text(), followed.read_text)
        with log.open("w") as out:
            server = subprocess.Popen(
                serve, env={**os.environ, **quiet}, stdout=out, stderr=out, start_new_session=True
            )
        try:
            wait_for(lambda: answers(f"{store}/health"), log.read_text)
            wait_for(lambda: "mlflow_written" in followed.read_text(), followed.read_text)
            bundles = play(tmp_path, 2)
            wait_for(lambda: followed.read_text().count("mlflow_written") >= 2, followed.read_text)
            found = Written(store)
            assert [one.tags["lichen:version"] for one in found.versions] == ["1", "2"]
            folder = found.client.list_artifacts(found.run.info.run_id, "versions/000002")
            name = next(one.path for one in folder if one.path.endswith(".bundle"))
            file = found.client.download_artifacts(found.run.info.run_id, name, str(tmp_path))
            assert Path(file).read_bytes() == bundles[2]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, followed.read_text()
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=1) as answer:  # noqa: S310 - of this machine
            return bool(answer.status == 200)
    except OSError:
        return False


def test_tracking_says_what_is_wrong(tmp_path: Path, config: Path, store: str) -> None:
    def copy(uri: str) -> None:
        follower = Follower(load_settings(config), MlflowStore(uri, "test", "test"))
        try:
            follower.copy()
        finally:
            follower.close()

    with pytest.raises(Transient, match="is not there; has this coordinator ever run"):
        copy(store)
    play(tmp_path, 1)
    with pytest.raises(Misconfigured, match="--store nonsense://x"):
        copy("nonsense://x")
    with pytest.raises(Transient, match=r"--store http://127\.0\.0\.1:9"):
        copy("http://127.0.0.1:9")
    with pytest.raises(Misconfigured, match="maintenance mode"):
        copy(f"file:{tmp_path}/runs")
    done = CliRunner().invoke(app, ["-c", str(config), "mlflow"])
    assert done.exit_code == 2
    assert "options of mlflow go after its name" in done.output
    assert CliRunner().invoke(app, ["-c", str(config)]).exit_code == 2
