"""The two stores of objects, by one suite; and the store in a bucket behind a hostile proxy."""

import time
from hashlib import sha256

import pytest

from coordinator.objects.blobs import SharedBlobs, key_of
from coordinator.objects.cache import BlobCache
from coordinator.objects.contract import StoreUnusable
from coordinator.objects.folder import FolderObjects
from coordinator.objects.s3_url import credentials_of, parse
from protocol.errors import Misconfigured, Reason, Refused, Transient
from protocol.frames.frame import digest
from tests.support.network.object_store import KEY, SECRET, hostile, objects_at


@pytest.fixture(params=["folder", "bucket"])
def objects(request, tmp_path):
    if request.param == "folder":
        return FolderObjects(tmp_path / "objects")
    return objects_at(request.getfixturevalue("bucket"))


def test_an_object_is_put_once_and_read_in_whole_and_in_parts(objects) -> None:
    objects.check()
    assert objects.put("a/b/c", b"hello")
    assert not objects.put("a/b/c", b"other")
    assert objects.get("a/b/c") == b"hello"
    assert objects.get("a/b/c", 1, 3) == b"ell"
    assert objects.get("a/b/c", 3, 100) == b"lo"
    assert objects.get("a/b/c", 2) == b"llo"
    assert b"".join(objects.stream("a/b/c")) == b"hello"
    assert objects.put("a/b/c", b"other", absent=False)
    found = objects.head("a/b/c")
    assert (found.key, found.size) == ("a/b/c", 5)
    assert abs(found.modified - objects.now()) < 60
    assert objects.head("a/b/d") is None
    for wrong in (lambda: objects.get("a/b/d"), lambda: list(objects.stream("a/b/d"))):
        with pytest.raises(KeyError):
            wrong()


def test_a_listing_has_all_objects_below_a_prefix_and_no_others(objects) -> None:
    for key in ("up/1/d/0", "up/1/d/1", "up/1/dd/0", "up/10/d/0", "other"):
        objects.put(key, key.encode(), durable=False)
    assert {one.key: one.size for one in objects.below("up/1")} == {
        "up/1/d/0": 8,
        "up/1/d/1": 8,
        "up/1/dd/0": 9,
    }
    assert list(objects.below("none")) == []
    objects.remove(["up/1/d/0", "up/1/d/0", "up/1/none"])
    assert {one.key for one in objects.below("up/1/d")} == {"up/1/d/1"}


@pytest.mark.parametrize("key", ["../a", "a/../b", "/a", "a//b", "", "a/.hidden", "a\n"])
def test_a_key_never_leaves_the_folder(tmp_path, key) -> None:
    with pytest.raises(ValueError, match="is not the key"):
        FolderObjects(tmp_path).get(key)


def test_large_objects_are_sent_in_parts(bucket) -> None:
    objects, data = objects_at(bucket), bytes(range(256)) * 80_000
    assert objects.put("large", data)
    assert not objects.put("large", data)
    assert sha256(objects.get("large")).digest() == sha256(data).digest()
    assert max(map(len, objects.stream("large"))) < len(data)


@pytest.mark.parametrize(
    ("status", "code", "kind", "words"),
    [
        (503, "SlowDown", Transient, "503 SlowDown; it is tried again"),
        (500, "InternalError", Transient, "500 InternalError"),
        (507, "XMinioStorageFull", Transient, "the store is full"),
        (403, "QuotaExceeded", Transient, "its quota is reached; nothing was stored"),
        (404, "NoSuchBucket", StoreUnusable, "there is no such bucket: create it"),
        (
            403,
            "InvalidAccessKeyId",
            StoreUnusable,
            "the access key is not known there: see storage.credentials",
        ),
        (403, "SignatureDoesNotMatch", StoreUnusable, "the secret of the access key is wrong"),
        (403, "AccessDenied", StoreUnusable, "permit GetObject, PutObject, DeleteObject, ListBucket"),
        (403, "RequestTimeTooSkewed", StoreUnusable, "clock differs too much"),
        (301, "PermanentRedirect", StoreUnusable, "in another region: add region=NAME"),
    ],
)
def test_each_refusal_of_a_service_has_a_kind_and_words_and_no_secret(
    bucket, status, code, kind, words
) -> None:
    with hostile(bucket) as (proxy, url):
        objects = objects_at(url, timeout_s=0.6)
        proxy.fault = lambda handler, _: handler.error(status, code)
        for attempt in (
            lambda: objects.put("a", b"x"),
            lambda: objects.get("a"),
            lambda: list(objects.below("a")),
            objects.check,
        ):
            with pytest.raises(Transient) as caught:
                attempt()
            assert type(caught.value) is kind
            assert words in str(caught.value)
            assert str(caught.value).startswith("storage.blobs: s3://lichen-")
            assert SECRET not in str(caught.value)
            assert KEY not in str(caught.value)
        since, told = objects.trouble
        assert words in told
        assert abs(since - time.time()) < 60
        proxy.fault = lambda *_: False
        assert objects.put("a", b"x")
        assert objects.trouble is None


