"""Pages and operations of versions, and the download of bundles, which reads no other file."""

import hashlib

import pytest

from coordinator.rollout import releases
from coordinator.round_machine.events import RoundPhase
from protocol.bundle import BundleManifest, Variant, pack
from protocol.tasks.task import Task
from runtime.storage.files import write_atomic
from tests.support.console.history import History, digest_of, settings_in
from tests.support.console.serving import served


def bundle(task: Task, size: int = 2_000_000) -> bytes:
    manifest = BundleManifest(
        task=task.name,
        method=task.method,
        version=2,
        labels=task.labels,
        modalities=task.modalities,
        window=task.window,
        inputs=("present", "x"),
        outputs=("probabilities",),
        round=2,
        base=digest_of("version", 2),
        parity={"max_difference": 1e-6, "cases": 26, "tried": [1, 2]},
        variants={"int8": Variant(file="model.int8.onnx", precision="int8", measured={"agreement": 0.994})},
    )
    return pack(manifest, {"model.onnx": bytes(size), "model.int8.onnx": b"small"})


@pytest.mark.both_engines
async def test_console_a_version_shows_its_scores_lineage_and_bundles(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a", "b"])
        history.plays(2, ["a", "b"])
        data = bundle(history.task)
        digest = await history.exports(2, data)
        history.stands(RoundPhase.DONE, 2, 2)
    async with served(settings) as made:
        found = await made.json("/versions")
        assert [one["version"] for one in found["versions"]] == [2, 1, 0]
        assert found["curves"]["scores"]["accuracy"] == pytest.approx([0.5, 2 / 3, 0.75])
        assert list(found["curves"]["losses"]) == ["loss"]
        one = await made.json("/versions/2")
        version = one["version"]
        assert (version["parent_version"], version["parent"]) == (1, digest_of("version", 1))
        assert version["confusion"]["counts"] == [[18, 1, 1], [1, 18, 1], [1, 1, 18]]
        assert version["confusion"]["recall"] == [0.9, 0.9, 0.9]
        [shown] = one["bundles"]
        assert (shown["bundle"]["digest"], shown["variants"][0]["precision"]) == (digest, "int8")
        assert shown["parity"]["cases"] == 26
        page = await made.page("/versions/2")
        assert "slow &lt;i&gt;walk&lt;/i&gt;" in page
        assert "<i>walk" not in page
        assert "person &lt;1&gt;" in page
        assert "same answer on 99.4% of windows" in page
        assert "max difference 1e-06, cases 26" in page
        assert 'href="/versions/1"' in page
        assert "version 3 is not in the history" in await made.page("/versions/3", 404)
        got = await made.client.get(shown["path"])
        assert got.content == data
        name = f'attachment; filename="test-version-2-{digest[:12]}.bundle"'
        assert got.headers["content-disposition"] == name
        assert hashlib.sha256(got.content).hexdigest() == digest
        overview = await made.page("/")
        assert "Version 2" in overview
        assert "0.750" in overview


async def test_console_a_download_reads_bundles_of_that_version_alone(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        history.makes(0)
        history.plays(1, ["a"])
        digest = await history.exports(1, bundle(history.task, 3_000_000))
        other = history.blobs.put(b"a part of the model").digest
        file = history.blob_file(digest)
        history.stands(RoundPhase.DONE, 1, 1)
    (settings.state_dir / "secret").write_text("secret")
    async with served(settings) as made:
        wrong = [other, "0" * 64, "..%2f..%2fsecret", "secret", digest.upper(), digest + "0", "%00"]
        for name in wrong:
            got = await made.client.get(f"/versions/1/bundles/{name}")
            assert got.status_code == 404, name
            assert "secret" not in got.text.replace("/secret", "")
        assert (await made.client.get(f"/versions/0/bundles/{digest}")).status_code == 404
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + b"\x01")
        got = await made.client.get(f"/versions/1/bundles/{digest}")
        assert 0 < len(got.content) < int(got.headers["content-length"]), "the last part never comes"
        file.write_bytes(whole + b"longer")
        assert (await made.client.get(f"/versions/1/bundles/{digest}")).status_code == 503
        file.unlink()
        gone = await made.client.get(f"/versions/1/bundles/{digest}")
        assert (gone.status_code, "not stored any more" in gone.text) == (400, True)
        assert "cannot be read now" in await made.page("/versions/1")
        settings.state_dir.joinpath(releases.FOLDER).mkdir()
        write_atomic(settings.state_dir / releases.FOLDER / digest, whole)
        assert (await made.client.get(f"/versions/1/bundles/{digest}")).content == whole


async def test_console_two_hundred_versions_are_a_small_page_and_few_statements(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        for version in range(201):
            history.makes(version, ["a", "b"])
        history.stands(RoundPhase.DONE, 200, 200)
    async with served(settings) as made:
        before = made.statements
        page = await made.page("/versions")
        assert made.statements - before < 15
        assert len(page.encode()) < 100_000
        assert page.count('<a class="whole" href="/versions/') == 50
        assert "1 to 50 of 201 versions" in page
        static = [one.partition('"')[0] for one in page.split('"/static/')[1:]]
        loaded = 0
        for path in static:
            got = await made.client.get(f"/static/{path}", headers={"accept-encoding": "gzip"})
            loaded += int(got.headers["content-length"])
        assert len(page.encode()) + loaded < 200_000, "the first paint"
        last = await made.json("/versions?page=5")
        assert [one["version"] for one in last["versions"]] == [0]
        assert len(last["curves"]["versions"]) == 201


async def test_console_thousands_of_versions_are_thinned_with_the_newest(tmp_path) -> None:
    settings = settings_in(tmp_path)
    with History(settings) as history:
        with history.store.transaction():
            for version in range(1003):
                history.makes(version, evaluated=False)
        history.evaluates(1002)
        history.stands(RoundPhase.DONE, 1002, 1002)
    async with served(settings) as made:
        curves = (await made.json("/versions"))["curves"]
        assert len(curves["versions"]) <= 401
        assert curves["versions"][-1] == 1002
        assert curves["scores"]["accuracy"][-1] is not None
