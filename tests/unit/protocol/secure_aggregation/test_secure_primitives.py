"""The pieces of secure aggregation: graph, keys, masks, shares, packing and messages."""

import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Reason, Refused
from protocol.secure_aggregation import messages, shamir
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.keys import Secrets, ShareChannel, agreed, loaded, pair_mask_keys, public_of
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.neighbours import GraphSize, graph, graph_size, threshold_of
from protocol.secure_aggregation.ring import RINGS, packed, to_numbers, to_words, top_of, unpacked, zeros
from protocol.secure_aggregation.streams import stream_of

ATTEMPT = Attempt("fleet", "task", 3, 1, "ab" * 32, "cd" * 16)
OTHER = Attempt("fleet", "task", 3, 2, "ab" * 32, "cd" * 16)


@pytest.mark.parametrize("count", [3, 4, 5, 7, 16, 33, 100, 257])
@pytest.mark.parametrize("lost", [0.0, 0.1, 0.3])
def test_the_graph_is_regular_and_symmetric_with_a_majority_as_threshold(count, lost):
    size = graph_size(count, lost)
    names = [f"d{i}" for i in range(count)]
    edges = graph(b"salt", names, size)
    assert set(edges) == set(names)
    for name, others in edges.items():
        assert len(set(others)) == size.neighbours
        assert name not in others
        assert list(others) == sorted(others)
        assert all(name in edges[other] for other in others)
    assert size.neighbours / 2 < size.threshold <= size.neighbours
    if count > 3:
        assert size.neighbours >= min(count - 1, 2 * int(np.ceil(np.log2(count))))


def test_another_salt_draws_another_graph_and_the_same_one_the_same():
    names, size = [f"d{i}" for i in range(50)], GraphSize(12, 7)
    assert graph(b"a", names, size) == graph(b"a", reversed(names), size)
    assert graph(b"a", names, size) != graph(b"b", names, size)


def test_more_losses_need_more_neighbours_and_fewer_than_three_devices_are_no_sum():
    sizes = [graph_size(100, lost).neighbours for lost in (0.05, 0.2, 0.3)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    for devices, lost in ((2, 0.1), (10, 0.5), (10, -0.1)):
        with pytest.raises(ValueError, match="out of range"):
            graph_size(devices, lost)


def test_two_halves_of_honest_neighbours_never_reach_the_threshold_both():
    for k in range(2, 513):
        assert 2 * threshold_of(k) > k


def test_a_prime_is_the_shares_field():
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):
        assert pow(base, shamir.PRIME - 1, shamir.PRIME) == 1
    assert shamir.PRIME > 1 << (8 * shamir.SECRET_BYTES)
    assert shamir.PRIME.bit_length() <= 8 * shamir.SHARE_BYTES


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 20), st.data())
def test_any_threshold_of_shares_gives_the_secret_and_fewer_are_refused(secret, holders, data):
    threshold = data.draw(st.integers(1, holders))
    shares = shamir.split(secret, holders, threshold, secrets.token_bytes)
    chosen = data.draw(st.permutations(range(1, holders + 1)))
    count = data.draw(st.integers(threshold, holders))
    assert shamir.join({p: shares[p - 1] for p in chosen[:count]}, threshold, "d") == secret
    if threshold > 1:
        with pytest.raises(Refused, match=f"d1: {threshold - 1} shares, the threshold is {threshold}"):
            shamir.join({p: shares[p - 1] for p in chosen[: threshold - 1]}, threshold, "d1")


@pytest.mark.parametrize(("secret", "holders", "threshold"), [(31, 3, 2), (33, 3, 2), (32, 3, 0), (32, 3, 4)])
def test_a_secret_of_another_size_or_a_threshold_that_nobody_reaches_is_a_bug(secret, holders, threshold):
    with pytest.raises(ValueError, match=f"secret of {secret} bytes, threshold {threshold} of {holders}"):
        shamir.split(bytes(secret), holders, threshold, secrets.token_bytes)


def test_shares_below_the_threshold_tell_nothing_about_the_secret():
    counts = np.zeros(256, np.int64)
    for _ in range(400):
        for share in shamir.split(bytes(32), 3, 2, secrets.token_bytes)[:1]:
            counts += np.bincount(np.frombuffer(share[1:], np.uint8), minlength=256)
    assert chi_square(counts) < BOUND


