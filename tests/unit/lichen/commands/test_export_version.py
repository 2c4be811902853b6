"""A version of a coordinator is exported by its number."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.config.coordinator import load_settings
from coordinator.recovery.blob_place import move_blobs
from coordinator.recovery.folder_owner import own_task
from coordinator.status.history import read as history
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from coordinator.storage.model_registry import ModelRegistry
from coordinator.workers.start_weights import load_start_weights
from lichen.commands.export import app
from lichen.commands.task import app as task_app
from models.contract import Evaluation
from models.registry import method
from models.tensors import flatten, read_npz
from protocol.bundle import unpack
from protocol.errors import Misconfigured
from protocol.tasks.task import Task
from runtime.storage.blob_store import BlobStore
from tests.support.tasks import stream, task_toml

TASK = task_toml(
    name="tiny",
    streams={"acc": stream(2, 8)},
    window={"length_s": 2.0, "stride_s": 1.0},
    network={"feature_dim": 4, "hidden_dim": 8, "encoders": {"acc": {"width": 4, "depth": 1}}},
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a coordinator that made versions 0 to 3, and keeps two."""
    (tmp_path / "task.toml").write_text(TASK)
    file = tmp_path / "coordinator.toml"
    file.write_text(f'fleet = "f"\nstate_dir = "{tmp_path}/state"\ntask = "task.toml"\nkeep_versions = 2\n')
    settings = load_settings(file)
    task = Task.model_validate(tomllib.loads(TASK))
    (tmp_path / "state").mkdir()
    blobs = BlobStore(tmp_path / "state" / "blobs")
    with Database(tmp_path / "state" / DATABASE) as store:
        own_task(store, task, settings)
        registry, parent = ModelRegistry(store, blobs, task), None
        for version in range(4):
            state = method("qqr").client().initial(task, version)
            digest, _ = registry.publish(version, state, parent)
            registry.record(version, digest, parent, ("d",), wall=0.0, traffic=(0, 0), metrics={})
            parent = digest
        registry.collect(3, settings.keep_versions)
    return file


def run(config: Path, out: Path, *words: str):
    return CliRunner().invoke(app, ["--config", str(config), "--out", str(out), *words])


def test_a_version_is_exported_by_its_number_and_the_newest_without(config: Path, tmp_path: Path) -> None:
    for words, version in ((("--version", "2"), 2), ((), 3)):
        done = run(config, tmp_path / "m.zip", *words, "--format", "json")
        assert done.exit_code == 0, done.exception
        assert json.loads(done.stdout)["version"] == version
        manifest, _ = unpack((tmp_path / "m.zip").read_bytes())
        assert (manifest.version, manifest.task) == (version, "tiny")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("1", r"--version 1 is gone: .*keeps the newest 2 \(keep_versions\); here: 2, 3"),
        ("9", r"--version 9: the coordinator of .* never made it \(here: 2, 3\)"),
    ],
)
def test_a_version_that_is_not_there_is_refused_with_those_that_are(
    config: Path, tmp_path: Path, number: str, words: str
) -> None:
    done = run(config, tmp_path / "m.zip", "--version", number)
    assert isinstance(done.exception, Misconfigured)
    with pytest.raises(Misconfigured, match=words):
        raise done.exception
    assert not (tmp_path / "m.zip").exists()


def test_a_coordinator_that_never_ran_is_named(config: Path, tmp_path: Path) -> None:
    (tmp_path / "state" / DATABASE).unlink()
    assert "has this coordinator ever run?" in str(run(config, tmp_path / "m.zip").exception)


@pytest.mark.long
def test_the_best_version_is_kept_and_exported_by_that_word(config: Path, tmp_path: Path) -> None:
    done = run(config, tmp_path / "m.zip", "--version", "best")
    assert "has evaluated no version" in str(done.exception)
    settings = load_settings(config)
    task = Task.model_validate(tomllib.loads(TASK))
    with Database(tmp_path / "state" / DATABASE) as store:
        registry = ModelRegistry(store, BlobStore(tmp_path / "state" / "blobs"), task)
        for version, accuracy in ((2, 0.9), (3, 0.8)):
            registry.record_evaluation(version, Evaluation({"accuracy": accuracy, "macro_f1": 0.5}, [[1]]))
        row = registry.row(3)
        assert row is not None
        parent = row["manifest"]
        for version in range(4, 9):
            digest, _ = registry.publish(version, method("qqr").client().initial(task, version), parent)
            registry.record(
                version,
                digest,
                parent,
                ("d",),
                wall=0.0,
                traffic=(0, 0),
                metrics={"accuracy": 0.9, "macro_f1": 0.1},
            )
            parent = digest
        registry.collect(8, settings.keep_versions)
        state = registry.state(registry.row(2)["manifest"])  # type: ignore[index]
        assert {*state} >= {"head", "encoder/acc"}, "its blobs are whole"
    done = run(config, tmp_path / "m.zip", "--version", "best", "--format", "json")
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["version"] == 2
    assert history(tmp_path / "state")["best"] == {"version": 2, "metric": "accuracy", "value": 0.9}
    gone = run(config, tmp_path / "m.zip", "--version", "3")
    assert "here: 2, 7, 8" in str(gone.exception)
    assert "a number, or best" in str(run(config, tmp_path / "m.zip", "--version", "newest").exception)


def test_a_task_with_a_class_more_begins_from_a_version(config: Path, tmp_path: Path) -> None:
    grown, out = tmp_path / "grown.toml", tmp_path / "start.npz"
    grown.write_text(TASK.replace("labels = [", 'labels = ["new", '))
    words = ["grow", str(grown), "--from", str(config), "--version", "2", "--out", str(out)]
    done = CliRunner().invoke(task_app, [*words, "--format", "json"])
    assert done.exit_code == 0, done.exception
    told = json.loads(done.stdout)
    assert (told["version"], told["new"]) == (2, [])
    assert {*told["partly"].values()} == {"new of class new"}
    with Database(tmp_path / "state" / DATABASE) as store:
        blobs = BlobStore(tmp_path / "state" / "blobs")
        registry = ModelRegistry(store, blobs, Task.model_validate(tomllib.loads(TASK)))
        before = flatten(registry.state(registry.row(2)["manifest"]))  # type: ignore[index]
    made = read_npz(out)
    np.testing.assert_array_equal(made["head/fc2.weight"][1:], before["head/fc2.weight"])
    fresh = method("qqr").client().initial(Task.model_validate(tomllib.loads(grown.read_text())), 0)
    assert {*load_start_weights(fresh, out)} == {*fresh}, "a coordinator of that task takes them"
    again = CliRunner().invoke(task_app, words)
    assert "--force" in str(again.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", "c.toml", "--blobs", "b"], "exclude each other"),
        (["--blobs", "b", "--manifest", "m"], "--task is missing"),
        (["--blobs", "b", "--manifest", "m", "--task", "t", "--version", "1"], "--version goes with"),
    ],
)
def test_one_way_or_the_other(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "m.zip")], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.long
def test_a_version_is_exported_from_a_bucket(config: Path, tmp_path: Path, bucket: str) -> None:
    moved = move_blobs(load_settings(config), bucket)
    assert moved.blobs > 2
    shutil.rmtree(tmp_path / "state/blobs")
    config.write_text(config.read_text() + f'[storage]\nblobs = "{bucket}"\n')
    done = run(config, tmp_path / "m.zip", "--format", "json")
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["version"] == 3
    done = run(config, tmp_path / "m.zip", "--version", "0")
    assert isinstance(done.exception, Misconfigured)
    assert "here: 2, 3" in str(done.exception)
