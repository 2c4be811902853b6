"""``lichen data fetch`` and ``lichen data ls``: whole or not at all, and only what was published."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lichen_lab.simulation.data import fetch
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.access.download import DownloadLimits
from lichen_lab.simulation.data.sets import uci_har, uci_har_digests, uci_har_official
from lichen_lab.simulation.data_cli import app
from models.tensors import read_arrays
from protocol.errors import Misconfigured, Reason, Refused, Transient
from runtime.outputs import NotWritten
from runtime.storage.folder_lock import FolderLock
from tests.support.lab import made_data
from tests.support.network import file_server as server
from tests.support.network.file_server import serving

PARTS = made_data.har_parts()
ARCHIVE = made_data.nested(made_data.zipped(made_data.har_texts(PARTS)))
LIMITS = DownloadLimits(max_bytes=10_000_000, silence_s=20.0, pause_s=0.0, attempts=3)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, nothing elsewhere, and the small made data in the place of the published."""
    monkeypatch.delenv("LICHEN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(locations, "beside_checkout", lambda: tmp_path / "none")
    monkeypatch.setattr(
        uci_har_digests, "DIGESTS", {part: uci_har_digests.digest(PARTS[part]) for part in PARTS}
    )
    return locations.cache_folder()


@pytest.fixture
def given(tmp_path: Path) -> Path:
    (tmp_path / "given.zip").write_bytes(ARCHIVE)
    return tmp_path / "given.zip"


def nothing_kept(cache: Path) -> bool:
    return not cache.exists() or [file.name for file in cache.iterdir()] in ([], [".fetch.lock"])


def test_a_fetched_set_is_what_was_in_the_archive_and_is_found(cache: Path) -> None:
    with serving(ARCHIVE, server.cut(0.4), server.rest) as served:
        done = fetch.fetch_uci_har(url=served.url, limits=LIMITS)
    assert (done.folder, done.fresh, done.windows) == (cache / "uci_har", True, {"train": 5, "test": 4})
    assert sorted(file.name for file in cache.iterdir()) == [".fetch.lock", "uci_har"]
    split = uci_har.load("train")
    assert np.array_equal(split.windows.x["accelerometer"], PARTS["train"]["x"][:, 6:])
    arrays = read_arrays(uci_har.packed("test"), "it")
    assert arrays["channels"].tolist() == list(uci_har.CHANNELS)
    assert arrays["class_names"].tolist()[1] == "WALKING_UPSTAIRS"
    assert not arrays["continues_previous"].any()


def test_an_archive_that_was_not_read_is_said_to_be_so(cache: Path, given: Path) -> None:
    done = [CliRunner().invoke(app, ["fetch", "uci-har", "--from", str(given)]).stdout for _ in range(2)]
    assert "was not read" not in done[0]
    assert f"{given} was not read (--force reads it)" in done[1]
    assert cache.is_dir()


def test_what_is_here_is_not_fetched_again_unless_forced(cache: Path, given: Path) -> None:
    fetch.fetch_uci_har(given)
    before = (cache / "uci_har" / "uci_har_train.npz").stat()
    assert not fetch.fetch_uci_har(url="http://127.0.0.1:1/").fresh
    assert (cache / "uci_har" / "uci_har_train.npz").stat().st_ino == before.st_ino
    assert fetch.fetch_uci_har(given, force=True).fresh
    assert (cache / "uci_har" / "uci_har_train.npz").stat().st_ino != before.st_ino


def test_a_damaged_copy_in_the_cache_is_replaced_and_one_elsewhere_is_said(
    cache: Path, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch.fetch_uci_har(given)
    (cache / "uci_har" / "uci_har_test.npz").write_bytes(b"damaged")
    assert fetch.fetch_uci_har(given).fresh
    assert not fetch.fetch_uci_har(given).fresh
    other = made_data.har_parts(6)
    made_data.write_har(tmp_path / "own", other)
    monkeypatch.setenv("LICHEN_DATA", str(tmp_path / "own"))
    with pytest.raises(Misconfigured, match=r"own/uci_har: the train windows \(6\).*asked before the cache"):
        fetch.fetch_uci_har(given)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            made_data.nested(made_data.zipped(made_data.har_texts(made_data.har_parts(6)))),
            Reason.WRONG_DIGEST,
        ),
        (made_data.zipped(made_data.har_texts(PARTS, digits=5)), Reason.WRONG_DIGEST),
        (b"<!doctype html>", Reason.MALFORMED),
        (ARCHIVE[:-100], Reason.MALFORMED),
        (made_data.zipped({"other.txt": b"1"}), Reason.MALFORMED),
        (bytes(10_000_001), Reason.TOO_LARGE),
    ],
)
def test_of_what_is_not_the_published_set_nothing_is_kept(
    cache: Path, content: bytes, reason: Reason
) -> None:
    with serving(content) as served, pytest.raises(Refused) as said:
        fetch.fetch_uci_har(url=served.url, limits=LIMITS)
    assert said.value.reason is reason
    assert served.url in said.value.detail
    assert nothing_kept(cache)


