import errno
import hashlib
import os
import random

import pytest

from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.messages import BlobRef
from runtime.storage.blob_store import BlobStore
from runtime.storage.disk import DISK, Disk
from runtime.storage.files import write_atomic


def _ref(data: bytes) -> BlobRef:
    return BlobRef(digest=hashlib.sha256(data).hexdigest(), size=len(data))


@pytest.fixture
def store(tmp_path):
    return BlobStore(tmp_path / "blobs")


def test_put_get_has_path(store):
    ref = store.put(b"hello")
    assert ref == _ref(b"hello")
    assert store.put(b"hello") == ref
    assert store.has(ref.digest)
    assert store.get(ref.digest) == store.path(ref.digest).read_bytes() == b"hello"
    assert store.total_bytes() == 5


def test_what_is_not_here_is_a_key_error_and_a_path_is_no_digest(store):
    with pytest.raises(KeyError):
        store.get("0" * 64)
    with pytest.raises(KeyError):
        store.read_chunk("0" * 64, 0, 10)
    with pytest.raises(ValueError, match="not a digest"):
        store.path("../../etc/passwd")


def test_a_corrupt_blob_is_refused_and_removed(store):
    ref = store.put(b"hello")
    store.path(ref.digest).write_bytes(b"hellO")
    with pytest.raises(Refused) as caught:
        store.get(ref.digest)
    assert caught.value.reason is Reason.WRONG_DIGEST
    assert not store.has(ref.digest)


def test_a_torn_file_of_a_crash_is_replaced_by_put(store):
    ref = store.put(b"hello")
    store.path(ref.digest).write_bytes(b"he")
    store.put(b"hello")
    assert store.get(ref.digest) == b"hello"


def test_chunks(store):
    ref = store.put(b"0123456789")
    assert [store.read_chunk(ref.digest, i, 4) for i in range(3)] == [b"0123", b"4567", b"89"]
    for index, size in ((3, 4), (-1, 4), (0, 0)):
        with pytest.raises(Refused, match="has no chunk"):
            store.read_chunk(ref.digest, index, size)


def test_a_partial_download_survives_a_restart_in_any_order(tmp_path):
    data = random.Random(1).randbytes(1050)
    order = list(range(11))
    random.Random(2).shuffle(order)
    for index in order:
        partial = BlobStore(tmp_path).partial(_ref(data), 100)  # a new process every time
        assert partial.add(index, data[index * 100 : index * 100 + 100])
        assert not partial.add(index, data[index * 100 : index * 100 + 100])
    again = BlobStore(tmp_path).partial(_ref(data), 100)
    assert again.complete
    assert again.missing() == ()
    assert again.finish() == _ref(data)
    assert BlobStore(tmp_path).get(_ref(data).digest) == data
    assert BlobStore(tmp_path).total_bytes() == len(data)


def test_wrong_bytes_begin_anew(store):
    data = bytes(250)
    partial = store.partial(_ref(data), 100)
    for index, chunk in enumerate((bytes(100), b"x" * 100, bytes(50))):
        partial.add(index, chunk)
    with pytest.raises(Refused, match="differs"):
        partial.finish()
    assert partial.missing() == ((0, 2),)
    for index in range(3):
        partial.add(index, bytes(100 if index < 2 else 50))
    assert partial.finish() == _ref(data)


def test_a_chunk_that_does_not_fit_is_refused(store):
    partial = store.partial(_ref(bytes(250)), 100)
    for index, length in ((0, 99), (2, 100), (3, 50), (-1, 100)):
        with pytest.raises(Refused):
            partial.add(index, bytes(length))
    assert partial.missing() == ((0, 2),)
    with pytest.raises(ValueError, match="not complete"):
        partial.finish()


def test_another_chunk_size_or_a_torn_map_begins_anew(store, tmp_path):
    data = bytes(250)
    store.partial(_ref(data), 100).add(0, bytes(100))
    assert store.partial(_ref(data), 50).missing() == ((0, 4),)
    assert store.partial(_ref(data), 100).missing() == ((0, 2),)
    store.partial(_ref(data), 100).add(0, bytes(100))
    next((tmp_path / "blobs" / "partial").glob("*.map")).write_bytes(b"")
    assert store.partial(_ref(data), 100).missing() == ((0, 2),)


