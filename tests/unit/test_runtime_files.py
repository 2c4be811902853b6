import errno
import os

import pytest

from protocol.errors import LichenError, Misconfigured, Transient
from runtime.blobs import BlobStore
from runtime.files import disk_errors, sweep, write_atomic


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
