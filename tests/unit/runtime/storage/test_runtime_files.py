import errno
import os
import time
from types import SimpleNamespace

import pytest

from protocol.errors import LichenError, Misconfigured, Transient
from runtime.storage.blob_store import BlobStore
from runtime.storage.files import disk_errors, disk_trouble, sweep, sweep_below, write_atomic


def test_a_folder_below_a_plain_file_is_misconfigured_and_named(tmp_path):
    (tmp_path / "plain").write_text("x")
    path = tmp_path / "plain" / "state" / "task.json"
    with pytest.raises(Misconfigured, match=r"plain/state/task\.json: Not a directory"):
        write_atomic(path, b"x")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOTDIR, Misconfigured),
        (errno.EISDIR, Misconfigured),
        (errno.EEXIST, Misconfigured),
        (errno.EROFS, Misconfigured),
        (errno.ENOSPC, Transient),
        (errno.ENOENT, Transient),
        (errno.EIO, Transient),
        (errno.EROFS, Transient),  # for a daemon that runs; one that starts ends with 78
        (errno.EBADF, OSError),
    ],
)
def test_the_disks_errors_are_sorted(tmp_path, number, kind):
    with pytest.raises(kind), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_a_disk_that_fails_is_called_what_it_is(tmp_path):
    for number, words in ((errno.EIO, "the disk fails"), (errno.EROFS, "is read-only")):
        with pytest.raises(LichenError, match=words), disk_errors(tmp_path):
            raise OSError(number, os.strerror(number))


def test_a_blob_store_below_a_plain_file_is_misconfigured(tmp_path):
    (tmp_path / "plain").write_text("x")
    with pytest.raises(Misconfigured, match="plain"):
        BlobStore(tmp_path / "plain" / "blobs").put(b"x")


def test_what_a_power_cut_left_of_a_write_is_swept_away(tmp_path):
    write_atomic(tmp_path / "kept", b"1")
    (tmp_path / ".tmp-0a1b").write_bytes(b"half")
    sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_left_overs_of_power_cuts_in_the_folders_of_a_state_folder_are_swept(tmp_path):
    """All but those that a command may be writing at this moment."""
    old, young = time.time() - 3600, time.time()
    for folder in (tmp_path, *(tmp_path / name for name in ("private", "trust", "models", "identity"))):
        folder.mkdir(exist_ok=True)
        for name, when in ((".tmp-0a1b", old), (".tmp-9f9f", young), ("kept", old)):
            (folder / name).write_bytes(b"half")
            os.utime(folder / name, (when, when))
    sweep_below(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    names = ("", "identity/", "models/", "private/", "trust/")
    assert left == sorted(name + file for name in names for file in (".tmp-9f9f", "kept"))


def test_what_is_wrong_with_a_disk_is_said(tmp_path, monkeypatch):
    assert disk_trouble(tmp_path) == ""
    assert disk_trouble(tmp_path / "none") == f"{tmp_path / 'none'} is gone"
    monkeypatch.setattr("runtime.storage.files.shutil.disk_usage", lambda _: SimpleNamespace(free=4096))
    assert disk_trouble(tmp_path) == f"the disk of {tmp_path} is full"