@pytest.mark.parametrize("length", [0, 32, 34])
def test_a_share_of_another_length_or_beyond_the_field_is_refused(length):
    with pytest.raises(Refused, match="no share"):
        shamir.read_share(bytes(length), "d")
    with pytest.raises(Refused, match="no share"):
        shamir.read_share(b"\xff" * shamir.SHARE_BYTES, "d")


def test_a_forged_share_among_spare_ones_is_noticed():
    shares = shamir.split(secrets.token_bytes(32), 5, 3, secrets.token_bytes)
    forged = {p: shares[p - 1] for p in range(1, 6)} | {2: secrets.token_bytes(32).rjust(33, b"\0")}
    with pytest.raises(Refused, match="forged"):
        shamir.join(forged, 3, "d")


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(RINGS), st.integers(1, 50), st.data())
def test_packed_numbers_come_back_and_sums_in_the_ring_are_sums(bits, size, data):
    top = top_of(bits) // 3
    number = st.integers(-top, top)
    rows = [np.array(data.draw(st.lists(number, min_size=size, max_size=size)), np.int64) for _ in range(3)]
    total = zeros(size, bits)
    for row in rows:
        data_B = packed(to_words(row, bits), bits)
        assert len(data_B) == size * bits // 8
        total += unpacked(data_B, size, bits)
    assert (
        to_numbers(unpacked(packed(total, bits), size, bits), bits).tolist() == np.sum(rows, axis=0).tolist()
    )


