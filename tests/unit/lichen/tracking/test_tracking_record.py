"""What a follower reads of a coordinator's tables, and the entries that it makes of it."""

import asyncio
import json
from pathlib import Path

import pytest

from coordinator.rollout.model import Begun
from coordinator.rollout.store import RolloutStore
from coordinator.round_machine.events import RoundPhase
from coordinator.status.versions import BundleRow, VersionRow
from lichen.tracking.entries import entry_name, lineage_tags, metrics_of, missing_metrics, params_of
from lichen.tracking.fleet_record import VersionLineage, read_lineage, read_record
from protocol.errors import Reason, Refused, Transient
from tests.support.console.history import NOW, History, digest_of, settings_in
from tests.support.coordinator.rollouts import release
from tests.support.tasks import sensors, small_task


@pytest.mark.both_engines
def test_tracking_a_record_has_versions_task_and_stable_release(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        for number in (1, 2, 3):
            history.plays(number, ["a", "b"])
        history.stands(RoundPhase.DONE, 3, 3)
        with RolloutStore(settings.location) as book:
            book.play(Begun(mode="manual", release=release(2)), NOW)
        (settings.state_dir / "run_id").write_text("ab" * 16)
        with history.store.snapshot():
            whole = read_record(history.store, settings, 0)
            part = read_record(history.store, settings, 2)
    assert [row.version for row in whole.versions] == [0, 1, 2, 3]
    assert (whole.fleet, whole.run, whole.task.name, whole.done) == ("test", "ab" * 16, "t", True)
    assert (whole.stable, whole.best) == (2, 3)
    assert whole.manifests[3] == digest_of("version", 3)
    assert [row.version for row in part.versions] == [2, 3]


def test_tracking_a_lineage_names_the_updates_that_count(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        history.opens(2, ["a", "b", "c"])
        history.delivers(2, ["a", "b", "c"])
        history.refuses(2, "c", Refused(Reason.OUTLIER, "far away"))
        history.makes(2, ["a", "b"])
        asyncio.run(history.exports(2, b"a bundle"))
        found = read_lineage(history.store, 2, after=0)
        row = read_record(history.store, settings, 2).versions[0]
        assert read_lineage(history.store, 7, after=0) is None
    assert found is not None
    assert (found.parent, found.parent_version) == (digest_of("version", 1), 1)
    assert [one["version"] for one in found.chain] == [2, 1]
    assert found.chain[0]["updates"] == {name: digest_of(2, name) for name in ("a", "b")}
    tags = lineage_tags(found, row)
    assert tags["lichen:parent_version"] == "1"
    assert tags["lichen:devices"] == "2"
    assert tags["lichen:updates"] == ", ".join(f"{name} {digest_of(2, name)[:16]}" for name in ("a", "b"))
    assert tags["lichen:accuracy"] == "0.75"
    assert json.loads(found.as_json())["versions"][1]["manifest"] == digest_of("version", 1)


def test_tracking_a_coordinator_without_a_task_is_waited_for(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings.state_dir.mkdir(parents=True)
    with settings.location.database() as store, pytest.raises(Transient, match="has no task yet"):
        read_record(store, settings, 0)


def row(version: int, **metrics: float) -> VersionRow:
    return VersionRow(
        version=version,
        wall=12.5,
        devices=3,
        metrics=metrics,
        bytes_up=10,
        bytes_down=None,
        bundles=0,
        trouble="",
    )


def test_tracking_only_values_that_the_store_lacks_are_written() -> None:
    rows = [row(1, accuracy=0.5), row(2, **{"speed/r2": 0.1, "a?b": 2.0})]
    every = {(one.name, one.step, one.value, one.wall_ms) for one in missing_metrics(rows, {})}
    assert every == {
        ("accuracy", 1, 0.5, 12_500),
        ("speed/r2", 2, 0.1, 12_500),
        ("a_b", 2, 2.0, 12_500),
        *(
            (name, step, value, 12_500)
            for step in (1, 2)
            for name, value in (("devices", 3.0), ("bytes_up", 10.0))
        ),
    }
    there = {"accuracy": {1}, "devices": {1, 2}, "bytes_up": {1}}
    left = [(one.name, one.step) for one in missing_metrics(rows, there)]
    assert left == [("speed/r2", 2), ("a_b", 2), ("bytes_up", 2)]
    assert metrics_of(row(1))[0].name == "devices"
    assert entry_name("///") == "_"


def test_tracking_parameters_are_all_keys_of_the_task() -> None:
    params = params_of(small_task(sensors(acc=(3, 10)), config={"epochs": 2}))
    assert params["modalities.acc.channels"] == "3"
    assert params["config.epochs"] == "2"
    assert params["labels"] == '["a", "b", "c"]'
    assert params["method"] == "qqr"


def test_tracking_a_fleet_of_thousands_fits_into_a_tag() -> None:
    updates = {f"device-{number:05d}": "f" * 64 for number in range(1000)}
    step = {"version": 1, "manifest": "m", "parent": None, "devices": 5000, "updates": updates}
    bundle = BundleRow(digest="d" * 64, size=1, wall=None, route="", devices=None, metrics={})
    tags = lineage_tags(VersionLineage(1, "m", None, None, (bundle,), (step,)), row(1))
    assert max(map(len, tags.values())) <= 5000
    assert tags["lichen:updates"].endswith("more")
    assert tags["lichen:parent_version"] == ""
