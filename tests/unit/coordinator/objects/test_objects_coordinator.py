"""A coordinator whose blobs and accepted updates are in a bucket."""

import shutil

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.objects.contract import StoreUnusable
from coordinator.recovery.blob_place import move_blobs
from coordinator.recovery.bucket_watch import waits
from coordinator.recovery.open_stores import open_stores
from coordinator.recovery.state_folder import open_storage
from protocol.errors import Misconfigured, Transient
from protocol.topics import Kind
from runtime.clock import SystemClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import frame, header, settings_for, tiny_task
from tests.support.network.object_store import SECRET, hostile, objects_at
from tests.support.tasks import stream, task_toml

TASK = task_toml(streams={"acc": stream(2, 8)}, window={"length_s": 2.0, "stride_s": 1.0})


def storage(url: str, **changes: object) -> dict:
    return {"storage": {"blobs": url, "timeout_s": 1.0} | changes}


async def deliver(made, device: str) -> None:
    state = made.app.driver.state
    await made.give(device, Kind.UPDATE, frame(header(device, state.round, state.manifest)))


async def test_an_outage_costs_no_update_and_is_seen_and_rounds_go_on(bucket, tmp_path) -> None:
    with hostile(bucket) as (proxy, url):
        async with bench(tmp_path, tiny_task(count=2), **storage(url)) as made:
            await made.online("a")
            await made.phase("collecting")
            proxy.fault = lambda handler, _: handler.error(503, "SlowDown")
            await deliver(made, "a")
            assert made.link.receipts("a") == [], "no receipt before the bytes are durable"
            assert list(made.app.driver.state.delivered) == []
            store = made.app.storage.store
            [wait] = await made.until(lambda: waits(store))
            assert wait.what == "bucket"
            assert "503 SlowDown" in wait.why
            assert SECRET not in wait.why
            proxy.fault = lambda *_: False
            await deliver(made, "a")
            assert [one.status for one in made.link.receipts("a")] == ["accepted"]
            await made.until(lambda: made.app.driver.state.version == 1)
            await made.until(lambda: not waits(store))
            assert {found.key.split("/")[0] for found in objects_at(bucket).below("blobs")} == {"blobs"}
            assert not (tmp_path / "coordinator/blobs").exists()
            manifest = made.app.driver.state.manifest
        shutil.rmtree(tmp_path / "coordinator/cache")
        async with bench(tmp_path, tiny_task(count=2), **storage(url)) as made:
            assert made.app.driver.state.manifest == manifest
            assert made.app.storage.blobs.has(manifest)


async def test_accepted_updates_of_an_open_round_outlive_the_machine(bucket, tmp_path) -> None:
    """The folder of copies is gone at the restart; the frames are in the bucket."""
    task = tiny_task(min_devices=2)
    async with bench(tmp_path, task, **storage(bucket)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "a")
        assert [one.status for one in made.link.receipts("a")] == ["accepted"]
    async with bench(tmp_path, task, **storage(bucket)) as made:
        await made.until(lambda: made.app.audit.looked_at == 1)
        assert list(made.app.driver.state.delivered) == ["a"]
        await made.online("a", "b")
        await deliver(made, "b")
        await made.until(lambda: made.app.driver.state.version == 1)
        row = made.app.round_worker.registry.row(1)
        assert row["devices"] == ["a", "b"]


async def test_a_lost_database_is_rebuilt_from_the_bucket(bucket, tmp_path) -> None:
    task = tiny_task(min_devices=2)
    async with bench(tmp_path, task, **storage(bucket)) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        base = made.app.driver.state.manifest
        await deliver(made, "a")
    root = tmp_path / "coordinator"
    for file in root.glob("coordinator.sqlite3*"):
        file.unlink()
    (root / "coordinator.sqlite3").write_bytes(b"damaged" * 1000)
    with open_storage(
        settings_for(tmp_path, 1, **storage(bucket)), task, SystemClock(), keeps_messages=False
    ) as opened:
        state = opened.store.journal()
        assert any(base in str(event) for event in state)
        assert list(opened.journal.digests_of(1)) == ["a"]


