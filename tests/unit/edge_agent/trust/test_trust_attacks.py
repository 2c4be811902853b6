"""Each attack of The Update Framework's list against what a device trusts, with real keys."""

import json
from dataclasses import replace

import pytest

from edge_agent.trust.trusted_metadata import MAX_KEPT_BYTES, TrustedMetadata
from edge_agent.trust.trusted_time import time_known
from protocol.errors import Reason, Refused
from protocol.trust.metadata import SNAPSHOT_FILE, TARGETS_FILE, draft
from protocol.trust.signing import Envelope
from tests.support.identity.trust import DAY_S, NOW, Keys, fed, listed, named, pointer, release, root, signed


@pytest.fixture
def trusted():
    return TrustedMetadata.begin(root())


def refused(reason, step, *args):
    with pytest.raises(Refused) as caught:
        step(*args)
    assert caught.value.reason is reason
    return caught.value.detail


def test_a_bundle_that_was_signed_is_trusted(trusted):
    one = release(1)
    fed(trusted, one).require(one.pointer, NOW)


def test_nothing_is_trusted_before_something_signed_came(trusted):
    refused(Reason.UNTRUSTED, trusted.require, release(1).pointer, NOW)
    refused(Reason.UNTRUSTED, trusted.with_snapshot, release(1).snapshot, NOW)
    refused(
        Reason.UNTRUSTED,
        trusted.with_timestamp(release(1).timestamp, NOW).with_targets,
        release(1).targets,
        NOW,
    )


# -- arbitrary software


def test_attack_arbitrary_a_bundle_that_is_not_listed_is_refused(trusted):
    known = fed(trusted, release(1))
    assert "not among" in refused(Reason.UNTRUSTED, known.require, pointer(b"malware"), NOW)


def test_attack_arbitrary_a_listed_bundle_is_refused_as_another_version_or_task(trusted):
    one = release(1)
    known = fed(trusted, one)
    refused(Reason.UNTRUSTED, known.require, pointer(one.bundle, version=2), NOW)
    refused(Reason.UNTRUSTED, known.require, pointer(one.bundle, task="other"), NOW)


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
def test_attack_arbitrary_content_that_was_changed_after_signing_is_refused(trusted, role):
    one = release(1)
    outer = json.loads(getattr(one, role))
    outer["signed"]["expires"] = "2099-01-01T00:00:00Z"
    bad = replace(one, **{role: json.dumps(outer).encode()})
    with pytest.raises(Refused) as caught:
        fed(trusted, bad)
    assert caught.value.reason in {Reason.UNTRUSTED, Reason.WRONG_DIGEST}


def test_attack_arbitrary_an_unsigned_root_is_no_beginning():
    refused(
        Reason.UNTRUSTED, TrustedMetadata.begin, draft("root", 1, NOW, DAY_S, Keys().root_said()).encode()
    )


# -- wrong keys


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets"])
@pytest.mark.parametrize("key", [9, "another role's"])
def test_attack_wrong_key_is_refused_for_each_role(trusted, role, key):
    other = {"timestamp": 4, "snapshot": 5, "targets": 3}[role] if isinstance(key, str) else key
    with pytest.raises(Refused, match=f"untrusted: {role}: 0 of its signatures"):
        fed(trusted, release(1, **{role: (other,)}))


def test_attack_wrong_key_a_root_by_the_online_keys_is_refused(trusted):
    stolen = Keys(root=(3,))
    refused(Reason.UNTRUSTED, trusted.with_root, root(stolen, 2, by=(3, 4, 5)))


def test_attack_wrong_key_a_new_root_needs_the_old_keys_and_its_own(trusted):
    new = Keys(root=(7,))
    refused(Reason.UNTRUSTED, trusted.with_root, root(new, 2, by=(7,)))
    refused(Reason.UNTRUSTED, trusted.with_root, root(new, 2, by=(1,)))
    assert trusted.with_root(root(new, 2, by=(1, 7))).root.said.version == 2


def test_attack_wrong_key_one_key_does_not_reach_a_threshold_of_two():
    keys = Keys(threshold=2)
    trusted = TrustedMetadata.begin(root(keys, by=(1, 2)))
    refused(Reason.UNTRUSTED, trusted.with_root, root(keys, 2, by=(1,)))


