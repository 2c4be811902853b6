"""Decisions that nobody took: a device with a root goes by none of them, and says why."""

import json

import pytest

from edge_agent.trust.trusted_metadata import TrustedMetadata
from edge_agent.trust.updater import MetadataUpdater
from protocol import messages
from protocol.base import MAX_NAME
from protocol.errors import Reason, Refused
from protocol.messages import MAX_DECISION_BYTES, BlobRef, ModelPointer, Vouchers
from protocol.rollout import Trial
from protocol.trust.decisions import drafted, read_decision
from protocol.trust.metadata import Targets, read
from protocol.trust.signing import Envelope
from tests.support.agent.bundle import bundle
from tests.support.agent.data import toy_task
from tests.support.clock import ManualClock
from tests.support.identity.trust import ME, NOW, Keys, decided, release, root, signed
from tests.support.services import until
from tests.unit.edge_agent.deployment.test_agent_deploy import device, passed
from tests.unit.edge_agent.trust.test_trust_agent import EXCHANGED, Desk, here, signed_bundle, vouched

HIGHEST = 2**31 - 1
RULES = Trial(windows=50, max_errors=0, deadline_s=600.5, max_drift=0.3)
ONE = release(1).pointer.model_copy(update={"serial": 7, "trial": RULES})


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def announced(desk, pointer=ONE, *roots, keys=None, **by):
    """A decision with good vouchers; ``by``: who signed it, for whom."""
    full = desk.put(release(1, keys=keys), *roots)
    return decided(pointer, *by.pop("numbers", ()), keys=keys, **by).model_copy(update={"trust": full.trust})


async def refused(desk, pointer, words, reason=Reason.UNTRUSTED):
    pulled = list(desk.shelf.fetched)
    with pytest.raises(Refused, match=words) as caught:
        await desk.trust.require(pointer)
    assert caught.value.reason is reason
    assert not desk.trust.is_decided(pointer)
    assert words in desk.trust.status()["refused"]
    assert desk.shelf.fetched == pulled, "no list is pulled for a decision that is none"


async def test_a_decision_that_was_signed_counts_for_the_fleet_and_for_its_device(desk):
    for name in (None, "d"):
        pointer = messages.decode(messages.encode(announced(desk, device=name)), ModelPointer)
        assert not desk.trust.is_decided(pointer), "not yet known"
        await desk.trust.require(pointer)
        assert desk.trust.is_decided(pointer)


async def test_attack_an_arbitrary_serial(desk):
    forged = announced(desk).model_copy(update={"serial": HIGHEST})
    await refused(desk, forged, f"decision: serial {HIGHEST} is announced, 7 was signed")
    none = announced(desk).model_copy(update={"serial": 0})
    await refused(desk, none, "serial 0 is announced, 7 was signed")


@pytest.mark.parametrize(
    "rules", [None, Trial(windows=1, max_errors=100_000), RULES.model_copy(update={"max_drift": 1})]
)
async def test_attack_rules_of_the_trial_are_exchanged_or_left_out(desk, rules):
    forged = announced(desk).model_copy(update={"trial": rules})
    await refused(desk, forged, "the rules of the trial are not those that were signed")


async def test_attack_rules_are_added_where_the_device_has_its_own(desk):
    plain = announced(desk, ONE.model_copy(update={"trial": None}))
    await desk.trust.require(plain)
    forged = plain.model_copy(update={"trial": Trial(windows=1)})
    pulled = len(desk.shelf.fetched)
    with pytest.raises(Refused, match="the rules of the trial"):
        await desk.trust.require(forged)
    assert (len(desk.shelf.fetched), desk.trust.is_decided(forged)) == (pulled, False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 8}, "version 8 is announced, 1 was signed"),
        ({"task": "other"}, "task other is announced, toy was signed"),
        ({"bundle": BlobRef(digest="0" * 64, size=8)}, "bundle 000000000000 is announced"),
        ({"bundle": ONE.bundle.model_copy(update={"size": 9})}, "is announced"),
    ],
)
async def test_attack_a_decision_is_put_on_another_bundle(desk, change, words):
    await refused(desk, announced(desk).model_copy(update=change), words)


async def test_attack_another_devices_pointer_is_replayed(desk):
    await refused(desk, announced(desk, device="e"), "it was signed for device 'e', and this is 'd'")


async def test_attack_another_fleets_pointer_is_replayed(desk):
    await refused(desk, announced(desk, fleet="g"), "it was signed for fleet 'g', and this is 'f'")


async def test_attack_the_signature_is_left_out(desk):
    bare = announced(desk).model_copy(update={"decision": None})
    await refused(desk, bare, "decision: it is not signed")
    envelope = drafted(ONE, *ME, 1).encode().decode()
    await refused(desk, bare.model_copy(update={"decision": envelope}), "no key of root 1 for targets")


@pytest.mark.parametrize("number", [9, 1, 3, 4], ids=["nobody's", "the root's", "timestamp's", "snapshot's"])
async def test_attack_another_key_signs(desk, number):
    await refused(desk, announced(desk, numbers=(number,)), "no key of root 1 for targets")