@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchBucket"), (403, "InvalidAccessKeyId")])
def test_a_start_without_the_bucket_names_the_setting(bucket, tmp_path, status, code) -> None:
    with hostile(bucket) as (proxy, url):
        proxy.fault = lambda handler, _: handler.error(status, code)
        settings = settings_for(tmp_path, 1, **storage(url))
        with pytest.raises(StoreUnusable, match=r"^storage\.blobs: s3://") as caught:
            open_stores(settings.storage, tmp_path)
        assert isinstance(caught.value, Misconfigured)
        assert SECRET not in str(caught.value)
        proxy.fault = lambda handler, _: handler.error(503, "SlowDown")
        with pytest.raises(Transient, match="503 SlowDown") as later:
            open_stores(settings.storage, tmp_path)
        assert not isinstance(later.value, Misconfigured), "a start that is tried again"
    with pytest.raises(Misconfigured, match=r"storage\.ca_file: .* No such file"):
        open_stores(
            settings_for(tmp_path, 1, **storage(bucket, ca_file=str(tmp_path / "none"))).storage, tmp_path
        )


def test_the_command_that_checks_a_configuration_tries_the_bucket(bucket, tmp_path) -> None:
    (tmp_path / "task.toml").write_text(TASK)
    file = tmp_path / "coordinator.toml"
    for name, works in ((bucket, True), (bucket.replace("s3://lichen-", "s3://nobody-"), False)):
        file.write_text(
            f'fleet = "f"\nstate_dir = "{tmp_path}/s"\ntask = "task.toml"\n[storage]\nblobs = "{name}"\n'
        )
        done = CliRunner().invoke(app, ["check", "--config", str(file)])
        assert (done.exit_code == 0) == works, done.output
        assert works or "there is no such bucket: create it" in str(done.exception)


async def test_blobs_move_to_a_bucket_and_back_with_the_open_round(bucket, tmp_path) -> None:
    """A start in another place is refused: it would report accepted updates as lost."""
    task, folder = tiny_task(min_devices=2), {"storage": {}}
    async with bench(tmp_path, task, **folder) as made:
        await made.online("a", "b")
        await made.phase("collecting")
        await deliver(made, "a")
    with pytest.raises(Misconfigured, match=r"^storage\.blobs: .* in folder, not in s3://.*move-blobs"):
        async with bench(tmp_path, task, **storage(bucket)):
            pass
    moved = move_blobs(settings_for(tmp_path, 1, **folder), bucket)
    assert (moved.blobs, moved.frames, moved.damaged) == (len(list(moved_from(tmp_path))), 1, ())
    with pytest.raises(Misconfigured, match=r"^storage\.blobs: .* in s3://"):
        async with bench(tmp_path, task, **folder):
            pass
    shutil.rmtree(tmp_path / "coordinator/blobs")
    shutil.rmtree(tmp_path / "coordinator/updates")
    async with bench(tmp_path, task, **storage(bucket)) as made:
        await made.until(lambda: made.app.audit.looked_at == 1)
        assert list(made.app.driver.state.delivered) == ["a"]
        with pytest.raises(Misconfigured, match=r"another .* runs"):
            move_blobs(settings_for(tmp_path, 1, **storage(bucket)), "folder")
    settings = settings_for(tmp_path, 1, **storage(bucket))
    assert move_blobs(settings, "folder").frames == 1
    async with bench(tmp_path, task, **folder) as made:
        await made.until(lambda: made.app.audit.looked_at == 1)
        await made.online("a", "b")
        await deliver(made, "b")
        await made.until(lambda: made.app.driver.state.version == 1)
        assert made.app.round_worker.registry.row(1)["devices"] == ["a", "b"]


def moved_from(root):
    return (root / "coordinator/blobs").glob("??/*")