def test_attack_wrong_key_one_key_under_two_ids_counts_once():
    said = Keys(root=(1, 2), threshold=2).root_said()
    first, second = said["roles"]["root"]["keyids"]
    said["keys"]["f" * 64] = said["keys"][first]
    said["roles"]["root"]["keyids"] = [first, second, "f" * 64]
    envelope = draft("root", 1, NOW, DAY_S, said)
    one = json.loads(signed(envelope, 1))
    one["signatures"].append({**one["signatures"][0], "keyid": "f" * 64})
    refused(Reason.UNTRUSTED, TrustedMetadata.begin, json.dumps(one).encode())
    assert TrustedMetadata.begin(signed(envelope, 1, 2)).epoch == 1


# -- rollback


def test_attack_rollback_an_older_timestamp_is_refused(trusted):
    known = fed(trusted, release(2))
    assert refused(Reason.ROLLED_BACK, known.with_timestamp, release(1).timestamp, NOW) == (
        "timestamp 1, but 2 is known already"
    )


def test_attack_rollback_a_newer_timestamp_of_an_older_snapshot_is_refused(trusted):
    known, old = fed(trusted, release(2)), release(1)
    stamp = draft("timestamp", 3, NOW, DAY_S, named(SNAPSHOT_FILE, 1, old.snapshot))
    refused(Reason.ROLLED_BACK, known.with_timestamp, signed(stamp, 3), NOW)


def test_attack_rollback_a_newer_snapshot_of_older_targets_is_refused(trusted):
    known, old = fed(trusted, release(2)), release(1)
    snapshot = signed(draft("snapshot", 3, NOW, DAY_S, named(TARGETS_FILE, 1, old.targets)), 4)
    stamp = signed(draft("timestamp", 3, NOW, DAY_S, named(SNAPSHOT_FILE, 3, snapshot)), 3)
    refused(Reason.ROLLED_BACK, known.with_timestamp(stamp, NOW).with_snapshot, snapshot, NOW)


def test_attack_rollback_an_older_bundle_is_not_listed_any_more(trusted):
    old = release(1)
    refused(Reason.UNTRUSTED, fed(fed(trusted, old), release(2)).require, old.pointer, NOW)


def test_attack_rollback_an_older_root_or_one_that_skips_is_refused(trusted):
    second = trusted.with_root(root(version=2))
    for version in (1, 2, 4):
        refused(Reason.ROLLED_BACK, second.with_root, root(version=version))


def test_attack_rollback_a_restart_does_not_forget(trusted):
    known = TrustedMetadata.decode(fed(trusted, release(2)).encode())
    refused(Reason.ROLLED_BACK, known.with_timestamp, release(1).timestamp, NOW)


def test_attack_rollback_a_second_timestamp_of_the_same_version_is_refused(trusted):
    known = fed(trusted, release(1))
    assert known.with_timestamp(release(1).timestamp, NOW) == known
    refused(Reason.ROLLED_BACK, known.with_timestamp, release(1, bundle=b"another").timestamp, NOW)


# -- fast-forward


def test_attack_fast_forward_is_undone_by_exchanging_the_keys(trusted):
    most = 2**31 - 1
    stuck = fed(trusted, release(most, version=1))
    refused(Reason.ROLLED_BACK, stuck.with_timestamp, release(2).timestamp, NOW)
    exchanged = Keys(online={"timestamp": (13,), "snapshot": (14,), "targets": (15,)})
    again = stuck.with_root(root(exchanged, 2, by=(1,)))
    assert again.epoch == 2
    one = release(2, keys=exchanged)
    fed(again, one).require(one.pointer, NOW)
    refused(Reason.UNTRUSTED, again.with_timestamp, release(most).timestamp, NOW)


def test_attack_fast_forward_of_the_time_is_undone_with_it(trusted):
    far = fed(trusted, release(1, issued=NOW + 300 * DAY_S), NOW)
    assert far.latest == NOW + 300 * DAY_S
    exchanged = Keys(online={"timestamp": (13,), "snapshot": (14,), "targets": (15,)})
    assert far.with_root(root(exchanged, 2, by=(1,))).latest < NOW


def test_a_root_with_the_same_online_keys_keeps_what_they_signed(trusted):
    known = fed(trusted, release(2)).with_root(root(Keys(root=(7,)), 2, by=(1, 7)))
    assert known.epoch == 1
    refused(Reason.ROLLED_BACK, known.with_timestamp, release(1).timestamp, NOW)
    known.require(release(2).pointer, NOW)


def test_attack_fast_forward_versions_beyond_the_bound_are_refused(trusted):
    stamp = draft("timestamp", 2**31, NOW, DAY_S, named(SNAPSHOT_FILE, 1, release(1).snapshot))
    refused(Reason.MALFORMED, trusted.with_timestamp, signed(stamp, 3), NOW)