def test_a_map_that_promises_too_much_is_found_by_the_digest(store, tmp_path):
    """A power cut may write the map and not the bytes."""
    data = b"x" * 250
    partial = store.partial(_ref(data), 100)
    for index in range(3):
        partial.add(index, data[:100] if index < 2 else data[:50])
    next((tmp_path / "blobs" / "partial").glob("*.part")).write_bytes(b"")
    with pytest.raises(Refused):
        store.partial(_ref(data), 100).finish()


def test_an_empty_blob(store):
    partial = store.partial(_ref(b""), 100)
    assert partial.complete
    assert store.get(partial.finish().digest) == b""


def test_collect_frees_the_oldest_and_keeps_what_is_named(store):
    refs = [store.put(bytes([i]) * 100) for i in range(5)]
    for age, ref in enumerate(refs):
        os.utime(store.path(ref.digest), (1000 + age, 1000 + age))
    assert store.collect({refs[0].digest}, 250) == 300
    assert [store.has(r.digest) for r in refs] == [True, False, False, False, True]
    assert store.collect({r.digest for r in refs}, 0) == 0


def test_collect_leaves_what_another_thread_writes(store, monkeypatch):
    sync, freed = os.fsync, []

    def collect_meanwhile(handle):
        sync(handle)
        freed.append(store.collect(()))

    monkeypatch.setattr(os, "fsync", collect_meanwhile)
    store.put(b"x" * 100)
    assert freed[0] == 0


def test_what_a_crash_left_is_swept_at_the_start(tmp_path):
    stray = tmp_path / "blobs" / "ab"
    stray.mkdir(parents=True)
    (stray / ".tmp-123").write_bytes(b"x")
    assert BlobStore(tmp_path / "blobs").total_bytes() == 0


def test_a_full_disk_is_transient_and_leaves_what_was(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomic(path, b"before")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Transient, match=r"the disk of .* is full"):
        write_atomic(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_ours_is_misconfigured(tmp_path, monkeypatch):
    def no(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("runtime.storage.disk.Disk.write", no)
    with pytest.raises(Misconfigured, match="must own this folder"):
        write_atomic(tmp_path / "f", b"x")


class NoLinks(Disk):
    def link(self, old, new) -> None:
        raise OSError(errno.EPERM, "the disk has no links", str(old), None, str(new))


def test_a_blob_of_another_store_is_on_the_disk_once_and_counted_once(tmp_path) -> None:
    mine, other = BlobStore(tmp_path / "mine"), BlobStore(tmp_path / "other")
    ref = other.put(b"x" * 1001)
    assert mine.adopt(ref, other.path(ref.digest))
    assert mine.get(ref.digest) == b"x" * 1001
    assert mine.path(ref.digest).samefile(other.path(ref.digest))
    assert (mine.total_bytes(), other.total_bytes()) == (501, 501)
    assert not list((tmp_path / "mine").glob("*/.tmp*"))
    other.pin("task", [ref.digest])
    mine.collect((), 0)
    other.collect((), 0)
    assert not mine.has(ref.digest)
    assert other.total_bytes() == 1001
    assert mine.adopt(ref, other.path(ref.digest))
    other.remove(ref.digest)
    assert mine.get(ref.digest) == b"x" * 1001


def test_a_blob_that_is_gone_damaged_or_another_is_not_taken_over(tmp_path) -> None:
    mine, other = BlobStore(tmp_path / "mine"), BlobStore(tmp_path / "other")
    ref = other.put(b"x" * 1001)
    path = other.path(ref.digest)
    assert not mine.adopt(ref, tmp_path / "nowhere")
    assert not mine.adopt(BlobRef(digest=ref.digest, size=5), path)
    path.write_bytes(b"y" * 1001)
    assert not mine.adopt(ref, path)
    assert not mine.names()


def test_on_a_disk_without_links_a_blob_is_copied(tmp_path) -> None:
    mine, other = BlobStore(tmp_path / "mine"), BlobStore(tmp_path / "other")
    ref = other.put(b"x" * 1001)
    token = DISK.set(NoLinks())
    try:
        assert mine.adopt(ref, other.path(ref.digest))
    finally:
        DISK.reset(token)
    assert not mine.path(ref.digest).samefile(other.path(ref.digest))
    assert mine.total_bytes() == other.total_bytes() == 1001