def test_a_service_that_is_slow_or_cuts_the_connection_stores_nothing_that_counts(bucket) -> None:
    with hostile(bucket) as (proxy, url):
        objects = objects_at(url, timeout_s=0.4)

        def slow(_handler, _body) -> bool:
            time.sleep(0.7)
            return True

        def cut(handler, _body) -> bool:
            handler.send_response(200)
            handler.send_header("Content-Length", "5")
            handler.end_headers()
            handler.wfile.write(b"he")
            return True

        objects.put("a", b"hello")
        for fault, words in ((slow, "no answer in time"), (cut, "GET: ")):
            proxy.fault = fault
            with pytest.raises(Transient, match=words):
                objects.get("a")
        proxy.fault = lambda *_: False
        assert objects.get("a") == b"hello"


def test_nobody_listens_or_nothing_resolves(monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(Transient, match=r"storage\.blobs: .*cannot be reached \(is the endpoint right"):
        objects_at("s3://bucket?endpoint=http://127.0.0.1:9", timeout_s=0.4).check()


def test_an_answer_of_another_server_never_means_that_an_object_is_gone(bucket) -> None:
    with hostile(bucket) as (proxy, url):
        objects = objects_at(url, timeout_s=0.5)
        objects.put("a", b"hello")
        proxy.fault = lambda handler, _: handler.answer(404, b"<html>sign in</html>") or True
        with pytest.raises(Transient):
            objects.get("a")
        with pytest.raises(Transient):
            objects.head("a")
        proxy.fault = lambda handler, _: handler.answer(200, b"<html>sign in</html>") or True
        with pytest.raises(Transient, match="none of S3"):
            objects.put("b", b"hello")


def test_a_service_without_if_none_match_is_asked_first(bucket) -> None:
    with hostile(bucket) as (proxy, url):
        objects = objects_at(url)

        def refuse(handler, _body) -> bool:
            return "If-None-Match" in handler.headers and handler.error(501, "NotImplemented")

        proxy.fault = refuse
        assert objects.put("a", b"one")
        assert not objects.put("a", b"two")
        assert objects.get("a") == b"one"
        conditional = [method for method, _ in proxy.asked]
        tried = conditional.count("PUT")
        assert objects.put("b", b"one")
        assert [method for method, _ in proxy.asked].count("PUT") == tried + 1, (
            "the condition is not tried again"
        )


def shared(objects, tmp_path, grace_s: float = 3600.0, cache_bytes: int = 1 << 20) -> SharedBlobs:
    return SharedBlobs(objects, BlobCache(tmp_path / "cache", cache_bytes), grace_s)


def test_blobs_are_verified_and_served_from_the_cache(objects, tmp_path) -> None:
    blobs, data = shared(objects, tmp_path), bytes(range(256)) * 100
    ref = blobs.put(data)
    assert (ref.digest, ref.size) == (digest(data), len(data))
    assert blobs.put(data) == ref
    assert list(blobs.names()) == [ref.digest]
    elsewhere = shared(objects, tmp_path / "other")
    assert elsewhere.has(ref.digest)
    assert not elsewhere.has(digest(b"none"))
    with pytest.raises(KeyError):
        elsewhere.size(digest(b"none"))
    with pytest.raises(KeyError):
        elsewhere.get(digest(b"none"))
    assert elsewhere.get(ref.digest) == data
    objects.remove([key_of(ref.digest)])
    assert elsewhere.read_chunk(ref.digest, 1, 1000) == data[1000:2000], "from the cache alone"
    assert elsewhere.read(ref.digest, 0, 3) == data[:3]
    with pytest.raises(Refused):
        elsewhere.read_chunk(ref.digest, 26, 1000)


def test_the_cache_is_bounded_and_what_it_does_not_take_is_read_in_parts(bucket, tmp_path) -> None:
    with hostile(bucket) as (proxy, url):
        objects = objects_at(url)
        first = shared(objects, tmp_path / "first")
        small = [first.put(bytes([n]) * 10_000).digest for n in range(8)]
        large = first.put(bytes(100_000)).digest
        blobs = shared(objects, tmp_path / "second", cache_bytes=40_000)
        for name in small:
            assert len(blobs.read_chunk(name, 0, 4096)) == 4096
        assert sum(file.stat().st_size for file in (tmp_path / "second/cache").iterdir()) <= 40_000
        asked = len(proxy.asked)
        assert blobs.read_chunk(small[-1], 1, 4096)
        assert len(proxy.asked) == asked, "from the cache"
        assert blobs.read_chunk(large, 3, 4096) == bytes(4096)
        assert [method for method, _ in proxy.asked[asked:]] == ["HEAD", "GET"]
        assert not blobs._cache.has(large)


def test_wrong_bytes_are_refused_and_the_next_put_mends_them(bucket, tmp_path) -> None:
    objects, data = objects_at(bucket), b"right" * 100
    blobs = shared(objects, tmp_path)
    objects.put(key_of(digest(data)), b"wrong" * 100)
    for attempt in (
        lambda: blobs.get(digest(data)),
        lambda: blobs.read_chunk(digest(data), 0, 1024),
    ):
        with pytest.raises(Refused) as caught:
            attempt()
        assert caught.value.reason is Reason.WRONG_DIGEST
    blobs.put(data)
    assert shared(objects, tmp_path / "other").get(digest(data)) == data


def test_old_blobs_are_removed_and_never_what_another_machine_just_put(
    objects, tmp_path, monkeypatch
) -> None:
    """Times are those of the store; a put of a blob that is there makes it young again."""
    blobs, other = shared(objects, tmp_path / "a"), shared(objects, tmp_path / "b")
    kept, old, young = (blobs.put(text).digest for text in (b"kept", b"old", b"young"))
    assert blobs.collect({kept}) == 0, "all are younger than the grace"
    began = objects.now()
    monkeypatch.setattr(type(objects), "now", lambda _self: began + 3000)
    monkeypatch.setattr(SharedBlobs, "_is_to_be_written_anew", _noted := _Noted())
    other.put(b"young")
    assert _noted.answers == [True], "older than half of the grace"
    monkeypatch.undo()
    now, below = began + 3700, type(objects).below
    monkeypatch.setattr(type(objects), "now", lambda _self: now)

    def aged(self, prefix):
        for one in below(self, prefix):
            name = one.key.rpartition("/")[2]
            yield type(one)(one.key, one.size, began + (3000 if name == young else 0))

    monkeypatch.setattr(type(objects), "below", aged)
    assert blobs.collect({kept}) == len(b"old")
    assert [blobs.has(name) for name in (kept, old, young)] == [True, False, True]


class _Noted:
    """The decision of the class, and what it answered."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self._decide = SharedBlobs._is_to_be_written_anew

    def __get__(self, blobs, _owner):
        def decide(ref, found):
            self.answers.append(self._decide(blobs, ref, found))
            return self.answers[-1]

        return decide


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://bucket/x", "write s3://BUCKET"),
        ("s3://", "the name of a bucket"),
        ("s3://Key:hush@bucket/x", "no credentials in the URL"),
        ("s3://bucket/../x", "a prefix has"),
        ("s3://bucket?endpoint=ftp://host", "endpoint is https://HOST:PORT"),
        ("s3://bucket?endpoint=https://hush@host", "endpoint is https://HOST:PORT"),
        ("s3://bucket?secret=hush", "each of endpoint, region, downloads, path_style may come once"),
        ("s3://bucket?region=a&region=b", "each of endpoint"),
        ("s3://bucket?path_style=hush", "path_style is yes or no"),
        ("s3://[hush", "no URL of the form"),
    ],
)
def test_a_wrong_url_names_the_key_and_what_to_write_and_repeats_nothing(url, words) -> None:
    with pytest.raises(Misconfigured) as caught:
        parse(url)
    assert str(caught.value).startswith("storage.blobs: ")
    assert words in str(caught.value)
    assert "hush" not in str(caught.value)


def test_credentials_come_from_a_file_or_the_environment_and_are_not_shown(tmp_path, monkeypatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = AK\naws_secret_access_key = hu%sh\n")
    made = credentials_of(file)
    assert (made.access_key_id, made.secret_access_key, made.session_token) == ("AK", "hu%sh", "")
    assert "hu%sh" not in repr(made)
    for text in ("[default]\naws_access_key_id = AK\n", "hush", ""):
        file.write_text(text)
        with pytest.raises(Misconfigured, match=r"storage\.credentials") as caught:
            credentials_of(file)
        assert "hush" not in str(caught.value)
    with pytest.raises(Misconfigured, match="No such file"):
        credentials_of(tmp_path / "none")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert credentials_of(None) is None
