"""Engines on the disk: found only under the same conditions and whole, bounded, and for one user."""

import os
from dataclasses import fields, replace

import pytest

from edge_agent.inference.providers.engine_cache import ABOUT, PART, EngineCache, EngineKey
from protocol.errors import Misconfigured, Refused
from tests.support.storage.killing_disk import killed_at

KEY = EngineKey("a" * 64, "fake", "p 1 b", "board", (("driver", "1"),), (("fp16", "1"),), 1, 32)
OTHER = {
    "model": "c" * 64,
    "provider": "else",
    "package": "p 2 b",
    "device": "another board",
    "versions": (("driver", "2"),),
    "options": (),
    "threads": 2,
    "max_rows": 64,
}


def written(cache, key=KEY, content=b"engine", name="a.engine"):
    part = cache.begin(key)
    (part / "inner").mkdir()
    (part / name).write_bytes(content)
    (part / "inner" / "b").write_bytes(b"12")
    return cache.keep(part, key, 2.5)


def test_an_engine_is_found_under_the_same_conditions_and_no_others(tmp_path):
    cache = EngineCache(tmp_path / "engines", 1000)
    assert cache.find(KEY) is None
    kept = written(cache)
    again = EngineCache(tmp_path / "engines", 1000).find(KEY)
    assert again == kept
    assert (again.size, again.compile_s) == (8, 2.5)
    assert {one.name for one in fields(EngineKey)} == set(OTHER), "a condition is not tried"
    for name, value in OTHER.items():
        assert cache.find(replace(KEY, **{name: value})) is None, name
    assert cache.removed == 0


def truncated(folder):
    (folder / "a.engine").write_bytes(b"eng")


def changed(folder):
    (folder / "a.engine").write_bytes(b"engimE")


def without_about(folder):
    (folder / ABOUT).unlink()


def torn_about(folder):
    (folder / ABOUT).write_bytes((folder / ABOUT).read_bytes()[:40])


def added(folder):
    (folder / "inner" / "c").write_bytes(b"")


def lacking(folder):
    (folder / "inner" / "b").unlink()


def linked(folder):
    (folder / "inner" / "b").unlink()
    (folder / "inner" / "b").symlink_to("/etc/hostname")


def of_another(folder):
    (folder / ABOUT).write_text((folder / ABOUT).read_text().replace("board", "beard"))


@pytest.mark.parametrize(
    "harm", [truncated, changed, without_about, torn_about, added, lacking, linked, of_another]
)
def test_a_damaged_engine_is_removed_and_compiled_again(tmp_path, harm):
    cache = EngineCache(tmp_path / "engines", 1000)
    harm(written(cache).folder)
    assert cache.find(KEY) is None
    assert list(cache.folder.iterdir()) == []
    assert cache.removed == 1
    assert written(cache) == cache.find(KEY)


def test_whatever_write_a_kill_hits_an_engine_is_whole_or_not_there(tmp_path):
    """Also where it replaces an older one of the same name, and removes another one for room."""
    at, killed = 0, True
    while killed:
        at += 1
        folder = tmp_path / str(at)
        cache = EngineCache(folder, 1000)
        written(cache, replace(KEY, device="older"))
        written(cache, content=b"former")
        killed = killed_at(at, lambda cache=cache: written(cache, content=b"engine_of_18_by!"))
        after = EngineCache(folder, 1000)
        found = after.find(KEY)
        content = b"" if found is None else (found.folder / "a.engine").read_bytes()
        assert content in {b"", b"former", b"engine_of_18_by!"}
        assert killed or content == b"engine_of_18_by!"
        written(after)
        assert not list(folder.glob(f"*{PART}")), "what the kill left is still there"
    assert at > 8


def test_the_engine_that_was_not_used_for_longest_makes_room(tmp_path):
    cache = EngineCache(tmp_path / "engines", 2700)
    keys = [replace(KEY, device=str(i)) for i in range(3)]
    for i, key in enumerate(keys):
        os.utime(written(cache, key).folder / ABOUT, (i, i))
    assert cache.find(keys[0]) is not None  # used: now the second is the oldest
    written(cache, replace(KEY, device="new"), content=b"x" * 600)
    assert [cache.find(key) is not None for key in keys] == [True, False, True]
    sizes = [size for _, size in cache.engines()]
    assert (len(sizes), sum(sizes) <= 2700) == (3, True)


def test_more_than_all_engines_may_take_is_refused_and_costs_no_other(tmp_path):
    cache = EngineCache(tmp_path / "engines", 1000)
    kept = written(cache)
    with pytest.raises(Refused, match=r"2002 bytes, infer\.engine_bytes is 1000"):
        written(cache, replace(KEY, device="new"), content=bytes(2000))
    assert cache.find(KEY) == kept


def test_a_provider_that_writes_a_link_is_refused(tmp_path):
    cache = EngineCache(tmp_path / "engines", 1000)
    part = cache.begin(KEY)
    (part / "link").symlink_to("/etc/hostname")
    with pytest.raises(Refused, match="no links"):
        cache.keep(part, KEY, 1.0)


def test_the_folder_is_closed_to_other_users_and_one_of_theirs_is_refused(tmp_path, monkeypatch):
    cache = EngineCache(tmp_path / "engines", 1000)
    cache.folder.mkdir(mode=0o777)
    cache.folder.chmod(0o777)
    written(cache)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    for use in (cache.find, cache.begin):
        with pytest.raises(Misconfigured, match="belongs to another user"):
            use(KEY)