@pytest.mark.parametrize("bits", RINGS)
def test_a_number_beyond_the_ring_and_bytes_of_another_length_are_refused(bits):
    top = top_of(bits)
    assert to_numbers(to_words(np.array([top, -top]), bits), bits).tolist() == [top, -top]
    if bits < 64:
        with pytest.raises(Refused, match=f"ring of {bits} bits"):
            to_words(np.array([0, top + 1]), bits)
    with pytest.raises(Refused, match=f"5 elements of {bits} bits are {5 * bits // 8}"):
        unpacked(bytes(5 * bits // 8 - 1), 5, bits)


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("size", [0, 1, 40_000])
def test_a_mask_added_and_subtracted_leaves_nothing_and_alone_it_hides(bits, size):
    key, plain = secrets.token_bytes(32), np.arange(size, dtype=np.int64) % 100
    masked = to_words(plain, bits)
    add_mask(masked, key)
    assert size < 2 or to_numbers(masked, bits).tolist() != plain.tolist()
    add_mask(masked, key, minus=True)
    assert to_numbers(masked, bits).tolist() == plain.tolist()


BOUND = 400.0
"""Chi-square of 255 degrees of freedom is above it once in 50 million times."""


def chi_square(counts):
    expected = counts.sum() / 256
    return float((np.square(counts - expected) / expected).sum())


@pytest.mark.parametrize("bits", RINGS)
def test_masked_bytes_are_uniform_and_unmasked_ones_are_not(bits):
    update = np.random.default_rng(1).normal(0, 300, 60_000).astype(np.int64)
    words = to_words(update, bits)
    plain = np.bincount(np.frombuffer(packed(words, bits), np.uint8), minlength=256)
    add_mask(words, secrets.token_bytes(32))
    hidden = np.bincount(np.frombuffer(packed(words, bits), np.uint8), minlength=256)
    assert chi_square(hidden) < BOUND < chi_square(plain)


def mask_key(attempt, device, private, other, its_private):
    return pair_mask_keys(attempt, device, private, {other: public_of(its_private)})[other]


def test_neighbours_agree_on_a_mask_which_nobody_else_has_and_no_other_attempt_repeats():
    a, b, c = (Secrets.of(secrets.token_bytes(Secrets.entropy_bytes)) for _ in "abc")
    key = mask_key(ATTEMPT, "a", a.mask, "b", b.mask)
    assert key == mask_key(ATTEMPT, "b", b.mask, "a", a.mask)
    others = {
        mask_key(OTHER, "a", a.mask, "b", b.mask),
        mask_key(ATTEMPT, "a", a.mask, "c", b.mask),
        mask_key(ATTEMPT, "c", c.mask, "b", b.mask),
        mask_key(ATTEMPT, "a", a.cipher, "b", b.mask),
    }
    assert key not in others
    assert len(others) == 4


def test_a_key_of_low_order_is_refused():
    with pytest.raises(Refused, match="public key of device 'b' is no key"):
        agreed(loaded(secrets.token_bytes(32)), bytes(32), "b")


def test_shares_open_for_their_receiver_in_their_attempt_alone():
    a, b = secrets.token_bytes(32), secrets.token_bytes(32)
    text = secrets.token_bytes(66)
    sealed = ShareChannel(ATTEMPT, a).encrypt("a", "b", public_of(b), text, secrets.token_bytes(12))
    assert ShareChannel(ATTEMPT, b).decrypt("a", "b", public_of(a), sealed) == text
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    wrong = [
        (OTHER, b, "a", "b", sealed),
        (ATTEMPT, b, "c", "b", sealed),
        (ATTEMPT, b, "a", "c", sealed),
        (ATTEMPT, a, "b", "a", sealed),  # sent back
        (ATTEMPT, b, "a", "b", flipped),
        (ATTEMPT, b, "a", "b", sealed[:-1]),
        (ATTEMPT, b, "a", "b", b""),
    ]
    for attempt, private, sender, receiver, data in wrong:
        public = public_of(b if private == a else a)
        with pytest.raises(Refused, match="cannot be opened") as refused:
            ShareChannel(attempt, private).decrypt(sender, receiver, public, data)
        assert refused.value.reason is Reason.UNTRUSTED


def test_the_same_key_draws_the_same_stream():
    first, second = stream_of(b"k" * 32), stream_of(b"k" * 32)
    assert first(10) + first(20) == second(30)
    assert stream_of(b"l" * 32)(30) != second(30)
    with pytest.raises(ValueError, match="160 are needed"):
        Secrets.of(bytes(159))


KEYS = messages.DeviceKeys(cipher=b"c" * 32, mask=b"m" * 32)
EXAMPLES = [
    messages.KeysAnnounced(attempt=ATTEMPT.digest, keys=KEYS),
    messages.Roster(attempt=ATTEMPT.digest, devices=5, own=KEYS, neighbours={"a": KEYS, "b": KEYS}),
    messages.SharesSent(attempt=ATTEMPT.digest, sealed={"a": b"s" * messages.SEALED_BYTES}),
    messages.SharesDelivered(attempt=ATTEMPT.digest, sealed={"b": b"s" * messages.SEALED_BYTES}),
    messages.MaskedUpdate(attempt=ATTEMPT.digest, masked=b"x" * 100),
    messages.Survivors(attempt=ATTEMPT.digest, delivered=("a", "b"), lost=("c",)),
    messages.Revealed(attempt=ATTEMPT.digest, seeds={"a": b"s" * 33}, masks={}),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: m.kind)
def test_a_message_comes_back_and_a_damaged_or_truncated_one_is_refused(message):
    payload = messages.encode(message)
    assert messages.is_secure(payload)
    assert messages.decode(payload, type(message)) == message
    for at in range(0, len(payload), 7):
        with pytest.raises(Refused):
            messages.decode(payload[:at] + bytes([payload[at] ^ 4]) + payload[at + 1 :], type(message))
        with pytest.raises(Refused):
            messages.decode(payload[:at], type(message))
    other = next(one for one in EXAMPLES if type(one) is not type(message))
    with pytest.raises(Refused, match=f"expected {type(other).__name__}, got {type(message).__name__}"):
        messages.decode(payload, type(other))
    with pytest.raises(Refused, match="at most 20"):
        messages.decode(payload, type(message), max_bytes=20)


def test_a_message_with_more_neighbours_than_a_graph_has_is_refused():
    sealed = {f"d{i}": b"s" * messages.SEALED_BYTES for i in range(513)}
    payload = messages.encode(messages.SharesSent.model_construct(attempt=ATTEMPT.digest, sealed=sealed))
    with pytest.raises(Refused, match=r"sealed: .*at most 512"):
        messages.decode(payload, messages.SharesSent)