async def test_attack_a_signature_under_the_name_of_the_right_key(desk):
    envelope = Envelope.read(decided(ONE, 9).decision.encode(), 4096, "")
    right = Envelope.read(decided(ONE).decision.encode(), 4096, "").signatures[0].keyid
    stolen = envelope.signatures[0].model_copy(update={"keyid": right})
    text = Envelope(envelope.signed, (stolen,)).encode().decode()
    await refused(desk, announced(desk).model_copy(update={"decision": text}), "0 of its signatures")


async def test_attack_what_was_signed_is_changed_on_both_sides(desk):
    good = announced(desk)
    said = json.loads(good.decision)
    for change in ({"serial": HIGHEST}, {"device": "d"}, {"root": 9}, {"new": "field"}):
        text = json.dumps({**said, "signed": {**said["signed"], **change}})
        outer = {"serial": change.get("serial", 7), "decision": text}
        await refused(desk, good.model_copy(update=outer), "0 of its signatures")


async def test_attack_a_decision_of_the_signer_before(desk):
    second = root(EXCHANGED, 2, by=(1,))
    await desk.trust.require(announced(desk, ONE, second, keys=EXCHANGED, root=2))
    old = announced(desk, ONE.model_copy(update={"serial": 99}), second)
    await refused(desk, old, "it was signed under root 1, and no key of root 2 for targets")
    old = announced(desk, ONE, second, keys=EXCHANGED, root=1)  # the new key, for the time of the old one
    await refused(desk, old, "signed under root 1, and what counts begins with root 2", Reason.EXPIRED)


async def test_a_key_that_was_taken_back_and_came_again_brings_no_old_decision_back(desk):
    roots = root(EXCHANGED, 2, by=(1,)), root(Keys(), 3, by=(1,))
    await desk.trust.require(announced(desk, ONE, *roots, root=3))
    old = announced(desk, ONE.model_copy(update={"serial": 99}), *roots, root=1)
    await refused(desk, old, "signed under root 1, and what counts begins with root 3", Reason.EXPIRED)


async def test_a_root_that_keeps_the_online_key_keeps_its_decisions(desk):
    await desk.trust.require(announced(desk, ONE, root(version=2, by=(1,)), root=2))
    await desk.trust.require(announced(desk, ONE, root(version=2, by=(1,)), root=1))
    assert desk.trust.epoch == 1


async def test_attack_other_things_that_the_key_signed_are_no_decision(desk):
    one = release(1)
    for text in (
        one.targets.decode(),
        signed(Envelope({"_type": "decision"}, ()), 5).decode(),
        "{}",
        "[",
        "\ud800",
    ):
        with pytest.raises(Refused) as caught:
            await desk.trust.require(announced(desk).model_copy(update={"decision": text}))
        assert caught.value.reason is Reason.MALFORMED
    with pytest.raises(Refused, match="malformed: targets"):
        read(Targets, decided(ONE).decision.encode())


async def test_attack_endless_decisions(desk):
    huge = announced(desk).model_copy(update={"decision": " " * (MAX_DECISION_BYTES + 1)})
    with pytest.raises(Refused) as caught:
        await desk.trust.require(huge)
    assert caught.value.reason is Reason.TOO_LARGE
    with pytest.raises(Refused, match="decision"):
        messages.decode(huge.model_dump_json().encode(), ModelPointer)


async def test_a_decision_is_verified_once_and_compared_each_time(tmp_path):
    steps = []

    async def counted(trusted, role, data, now):
        steps.append(role)
        return await here(trusted, role, data, now)

    desk = Desk(tmp_path)
    desk.trust = MetadataUpdater(tmp_path / "trust", desk.first, desk.shelf, desk.clock, 1, ME, counted)
    good = announced(desk)
    for _ in range(3):
        await desk.trust.require(good)
    assert steps.count("decision") == 1
    await refused(desk, good.model_copy(update={"serial": 8}), "serial 8 is announced")
    assert steps.count("decision") == 1
    said = json.loads(good.decision)
    said["signed"]["root"] = 2
    for _ in range(2):
        with pytest.raises(Refused, match="0 of its signatures"):
            await desk.trust.require(good.model_copy(update={"decision": json.dumps(said)}))
    assert steps.count("decision") == 3, "what was wrong is not remembered as right"


async def test_a_decision_that_a_later_release_says_more_in_is_read(desk):
    said = drafted(ONE, "f", None, 1).signed
    later = {**said, "trial": {**said["trial"], "max_heat": "40.5"}, "until": 7}
    text = signed(Envelope(later, ()), 5).decode()
    full = announced(desk).model_copy(update={"decision": text})
    sent = json.loads(messages.encode(full))
    sent["trial"]["max_heat"] = 40.5
    sent["more"] = {"of": "it"}
    await desk.trust.require(messages.decode(json.dumps(sent).encode(), ModelPointer))


