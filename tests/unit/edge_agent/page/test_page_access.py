"""Links that work once, and sessions that outlive the page's process."""

import errno
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edge_agent.page.access import LINK_S, SESSION_S, PageAccess
from protocol.errors import Misconfigured, Transient
from tests.support.clock import ManualClock


def access(folder: Path, clock: ManualClock | None = None) -> PageAccess:
    return PageAccess(folder / "page", clock or ManualClock())


def test_a_link_works_once(tmp_path: Path) -> None:
    one = access(tmp_path)
    token = one.new_token()
    cookie = one.redeem(token)
    assert cookie is not None
    assert one.session_of(cookie) is not None
    assert one.redeem(token) is None


def test_of_many_at_once_one_gets_in(tmp_path: Path) -> None:
    one = access(tmp_path)
    token = one.new_token()
    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(one.redeem, [token] * 64)]
    assert sum(cookie is not None for cookie in found) == 1


def test_a_link_ends_and_so_does_a_session(tmp_path: Path) -> None:
    clock = ManualClock()
    one = access(tmp_path, clock)
    old, new = one.new_token(), one.new_token()
    cookie = one.redeem(new)
    clock.set_wall(clock.wall() + LINK_S + 1)
    assert one.redeem(old) is None
    assert one.session_of(cookie) is not None
    clock.set_wall(clock.wall() + SESSION_S)
    assert one.session_of(cookie) is None


def test_a_session_outlives_the_process_and_belongs_to_this_device(tmp_path: Path) -> None:
    clock = ManualClock()
    one = access(tmp_path / "a", clock)
    cookie = one.redeem(one.new_token())
    session = access(tmp_path / "a", clock).session_of(cookie)
    assert session is not None
    assert access(tmp_path / "b", clock).session_of(cookie) is None


@pytest.mark.parametrize("token", ["", "x", "../key", "../../page/key", "\0", "é", "a" * 5000])
def test_what_is_no_token_opens_nothing(tmp_path: Path, token: str) -> None:
    one = access(tmp_path)
    one.new_token()
    assert one.redeem(token) is None
    assert one.session_of(token) is None


def test_a_changed_cookie_is_none_of_ours(tmp_path: Path) -> None:
    one = access(tmp_path)
    cookie = one.redeem(one.new_token())
    end, nonce, mac = cookie.split(".")
    for forged in (
        f"{int(end) + 9}.{nonce}.{mac}",
        f"{end}.{nonce}.{'0' * 64}",
        f"{end}.{nonce}",
        f"..{mac}",
    ):
        assert one.session_of(forged) is None
    mine, other = one.session_of(cookie), one.session_of(one.redeem(one.new_token()))
    assert one.is_csrf(mine, one.csrf(mine))
    assert not one.is_csrf(mine, one.csrf(other))
    assert not one.is_csrf(mine, "ü")


def test_links_are_few_and_readable_by_their_user_alone(tmp_path: Path) -> None:
    one = access(tmp_path)
    for _ in range(40):
        one.new_token()
    links = list((tmp_path / "page" / "links").iterdir())
    assert len(links) == 16
    for path in (*links, tmp_path / "page" / "key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "page").stat().st_mode) == 0o700


def test_processes_that_start_at_once_have_one_key(tmp_path: Path) -> None:
    clock = ManualClock()
    with ThreadPoolExecutor(16) as pool:
        made = [*pool.map(lambda _: access(tmp_path, clock), range(16))]
    assert len({one.csrf("session") for one in made}) == 1
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"key", "links"}


def test_a_key_that_cannot_be_written_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file stayed after a full disk, and no page could be opened until somebody removed it."""

    def full(_count: int) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("edge_agent.page.access.secrets.token_bytes", full)
        with pytest.raises(Transient):
            access(tmp_path)
    assert access(tmp_path).new_token()


def test_a_torn_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "key").write_bytes(b"short")
    with pytest.raises(Misconfigured, match="not a key of 32 bytes: remove it"):
        access(tmp_path)
