"""However strangers knock, they are heard no more often than the buckets say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.identity.http_api.rate_limit import MAX_PEERS, Throttle
from runtime.text import peer_of

KNOCKS = st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), max_size=80)


@given(KNOCKS)
def test_no_address_and_not_all_together_get_more_than_their_share(knocks) -> None:
    throttle = Throttle(rate=1.0, burst=3, total_rate=2.0, total_burst=5)
    heard: dict[str, int] = {}
    now = 100.0
    for peer, pause in knocks:
        now += pause
        if throttle.wait_s(str(peer), now) == 0.0:
            heard[str(peer)] = heard.get(str(peer), 0) + 1
    spent = now - 100.0
    assert all(count <= 3 + spent + 1e-6 for count in heard.values())
    assert sum(heard.values()) <= 5 + 2 * spent + 1e-6


@given(KNOCKS)
def test_who_waits_as_told_is_heard(knocks) -> None:
    throttle = Throttle(rate=1.0, burst=3, total_rate=2.0, total_burst=5)
    now = 0.0
    for peer, pause in knocks:
        now += pause
        wait = throttle.wait_s(str(peer), now)
        if wait > 0:
            now += wait + 1e-6
            assert throttle.wait_s(str(peer), now) == 0.0


def test_memory_is_bounded_and_a_clock_set_back_gives_nothing() -> None:
    throttle = Throttle(rate=1.0, burst=1, total_rate=1e9, total_burst=1e9)
    for n in range(3 * MAX_PEERS):
        throttle.wait_s(str(n), 0.0)
    assert len(throttle._peers) == MAX_PEERS
    assert throttle.wait_s("x", 10.0) == 0.0
    assert throttle.wait_s("x", 5.0) > 0


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("what is this", "what is this"),
    ],
)
def test_a_customer_is_one_peer(host: str, peer: str) -> None:
    assert peer_of(host) == peer
