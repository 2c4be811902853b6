"""Which devices an offer asks, and when they begin: pure, and the same on both sides."""

import contextlib
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.base import NAME_PATTERN
from protocol.cohort import (
    EVERYBODY,
    MAX_MEMBERS,
    is_below,
    is_member,
    moment,
    pack,
    place,
    salt_of,
    threshold,
)
from protocol.errors import Refused

salts = st.integers(0, 2**128 - 1).map(lambda n: f"{n:032x}")
names = st.from_regex(NAME_PATTERN.replace("$", r"\Z"))


def fleet(count: int) -> list[str]:
    return [f"device-{n:05d}" for n in range(count)]


def test_a_place_is_what_the_page_of_the_protocol_says() -> None:
    salt = "0123456789abcdef" * 2
    mac = hmac.new(bytes.fromhex(salt), b"place/usnea", hashlib.sha256).digest()
    assert place(salt, "usnea") == int.from_bytes(mac[:8], "big") == 0x5458941CF0111C08


@given(salts, names, st.integers(0, 2**64))
def test_a_threshold_asks_the_devices_below_it(salt: str, device: str, below: int) -> None:
    assert is_below(salt, device, threshold(below)) == (place(salt, device) < below)
    assert is_below(salt, device, EVERYBODY)
    assert not is_below(salt, device, "")
    assert threshold(2**64) == EVERYBODY


@given(salts, st.sets(names, max_size=40), st.sets(names, max_size=40))
def test_a_list_holds_those_that_it_was_made_of(salt: str, asked: set[str], others: set[str]) -> None:
    members = pack(salt, asked)
    assert all(is_member(salt, device, members) for device in asked)
    assert not any(is_member(salt, device, members) for device in others - asked)
    assert members == pack(salt, sorted(asked, reverse=True))


def test_the_largest_list_fits_into_a_message_and_a_larger_one_is_refused() -> None:
    many = fleet(MAX_MEMBERS + 1)
    members = pack("ab" * 16, many[:-1])
    assert len(members) < 100_000
    assert is_member("ab" * 16, many[7], members)
    with pytest.raises(ValueError, match=str(MAX_MEMBERS)):
        pack("ab" * 16, many)


@given(salts, st.text(max_size=60))
def test_a_list_from_the_network_is_read_or_refused(salt: str, text: str) -> None:
    with contextlib.suppress(Refused):
        is_member(salt, "usnea", text)


@settings(max_examples=15)
@given(salts)
def test_the_moments_of_a_thousand_devices_spread_over_the_whole_time(salt: str) -> None:
    tenths = [0] * 10
    for device in fleet(1000):
        at = moment(salt, device)
        assert 0.0 <= at < 1.0
        tenths[int(10 * at)] += 1
    assert min(tenths) >= 50, "far beyond six standard deviations from 100"
    assert max(tenths) <= 160


@settings(max_examples=15)
@given(salts)
def test_who_is_asked_does_not_decide_when_it_begins(salt: str) -> None:
    chosen = [device for device in fleet(2000) if is_below(salt, device, threshold(2**63))]
    early = sum(moment(salt, device) < 0.5 for device in chosen)
    assert 800 < len(chosen) < 1200
    assert 0.38 < early / len(chosen) < 0.62


def test_the_salts_of_rounds_differ() -> None:
    salts = {salt_of(seed, round_, base) for seed in (0, 1) for round_ in (1, 2) for base in ("a", "b")}
    assert len(salts) == 8
