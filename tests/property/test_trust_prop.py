"""Whatever comes in whatever order: what is trusted never goes back, and no changed byte is believed."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.trusted_time import time_known
from protocol import messages
from protocol.errors import Refused
from protocol.messages import ModelPointer
from protocol.rollout import Trial
from protocol.trust.decisions import read_decision
from protocol.trust.signing import Envelope, canonical
from tests.support.identity.trust import DAY_S, NOW, Keys, decided, release, root

EXCHANGED = Keys(online={"timestamp": (13,), "snapshot": (14,), "targets": (15,)})
RELEASES = [release(n) for n in range(1, 5)] + [release(n, keys=EXCHANGED) for n in range(1, 4)]
PIECES = [
    ("root", root(version=2)),
    ("root", root(EXCHANGED, 2, by=(1,))),
    ("root", root(EXCHANGED, 3, by=(1,))),
    ("root", root(Keys(root=(8,)), 2)),
    *((role, getattr(one, role)) for one in RELEASES for role in ("timestamp", "snapshot", "targets")),
    ("targets", release(3, targets=(9,)).targets),
]
FIRST = TrustedMetadata.begin(root())
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def marks(trusted):
    """What may not fall while the online keys stay."""
    versions = [0 if p is None else p.said.version for p in (trusted.timestamp, trusted.snapshot)]
    listed = 0 if trusted.snapshot is None else trusted.snapshot.said.targets.version
    return [*versions, listed, trusted.latest]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_what_is_trusted_never_goes_back_while_its_keys_stay(steps):
    trusted = FIRST
    for role, data in steps:
        try:
            new = getattr(trusted, f"with_{role}")(*((data,) if role == "root" else (data, NOW)))
        except Refused:
            continue
        assert new.root.said.version >= trusted.root.said.version
        if new.epoch == trusted.epoch:
            assert all(a >= b for a, b in zip(marks(new), marks(trusted), strict=True))
        trusted = TrustedMetadata.decode(new.encode())
        assert trusted == new
    runs = []
    for one in RELEASES:
        try:
            trusted.require(one.pointer, NOW)
        except Refused:
            continue
        runs.append(one.pointer.bundle.digest)
    assert len(set(runs)) <= 1


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(PIECES[:3]))
def test_no_changed_byte_of_a_root_is_believed(at, flip, piece):
    _, data = piece
    at %= len(data)
    changed = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    try:
        new = FIRST.with_root(changed)
    except Refused:
        return
    known, _ = json.loads(data), None
    assert json.loads(changed)["signed"] == known["signed"]
    assert new.root.said.version == known["signed"]["version"]


@given(values)
def test_one_value_has_one_canonical_form(value):
    try:
        form = canonical(value)
    except ValueError:
        return
    if isinstance(value, dict):
        assert form == canonical(dict(reversed(value.items())))
        envelope = Envelope(value, ())
        assert Envelope.read(envelope.encode(), 10**6, "any") == envelope


@given(st.floats(0, 4e9), st.floats(0, 4e9), st.floats(-10, 1e8))
def test_it_is_never_earlier_than_what_was_signed_and_never_earlier_than_the_clock(wall, latest, elapsed):
    time = time_known(wall, latest, elapsed)
    assert time.now >= max(wall, latest)
    assert bool(time.doubt) == (wall < latest + max(0.0, elapsed))
    assert time.now <= max(wall, latest + max(0.0, elapsed)) + DAY_S


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_a_decision_says_comes_back_from_the_wire_as_it_was_signed(data):
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    rules = data.draw(
        st.none()
        | st.builds(
            Trial,
            windows=st.integers(1, 100_000),
            deadline_s=numbers.filter(lambda n: 0 < n <= 30 * DAY_S),
            max_latency_ratio=st.floats(1, 1000),
            min_agreement=st.floats(0, 1),
            max_drift=st.floats(0, 1),
            max_accuracy_drop=st.floats(0, 1),
        )
    )
    serial = data.draw(st.integers(0, 2**31 - 1))
    said = RELEASES[0].pointer.model_copy(update={"trial": rules, "serial": serial})
    sent = messages.decode(messages.encode(decided(said)), ModelPointer)
    decision, envelope = read_decision(sent.decision)
    assert not decision.difference(sent)
    FIRST.root.said.require(envelope, "targets")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 10**4), values)
def test_no_changed_byte_of_a_decision_is_believed(noise, place, value):
    good = decided(RELEASES[0].pointer).decision
    at = place % len(good)
    for text in (good[:at] + noise.decode("latin-1") + good[at + 1 :], json.dumps(value)):
        try:
            decision, envelope = read_decision(text)
            FIRST.root.said.require(envelope, "targets")
        except Refused:
            continue
        assert decision == read_decision(good)[0]
