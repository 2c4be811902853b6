import errno
import os

import pytest

from protocol.errors import Misconfigured, Transient
from runtime.blobs import BlobStore
from runtime.files import disk_errors, write_atomic


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
        (errno.EIO, OSError),
    ],
)
def test_the_disks_errors_are_sorted(tmp_path, number, kind):
    with pytest.raises(kind), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


def test_a_blob_store_below_a_plain_file_is_misconfigured(tmp_path):
    (tmp_path / "plain").write_text("x")
    with pytest.raises(Misconfigured, match="plain"):
        BlobStore(tmp_path / "plain" / "blobs").put(b"x")