# -- freeze, and what has expired


def test_attack_freeze_what_was_signed_counts_for_its_time_only(trusted):
    one = release(1)
    known = fed(trusted, one)
    known.require(one.pointer, NOW + 6 * DAY_S)
    assert "hold" in refused(Reason.EXPIRED, known.require, one.pointer, NOW + 7 * DAY_S)


def test_attack_freeze_an_expired_timestamp_is_refused_and_leaves_nothing(trusted):
    refused(Reason.EXPIRED, trusted.with_timestamp, release(1).timestamp, NOW + 8 * DAY_S)
    assert trusted.timestamp is None


@pytest.mark.parametrize("role", ["snapshot", "targets"])
def test_expired_lists_are_refused(trusted, role):
    one = release(1, lasts_s=300 * DAY_S, lists_s=DAY_S)
    later = NOW + 2 * DAY_S
    known = trusted.with_timestamp(one.timestamp, later)
    if role == "targets":
        known = known.with_snapshot(one.snapshot, NOW)
    refused(Reason.EXPIRED, getattr(known, f"with_{role}"), getattr(one, role), later)


def test_an_expired_root_vouches_for_nothing_and_can_be_passed_through():
    old = TrustedMetadata.begin(root(lasts_s=2 * DAY_S))
    later = NOW + 30 * DAY_S
    fresh = release(1, issued=later)
    refused(Reason.EXPIRED, old.with_timestamp, fresh.timestamp, later)
    known = fed(old.with_root(root(version=2, issued=later)), fresh, later)
    known.require(fresh.pointer, later)


# -- mix and match


def test_attack_mix_and_match_a_snapshot_of_another_time_is_refused(trusted):
    old, new = release(1), release(2)
    known = trusted.with_timestamp(new.timestamp, NOW)
    refused(Reason.WRONG_DIGEST, known.with_snapshot, old.snapshot, NOW)


def test_attack_mix_and_match_targets_of_another_time_are_refused(trusted):
    old, new = release(1), release(2)
    known = trusted.with_timestamp(new.timestamp, NOW).with_snapshot(new.snapshot, NOW)
    refused(Reason.WRONG_DIGEST, known.with_targets, old.targets, NOW)


def test_attack_mix_and_match_other_lists_of_the_same_version_are_refused(trusted):
    one, other = release(1), release(1, b"another bundle", version=1)
    known = trusted.with_timestamp(one.timestamp, NOW)
    refused(Reason.WRONG_DIGEST, known.with_snapshot, other.snapshot, NOW)
    refused(Reason.WRONG_DIGEST, known.with_snapshot(one.snapshot, NOW).with_targets, other.targets, NOW)


def test_attack_mix_and_match_new_time_and_old_lists_do_not_vouch(trusted):
    old = release(1)
    known = fed(trusted, old).with_timestamp(release(2).timestamp, NOW)
    refused(Reason.WRONG_DIGEST, known.require, old.pointer, NOW)


def test_attack_mix_and_match_a_version_that_differs_from_its_name_is_refused(trusted):
    one = release(1)
    stamp = signed(draft("timestamp", 1, NOW, DAY_S, named(SNAPSHOT_FILE, 2, one.snapshot)), 3)
    refused(Reason.WRONG_DIGEST, trusted.with_timestamp(stamp, NOW).with_snapshot, one.snapshot, NOW)


def test_attack_mix_and_match_one_role_does_not_stand_for_another():
    keys = Keys(online={"timestamp": (3,), "snapshot": (3,), "targets": (3,)})
    trusted, one = TrustedMetadata.begin(root(keys)), release(1, keys=keys)
    refused(Reason.MALFORMED, trusted.with_timestamp, one.snapshot, NOW)
    refused(Reason.MALFORMED, trusted.with_root, one.targets)


# -- endless data, and other nonsense


def test_attack_endless_data_is_refused_by_its_size(trusted):
    refused(Reason.TOO_LARGE, trusted.with_timestamp, b" " * 20_000, NOW)
    refused(Reason.TOO_LARGE, trusted.with_root, b" " * 70_000)
    refused(Reason.MALFORMED, TrustedMetadata.decode, b" " * MAX_KEPT_BYTES)
    refused(Reason.TOO_LARGE, TrustedMetadata.decode, b" " * (MAX_KEPT_BYTES + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"signed": {}, "signatures": []}',
        b'{"signed": {"a": 1, "a": 2}, "signatures": []}',
        b'{"signed": {"a": 1.5}, "signatures": []}',
        b'{"signed": {"a": NaN}, "signatures": []}',
        b'{"signed": {"a": "\\ud800"}, "signatures": []}',
        b'{"signed": ' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b', "signatures": []}',
        b"[" * 60_000,
    ],
)
def test_nonsense_is_refused_as_malformed(trusted, data):
    refused(Reason.MALFORMED, trusted.with_root, data)