def test_one_other_value_one_other_label_and_one_other_person_are_found() -> None:
    whole = uci_har_digests.digest(PARTS["train"])
    for key in ("x", "y", "subject"):
        changed = {name: array.copy() for name, array in PARTS["train"].items()}
        changed[key].reshape(-1)[-1] += 1
        assert uci_har_digests.digest(changed) != whole
    swapped = {name: array[::-1] for name, array in PARTS["train"].items()}
    assert uci_har_digests.digest(swapped) != whole
    wide = {**PARTS["train"], "y": PARTS["train"]["y"].astype(np.int64)}
    assert uci_har_digests.digest(wide) == whole


def test_a_failed_fetch_leaves_the_old_copy(cache: Path, given: Path) -> None:
    fetch.fetch_uci_har(given)
    with serving(ARCHIVE, server.says(404)) as served, pytest.raises(Misconfigured, match=r"404.*--from"):
        fetch.fetch_uci_har(force=True, url=served.url, limits=LIMITS)
    with serving(ARCHIVE, server.cut(0.1, etag=None)) as served, pytest.raises(Transient, match="--from"):
        fetch.fetch_uci_har(force=True, url=served.url, limits=LIMITS)
    assert len(uci_har.load("train")) == 5
    assert sorted(file.name for file in cache.iterdir()) == [".fetch.lock", "uci_har"]


def test_a_death_while_packing_leaves_nothing_that_looks_whole(
    cache: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def write(folder: Path, _parts: Any) -> None:
        (folder / "uci_har_train.npz").write_bytes(b"half")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(uci_har_digests, "write", write)
        patch.setattr(fetch, "_sweep", lambda _cache: None)  # a killed process sweeps nothing
        with pytest.raises(Killed):
            fetch.fetch_uci_har(given)
    with pytest.raises(Misconfigured, match="uci_har is not here"):
        uci_har.load("train")
    assert fetch.fetch_uci_har(given).fresh
    assert sorted(file.name for file in cache.iterdir()) == [".fetch.lock", "uci_har"]


def test_two_fetches_do_not_meet(cache: Path, given: Path) -> None:
    cache.mkdir(parents=True)
    owner = FolderLock(cache / ".fetch.lock", "test")
    with pytest.raises(Misconfigured, match="another lichen data fetch runs"):
        fetch.fetch_uci_har(given)
    owner.close()
    assert fetch.fetch_uci_har(given).fresh


@pytest.mark.usefixtures("cache")
def test_a_cache_that_cannot_be_made_is_said(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(given))  # a file
    with pytest.raises(NotWritten, match=r"given\.zip"):
        fetch.fetch_uci_har(given)


@pytest.mark.usefixtures("cache")
def test_the_commands_say_what_is_here_as_a_table_and_as_json(given: Path) -> None:
    said = CliRunner().invoke(app, ["ls"])
    assert "not here: lichen data fetch uci-har" in said.stdout
    said = CliRunner().invoke(app, ["fetch", "uci-har", "--from", str(given), "--format", "json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["windows"] == {"train": 5, "test": 4}
    said = CliRunner().invoke(app, ["fetch", "uci-har"])
    assert "5 train windows and 4 test windows, as published; it was here already" in said.stdout
    said = CliRunner().invoke(app, ["ls", "--format", "json"])
    (har,) = [row for row in json.loads(said.stdout) if row["name"] == "uci-har"]
    assert har["here"]
    assert har["folders"] == [str(locations.cache_folder() / "uci_har")]
    assert har["bytes"] == sum(file.stat().st_size for file in Path(har["folders"][0]).iterdir())
    assert har["otherwise"] is None


@pytest.mark.usefixtures("cache")
def test_an_incomplete_set_is_not_called_here(given: Path) -> None:
    fetch.fetch_uci_har(given)
    uci_har.packed("test").unlink()
    rows = json.loads(CliRunner().invoke(app, ["ls", "--format", "json"]).stdout)
    assert [row["here"] for row in rows if row["name"] == "uci-har"] == [False]


def test_a_wrong_lichen_data_is_said_and_not_taken_for_missing_sets(
    cache: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LICHEN_DATA", "/not/there")
    for words in (["ls"], ["fetch", "uci-har", "--from", str(given)]):
        error = CliRunner().invoke(app, words).exception
        assert isinstance(error, Misconfigured)
        assert "LICHEN_DATA=/not/there" in str(error)
    assert nothing_kept(cache)


def test_runs_are_joined_where_the_first_half_repeats_the_last() -> None:
    parts = made_data.har_parts()
    x = parts["train"]["x"]
    x[2, :, :64] = x[1, :, 64:]
    x[4, :8, :64] = x[3, :8, 64:]  # one channel does not
    assert uci_har_digests._continues(parts["train"]).tolist() == [False, False, True, False, False]


def test_the_official_names_are_those_of_the_archive() -> None:
    assert uci_har_official.name_of("test", "total_acc_z") == "test/Inertial Signals/total_acc_z_test.txt"
    assert uci_har_official.FILES == 22