async def test_without_a_root_a_decision_is_not_looked_at(tmp_path, desk):
    open_ = MetadataUpdater(tmp_path, None, desk.shelf, desk.clock, 1, ME)
    forged = announced(desk, device="e").model_copy(update={"serial": HIGHEST, "decision": "nonsense"})
    await open_.require(forged)
    assert open_.is_decided(forged)


def test_a_decision_fits_into_its_bound_with_the_longest_names():
    name = "n" * MAX_NAME
    rules = Trial.model_validate(
        dict.fromkeys(("max_latency_ratio",), 1000 / 3) | {"windows": 100_000, "deadline_s": 2592000 / 7}
    )
    long = ONE.model_copy(update={"task": name, "version": HIGHEST, "serial": HIGHEST, "trial": rules})
    text = signed(drafted(long, name, name, HIGHEST), 5, 6, 7, 8).decode()
    assert len(text) < MAX_DECISION_BYTES / 2
    assert not read_decision(text)[0].difference(long)


# -- as a part of deploying


def of(one, serial, **by):
    return one.pointer.model_copy(update={"serial": serial, **by})


async def test_a_forged_decision_does_not_stand_before_a_good_one(tmp_path):
    first = TrustedMetadata.begin(root())
    async with device(tmp_path, first=first, trust_clock=ManualClock(wall=NOW)) as deployment:
        shelf, (one, two) = deployment.shelf, (signed_bundle(1), signed_bundle(2))
        for data in (one.bundle, two.bundle):
            shelf.put(data)
        good = vouched(shelf, one, pointer=of(one, 5))
        nowhere = Vouchers(
            roots=(BlobRef(digest="0" * 64, size=9),), **good.trust.model_dump(exclude={"roots"})
        )
        for forged in (
            good.model_copy(update={"serial": HIGHEST}),
            good.model_copy(update={"serial": HIGHEST, "decision": None, "trust": nowhere}),  # never comes
        ):
            deployment.offer(forged, own=True)
        deployment.offer(good)
        await passed(deployment, 1)
        assert deployment.record.serial == 5
        deployment.offer(vouched(shelf, two, pointer=of(two, 6)))
        await passed(deployment, 2)
        deployment.cleared(own=True)
        deployment.offer(vouched(shelf, two, pointer=of(two, 7)))
        await until(lambda: deployment.record.serial == 7, 20)
        deployment.offer(vouched(shelf, two, pointer=of(two, 6)))  # replayed
        await until(lambda: "decision 6 is out of date" in deployment.why, 20)
        assert deployment.record.serial == 7


@pytest.mark.long
async def test_a_good_decision_that_fits_no_more_gives_way_to_no_earlier_one(tmp_path):
    async with device(
        tmp_path, first=TrustedMetadata.begin(root()), trust_clock=ManualClock(wall=NOW)
    ) as deployment:
        shelf, one = deployment.shelf, signed_bundle(1, 3)
        shelf.put(one.bundle)
        broken = release(2, shelf.put(b"no bundle"), version=2)
        deployment.offer(vouched(shelf, broken, pointer=of(broken, 9)), own=True)
        await until(lambda: deployment.last_refusal, 20)
        deployment.offer(vouched(shelf, one, pointer=of(one, 8)))
        await deployment._turn(deployment._tasks.workspace)
        assert deployment.inference.model is None
        assert (deployment.report().phase, deployment.report().serial) == ("refused", 9)


async def test_where_nothing_is_signed_the_later_one_is_reported_as_refused(tmp_path):
    async with device(
        tmp_path, first=TrustedMetadata.begin(root()), trust_clock=ManualClock(wall=NOW)
    ) as deployment:
        one, two = signed_bundle(1), signed_bundle(2)
        good = [vouched(deployment.shelf, each, pointer=of(each, n)) for n, each in ((5, one), (6, two))]
        old = [each.model_copy(update={"decision": None}) for each in good]
        deployment.offer(old[0])
        deployment.offer(old[1], own=True)
        await until(lambda: (said := deployment.report()) and said.serial == 6, 20)
        assert "decision: it is not signed" in deployment.report().why
        assert "upgrade it" in deployment.last_refusal


@pytest.mark.long
async def test_rules_that_were_forged_first_do_not_bar_the_good_decision(tmp_path):
    async with device(
        tmp_path, first=TrustedMetadata.begin(root()), trust_clock=ManualClock(wall=NOW)
    ) as deployment:
        one = release(1, bundle(toy_task(), 1), version=1)
        deployment.shelf.put(one.bundle)
        good = vouched(
            deployment.shelf, one, pointer=of(one, 5, trial=Trial(windows=1, max_latency_ratio=1000))
        )
        for changes in ({"trial": None}, {"version": 2}, {"task": "other"}):
            deployment.last_refusal = ""
            deployment.offer(good.model_copy(update=changes))
            await until(lambda: deployment.last_refusal, 20)
        deployment.offer(good)
        await passed(deployment, 1)