def test_a_key_that_signs_twice_is_refused(trusted):
    outer = json.loads(root(version=2))
    outer["signatures"] *= 2
    assert "twice" in refused(Reason.MALFORMED, trusted.with_root, json.dumps(outer).encode())


def test_signatures_by_unknown_kinds_of_keys_do_no_harm():
    said = Keys().root_said()
    said["keys"]["a" * 64] = {"keytype": "post-quantum", "scheme": "x", "keyval": {"public": "?"}}
    said["roles"]["root"]["keyids"].append("a" * 64)
    outer = json.loads(signed(draft("root", 1, NOW, DAY_S, said), 1))
    outer["signatures"].append({"keyid": "a" * 64, "sig": "00"})
    assert TrustedMetadata.begin(json.dumps(outer).encode()).epoch == 1


def test_fields_of_a_later_release_are_signed_too(trusted):
    said = {**named(SNAPSHOT_FILE, 1, release(1).snapshot), "later": {"more": [1, True, None, "ü"]}}
    data = signed(draft("timestamp", 1, NOW, DAY_S, said), 3)
    trusted.with_timestamp(data, NOW)
    changed = data.replace(b'"more":[1', b'"more":[2')
    refused(Reason.UNTRUSTED, trusted.with_timestamp, changed, NOW)


def test_what_is_trusted_is_found_by_its_role(trusted):
    one, roles = release(1), ("timestamp", "snapshot", "targets")
    assert [trusted.piece(role) for role in roles] == [None] * 3
    pieces = [fed(trusted, one).piece(role) for role in roles]
    assert [piece.data for piece in pieces] == [one.timestamp, one.snapshot, one.targets]


def test_two_bundles_of_two_routes_are_both_listed(trusted):
    said = {"targets": {**listed(b"left", 3), **listed(b"right", 2)}}
    targets = signed(draft("targets", 1, NOW, DAY_S, said), 5)
    snapshot = signed(draft("snapshot", 1, NOW, DAY_S, named(TARGETS_FILE, 1, targets)), 4)
    stamp = signed(draft("timestamp", 1, NOW, DAY_S, named(SNAPSHOT_FILE, 1, snapshot)), 3)
    known = trusted.with_timestamp(stamp, NOW).with_snapshot(snapshot, NOW).with_targets(targets, NOW)
    known.require(pointer(b"left", 3), NOW)
    known.require(pointer(b"right", 2), NOW)
    refused(Reason.UNTRUSTED, known.require, pointer(b"right", 3), NOW)


# -- the clock


def test_a_clock_that_begins_in_1970_is_counted_from_what_was_signed(trusted):
    known = fed(trusted, release(1))
    time = time_known(0.0, known.latest, elapsed=5.0)
    assert time.now == NOW + 5
    assert "behind" in time.doubt
    refused(Reason.EXPIRED, known.require, release(1).pointer, time_known(0.0, known.latest, 8 * DAY_S).now)


def test_a_clock_that_is_right_is_believed(trusted):
    time = time_known(NOW + 60, fed(trusted, release(1)).latest, elapsed=5.0)
    assert (time.now, time.doubt) == (NOW + 60, "")


def test_a_clock_that_runs_ahead_takes_nothing_new_and_keeps_nothing(trusted):
    ahead = time_known(NOW + 1000 * DAY_S, trusted.latest, 0.0).now
    refused(Reason.EXPIRED, trusted.with_timestamp, release(1).timestamp, ahead)
    fed(trusted, release(1), time_known(NOW, trusted.latest, 0.0).now)


def test_what_is_kept_is_what_was_known(trusted):
    for known in (trusted, fed(trusted, release(1)), trusted.with_root(root(version=2))):
        assert TrustedMetadata.decode(known.encode()) == known
    for damaged in (b"", b"{}", fed(trusted, release(1)).encode()[:-9], b"x" * 3_000_000):
        with pytest.raises(Refused):
            TrustedMetadata.decode(damaged)


def test_an_envelope_survives_its_own_encoding():
    data = root()
    assert Envelope.read(data, 10_000, "root").encode() == data
