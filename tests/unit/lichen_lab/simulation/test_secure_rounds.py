"""Secure rounds of both machines in one process: losses at each stage, kills, lies, and mutations."""

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.secure_aggregation.events import SecurePhase
from coordinator.secure_aggregation.table import TABLE as COORDINATOR
from edge_agent.secure_aggregation.events import (
    IDLE,
    AttemptEnded,
    MaskingInvited,
    MaskingPhase,
    UpdateMasked,
)
from edge_agent.secure_aggregation.record import UnreadableRecordError, from_bytes, to_bytes
from edge_agent.secure_aggregation.table import TABLE as DEVICE
from edge_agent.secure_aggregation.transitions import revealed
from lichen_lab.simulation.secure_rounds.driver import STAGES, SimulatedDevice, play
from lichen_lab.simulation.secure_rounds.fleet import attempt_of, fleet_of, identities
from lichen_lab.simulation.secure_rounds.invariants import PlayedAttempt, violations
from protocol.errors import Reason, Refused
from protocol.secure_aggregation.messages import (
    DeviceKeys,
    KeysAnnounced,
    MaskedUpdate,
    Revealed,
    SharesSent,
    encode,
)
from protocol.secure_aggregation.neighbours import circle, graph_size
from protocol.secure_aggregation.ring import packed, to_numbers, to_words
from protocol.tasks.folding import SecureAggregation

OPEN = SecureAggregation(identities="none", ring_bits=32, min_devices=3)


def vectors_of(count, size=40, bits=32, seed=0):
    rng = np.random.default_rng(seed)
    top = 1000
    return {f"d{i:03}": to_words(rng.integers(-top, top, size), bits) for i in range(count)}


def plain_sum(vectors, names, bits=32):
    return np.sum([to_numbers(vectors[name], bits) for name in names], axis=0).tolist()


def played(vectors, options=OPEN, lost=None, *, restarts=False, **kwargs):
    coordinator, devices = fleet_of(vectors, options, **kwargs)
    transcript = play(coordinator, devices, lost, restarts=restarts)
    return coordinator, devices, transcript


def survivors_after(vectors, lost):
    gone = {name for stage in STAGES[:3] for name in lost.get(stage, ())}
    return sorted(set(vectors) - gone)


@pytest.mark.parametrize(
    "stage", [stage if stage == "masked" else pytest.param(stage, marks=pytest.mark.long) for stage in STAGES]
)
def test_a_hundred_devices_of_which_thirty_are_lost_at_a_stage_give_the_sum_of_the_others(stage):
    vectors = vectors_of(100)
    lost = {stage: random.Random(stage).sample(sorted(vectors), 30)}
    coordinator, devices, transcript = played(vectors, lost=lost)
    assert coordinator.state.phase is SecurePhase.DONE, coordinator.state.why
    names = survivors_after(vectors, lost)
    assert sorted(coordinator.state.survivors) == names
    assert to_numbers(coordinator.total_N, 32).tolist() == plain_sum(vectors, names)
    assert not violations([PlayedAttempt(coordinator, devices, transcript)])
    assert not transcript.refusals


@pytest.mark.long
def test_thirty_lost_over_all_stages_together_give_the_sum_of_those_that_delivered():
    vectors = vectors_of(100)
    names = random.Random(5).sample(sorted(vectors), 30)
    lost = {stage: names[at :: len(STAGES)] for at, stage in enumerate(STAGES)}
    coordinator, *_ = played(vectors, lost=lost)
    assert coordinator.state.phase is SecurePhase.DONE, coordinator.state.why
    left = survivors_after(vectors, lost)
    assert to_numbers(coordinator.total_N, 32).tolist() == plain_sum(vectors, left)


@pytest.mark.parametrize("stage", ["masked", "unmask"])
def test_with_one_neighbour_fewer_than_the_threshold_the_sum_stays_closed_in_words(stage):
    vectors = vectors_of(8)
    size = graph_size(8, OPEN.max_lost)
    names = sorted(vectors)
    enough = {stage: names[: len(names) - 1 - size.threshold]}  # of the others of each survivor, t are left
    coordinator, *_ = played(vectors, lost=enough)
    assert coordinator.state.phase is SecurePhase.DONE, coordinator.state.why
    too_many = {stage: names[: len(names) - size.threshold]}
    coordinator, _, transcript = played(vectors, lost=too_many)
    assert coordinator.state.phase is SecurePhase.FAILED
    words = f"the sum stays closed: {size.threshold - 1} of {size.neighbours} neighbours of device 'd"
    assert words in coordinator.state.why
    assert f"the threshold is {size.threshold}" in coordinator.state.why
    assert coordinator.total_N is None
    if stage == "masked":
        assert not any(isinstance(message, Revealed) for _, _, message in transcript.sent)


@pytest.mark.parametrize("stage", STAGES)
def test_a_fleet_with_a_graph_that_is_not_complete_loses_some_at_each_stage(stage):
    vectors, options = vectors_of(40), OPEN.model_copy(update={"max_lost": 0.1})
    assert graph_size(40, 0.1).neighbours < 39
    lost = {stage: random.Random(stage).sample(sorted(vectors), 4)}
    coordinator, _, transcript = played(vectors, options, lost=lost)
    assert coordinator.state.phase is SecurePhase.DONE, coordinator.state.why
    left = survivors_after(vectors, lost)
    assert to_numbers(coordinator.total_N, 32).tolist() == plain_sum(vectors, left)
    assert not transcript.refusals


def test_with_too_few_neighbours_left_for_shares_nobody_masks():
    vectors, options = vectors_of(30), OPEN.model_copy(update={"max_lost": 0.05})
    size = graph_size(30, 0.05)
    order = circle(attempt_of().digest, vectors)
    gone = order[: size.neighbours - size.threshold + 1]  # side by side: the next ones have too few
    coordinator, devices, _ = played(vectors, options, lost={"shares": gone})
    assert coordinator.state.phase is SecurePhase.FAILED
    assert re.search(r"25 of 30 devices have sent shares; \d+ of them have 6 or more", coordinator.state.why)
    assert not any(device.masked for device in devices.values())


def test_too_few_keys_or_shares_close_the_attempt_before_anybody_masks():
    vectors, five = vectors_of(6), OPEN.model_copy(update={"min_devices": 5})
    for stage, words in (("keys", "4 devices have announced keys"), ("shares", "4 of 6 devices have sent")):
        coordinator, devices, _ = played(vectors, five, lost={stage: ["d000", "d001"]})
        assert coordinator.state.phase is SecurePhase.FAILED
        assert words in coordinator.state.why
        assert "5 or more" in coordinator.state.why
        assert not any(device.masked for device in devices.values())


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 14), st.sampled_from([16, 24, 32, 48, 64]), st.randoms(use_true_random=False))
def test_the_masked_sum_is_the_plain_sum_to_the_bit_whoever_is_lost_or_nothing_is_opened(count, bits, rng):
    options = SecureAggregation(
        identities="none", ring_bits=bits, min_devices=3, fraction_bits=6, bound=4.0, max_lost=0.2
    )
    vectors = {
        name: to_words(np.random.default_rng(rng.randrange(99)).integers(-256, 257, 30), bits)
        for name in vectors_of(count)
    }
    lost = {stage: [name for name in vectors if rng.random() < 0.12] for stage in STAGES}
    coordinator, devices, transcript = played(vectors, options, lost, restarts=rng.random() < 0.5)
    if coordinator.state.phase is SecurePhase.DONE:
        names = sorted(coordinator.state.survivors)
        assert to_numbers(coordinator.total_N, bits).tolist() == plain_sum(vectors, names, bits)
    else:
        assert coordinator.state.why
        assert coordinator.total_N is None
    assert not violations([PlayedAttempt(coordinator, devices, transcript)])


def test_a_fleet_that_restarts_at_each_stage_repeats_its_messages_and_gives_the_same_sum():
    vectors = vectors_of(9)
    coordinator, devices, transcript = played(vectors, restarts=True, lost={"masked": ["d003"]})
    assert coordinator.state.phase is SecurePhase.DONE
    left = survivors_after(vectors, {"masked": ["d003"]})
    assert to_numbers(coordinator.total_N, 32).tolist() == plain_sum(vectors, left)
    assert not transcript.refusals
    assert not violations([PlayedAttempt(coordinator, devices, transcript)])


def test_what_the_coordinator_stores_of_devices_is_uniform_and_their_vectors_are_not():
    vectors = vectors_of(12, size=4000, bits=16)
    options = SecureAggregation(identities="none", ring_bits=16, fraction_bits=6, bound=4.0, min_devices=3)
    coordinator, *_ = played(vectors, options)

    def chi_square(parts):
        counts = np.bincount(np.frombuffer(b"".join(parts), np.uint8), minlength=256)
        return float((np.square(counts - counts.sum() / 256) / (counts.sum() / 256)).sum())

    assert len(coordinator.masked) == 12
    assert chi_square(coordinator.masked.values()) < 400  # once in 50 million times above
    assert chi_square([packed(vector, 16) for vector in vectors.values()]) > 10_000


# What a device refuses of its coordinator.


def at_stage(stage, count=8, **kwargs):
    """A fleet before the stage's messages reach device d000; and these messages."""
    vectors = vectors_of(count)
    coordinator, devices = fleet_of(vectors, OPEN, **kwargs)
    inbox = []
    for one in STAGES[: STAGES.index(stage)]:
        answers = [
            (name, message)
            for name, device in devices.items()
            for message in (
                device.join(coordinator.attempt)
                if one == "keys"
                else [m for to, told in inbox if to == name for m in device.receive(encode(told))]
            )
        ]
        inbox = [told for name, message in answers for told in coordinator.receive(name, encode(message))]
    mine = next(message for name, message in inbox if name == "d000")
    return coordinator, devices, mine


def refused(device, message, words, reason):
    before = device.state
    with pytest.raises(Refused, match=words) as found:
        device.receive(encode(message))
    assert found.value.reason is reason
    assert device.state == before


def test_a_device_refuses_a_roster_that_would_not_protect_it():
    _, devices, roster = at_stage("shares")
    device, names = devices["d000"], sorted(roster.neighbours)
    first, second = names[:2]
    fewer = {name: keys for name, keys in roster.neighbours.items() if name != first}
    copied = roster.neighbours | {first: roster.neighbours[second]}
    low = roster.neighbours | {first: DeviceKeys(cipher=bytes(32), mask=b"m" * 32)}
    changes = [
        ({"attempt": attempt_of(9).digest}, "a Roster of another attempt", Reason.WRONG_ROUND),
        ({"devices": 2}, "a roster of 2 devices; this task adds 3 or more", Reason.OUT_OF_BOUNDS),
        ({"neighbours": fewer}, "6 neighbours among 8 devices; 7 others are needed", Reason.OUT_OF_BOUNDS),
        ({"devices": 100}, "7 neighbours among 100 devices; 64 others", Reason.OUT_OF_BOUNDS),
        ({"neighbours": fewer | {"d000": roster.own}}, "7 neighbours among 8", Reason.OUT_OF_BOUNDS),
        ({"own": roster.neighbours[first]}, "other keys for this device", Reason.UNTRUSTED),
        ({"neighbours": copied}, "a key is in the roster twice", Reason.DUPLICATE),
        ({"neighbours": low}, f"public key of device '{first}' is no key", Reason.MALFORMED),
    ]
    for change, words, reason in changes:
        refused(device, roster.model_copy(update=change), words, reason)
    assert [type(m) for m in device.receive(encode(roster))] == [SharesSent]
    assert device.receive(encode(roster)) == [device.state.sent], "the same again: the same answer"
    swapped = {first: roster.neighbours[second], second: roster.neighbours[first]}
    other = roster.model_copy(update={"neighbours": roster.neighbours | swapped})
    refused(device, other, "a second roster, with other neighbours or keys", Reason.DUPLICATE)


def test_a_device_refuses_shares_that_are_forged_foreign_too_few_or_of_another_attempt():
    coordinator, devices, delivery = at_stage("masked")
    device, (first, second, *rest) = devices["d000"], sorted(delivery.sealed)
    forged = delivery.sealed | {first: bytes(len(delivery.sealed[first]))}
    swapped = delivery.sealed | {first: delivery.sealed[second]}
    elsewhere = delivery.sealed | {first: coordinator.book.shares[first].sealed[second]}
    few = {name: delivery.sealed[name] for name in (first, second)}
    stranger = delivery.sealed | {"stranger": delivery.sealed[first]}
    opened = f"the shares from device '{first}' for 'd000' cannot be opened"
    changes = [
        ({"sealed": forged}, opened, Reason.UNTRUSTED),
        ({"sealed": swapped}, opened, Reason.UNTRUSTED),
        ({"sealed": elsewhere}, opened, Reason.UNTRUSTED),
        ({"sealed": few}, "2 neighbours have sent shares, of 7; the threshold is 4", Reason.OUT_OF_BOUNDS),
        ({"sealed": stranger}, "shares from 'stranger', which is no neighbour", Reason.UNKNOWN_DEVICE),
        ({"attempt": attempt_of(1, 2).digest}, "SharesDelivered of another attempt", Reason.WRONG_ROUND),
    ]
    for change, words, reason in changes:
        refused(device, delivery.model_copy(update=change), words, reason)
    assert not device.masked
    (sent,) = device.receive(encode(delivery))
    assert device.receive(encode(delivery)) == [sent], "the same again: the same vector"
    fewer = delivery.model_copy(update={"sealed": {name: delivery.sealed[name] for name in (first, *rest)}})
    refused(device, fewer, "a second delivery of shares, from other neighbours", Reason.DUPLICATE)


def test_a_device_never_tells_both_shares_of_a_neighbour_whatever_it_is_asked():
    _, devices, asked = at_stage("unmask")
    device, (first, *rest) = devices["d000"], sorted(asked.delivered)
    changes = [
        ({"lost": (first,)}, "asks for both its shares", Reason.DUPLICATE),
        ({"delivered": tuple(rest)}, "each of this device's 7 neighbours once", Reason.MALFORMED),
        ({"delivered": (*asked.delivered, "x")}, "each of this device's 7 neighbours", Reason.MALFORMED),
        ({"delivered": (*asked.delivered, first)}, "each of this device's 7 neighbours", Reason.MALFORMED),
        ({"delivered": (first,), "lost": tuple(rest)}, "1 neighbours' vectors are in", Reason.OUT_OF_BOUNDS),
        ({"attempt": attempt_of(2).digest}, "Survivors of another attempt", Reason.WRONG_ROUND),
    ]
    for change, words, reason in changes:
        refused(device, asked.model_copy(update=change), words, reason)
    (answer,) = device.receive(encode(asked))
    assert isinstance(answer, Revealed)
    device.state = from_bytes(to_bytes(device.state))  # killed
    assert device.receive(encode(asked)) == [answer]
    other = asked.model_copy(update={"delivered": tuple(rest), "lost": (first,)})
    refused(device, other, "a second list of survivors that differs .* other share", Reason.DUPLICATE)


def test_a_device_that_has_helped_to_open_a_sum_takes_part_in_no_other_from_the_same_version():
    coordinator, devices, _ = played(vectors_of(8))
    device = devices["d000"]
    with pytest.raises(Refused, match="the difference of two such sums could tell a single update"):
        device.join(replace(coordinator.attempt, attempt=2))
    device.take(AttemptEnded())
    assert device.state.secrets is None
    with pytest.raises(Refused, match="waits for the next version"):
        device.join(replace(coordinator.attempt, round=2, salt="00" * 16))
    assert device.join(attempt_of(2, base="cd" * 32))


def test_a_new_attempt_has_new_keys_and_the_same_one_is_said_again():
    _, devices, _ = at_stage("shares")
    device = devices["d000"]
    before = device.state.secrets
    (again,) = device.join(device.state.attempt)
    assert isinstance(again, KeysAnnounced)
    assert device.state.secrets == before
    device.join(attempt_of(1, 2))
    assert device.state.secrets != before
    assert device.state.phase is MaskingPhase.KEYS


# Identities.


def test_keys_are_signed_by_certificates_and_others_are_refused_on_both_sides():
    vectors = vectors_of(5)
    known = identities(sorted(vectors))
    options = OPEN.model_copy(update={"identities": "required"})
    coordinator, devices, transcript = played(vectors, options, known=known)
    assert coordinator.state.phase is SecurePhase.DONE
    assert not transcript.refusals
    authority, signers = known
    strangers, theirs = identities(sorted(vectors))
    signed = lambda signer, attempt=coordinator.attempt: (  # noqa: E731
        replace_signer(devices["d000"], signer).join(attempt)[0]
    )
    fresh, _ = fleet_of(vectors, options, known=known)
    for message, words in (
        (signed(theirs["d000"]), "not of the fleet's authority"),
        (signed(signers["d001"]), "keys of device 'd000' come with a certificate of 'd001'"),
        (with_keys(signed(signers["d000"]), signature=b""), "not signed by its certificate's key"),
        (with_keys(signed(signers["d000"]), mask=b"m" * 32), "not signed by its certificate's key"),
        (with_keys(signed(signers["d000"]), certificate=b"x"), "certificate cannot be read"),
        (signed(signers["d000"], attempt_of(1, 2)), "of another attempt"),
    ):
        with pytest.raises(Refused, match=re.escape(words)):
            fresh.receive("d000", encode(message))
    assert not fresh.book.keys
    # The coordinator itself puts its own keys into a neighbour's place.
    _, devices, roster = at_stage("shares", 5, known=known)
    device = devices["d000"]
    false = {"mask": b"f" * 32}
    neighbours = roster.neighbours | {"d001": roster.neighbours["d001"].model_copy(update=false)}
    refused(
        device,
        roster.model_copy(update={"neighbours": neighbours}),
        "keys of device 'd001'",
        Reason.UNTRUSTED,
    )
    assert strangers != authority


def with_keys(message, **change):
    return message.model_copy(update={"keys": message.keys.model_copy(update=change)})


def replace_signer(device, signer):
    return SimulatedDevice(replace(device.rules, signer=signer), device.vector_N)


def test_a_device_without_an_identity_takes_no_part_where_identities_are_required():
    vectors = vectors_of(5)
    _, devices = fleet_of(vectors, OPEN.model_copy(update={"identities": "required"}))
    with pytest.raises(Refused, match="keys are signed by identities, and this device has none"):
        devices["d000"].join(attempt_of())


# What the coordinator refuses of a device.


def test_the_coordinator_refuses_keys_shares_and_answers_that_are_not_the_first_or_not_asked_for():
    coordinator, devices, _ = at_stage("shares")
    other = KeysAnnounced(
        attempt=coordinator.attempt.digest, keys=DeviceKeys(cipher=b"c" * 32, mask=b"m" * 32)
    )
    with pytest.raises(Refused, match="'d001' has announced other keys before"):
        coordinator.book.take_keys("d001", other)
    sent = devices["d000"].receive(encode(coordinator.book.roster_for(coordinator.state, "d000")))[0]
    short = sent.model_copy(update={"sealed": dict(list(sent.sealed.items())[1:])})
    for device, message, words in (
        ("d000", short, "shares of device 'd000' for 6 devices; its neighbours are 7 others"),
        ("d001", sent, "shares of device 'd001' for 7 devices"),
        ("stranger", sent, "shares of device 'stranger'"),
        ("d000", sent.model_copy(update={"attempt": b"0" * 32}), "SharesSent of another attempt"),
    ):
        with pytest.raises(Refused, match=words):
            coordinator.receive(device, encode(message))
    coordinator.receive("d000", encode(sent))
    changed = sent.sealed | {"d001": bytes(len(sent.sealed["d001"]))}
    with pytest.raises(Refused, match="other shares before"):
        coordinator.receive("d000", encode(sent.model_copy(update={"sealed": changed})))

    coordinator, devices, asked = at_stage("unmask")
    (answer,) = devices["d000"].receive(encode(asked))
    fewer = dict(list(answer.seeds.items())[1:])
    moved = {"seeds": fewer, "masks": {next(iter(answer.seeds)): b"0" * 33}}
    for change in ({"seeds": fewer}, moved, {"masks": {"d001": b"\0" * 33}}):
        with pytest.raises(Refused, match="'d000' has told"):
            coordinator.receive("d000", encode(answer.model_copy(update=change)))
    with pytest.raises(Refused, match="another attempt"):
        coordinator.receive("d000", encode(answer.model_copy(update={"attempt": b"0" * 32})))


def test_a_vector_of_another_length_and_a_late_one_are_not_taken():
    coordinator, devices, delivery = at_stage("masked")
    (sent,) = devices["d000"].receive(encode(delivery))
    with pytest.raises(Refused, match="40 elements of 32 bits are 160"):
        coordinator.receive("d000", encode(sent.model_copy(update={"masked": sent.masked[:-1]})))
    coordinator.end_stage()
    assert coordinator.state.phase is SecurePhase.FAILED
    assert coordinator.receive("d000", encode(sent)) == []


def test_forged_shares_of_a_neighbour_fail_closed_in_words():
    vectors = vectors_of(8)

    class Forger(SimulatedDevice):
        def take(self, event):
            messages = super().take(event)
            if self.name != "d001":
                return messages
            return [
                m.model_copy(update={"masks": {name: b"\0" + bytes(32) for name in m.masks}})
                if isinstance(m, Revealed)
                else m
                for m in messages
            ]

    coordinator, devices = fleet_of(vectors, OPEN, device=Forger)
    play(coordinator, devices, {"masked": ["d004"]})
    assert coordinator.state.phase is SecurePhase.FAILED
    assert re.search("secret of device 'd004': the shares .*forged", coordinator.state.why)
    assert coordinator.total_N is None


def test_a_fleet_that_the_ring_has_no_room_for_is_refused_when_the_round_opens():
    options = SecureAggregation(identities="none", ring_bits=16, fraction_bits=10, bound=4.0, min_devices=3)
    assert options.capacity == 7
    coordinator, _, transcript = played(vectors_of(9, bits=16), options)
    assert len(coordinator.state.joined) == 7
    assert sum("does not fit ring_bits = 16" in words for words in transcript.refusals) == 2
    assert coordinator.state.phase is SecurePhase.DONE


# Mutations: what a judge must notice.


def judged(vectors, device, lost=None):
    coordinator, devices, transcript = played(vectors, lost=lost, device=device)
    return violations([PlayedAttempt(coordinator, devices, transcript)])


def test_an_unmasked_survivor_is_noticed():
    class Bare(SimulatedDevice):
        def mask(self, plan):
            return packed(self.vector_N, 32) if self.name == "d002" else super().mask(plan)

    class WithoutOwn(SimulatedDevice):
        def mask(self, plan):
            return super().mask(replace(plan, own=b"0" * 32))

    assert judged(vectors_of(5), SimulatedDevice) == []
    assert any("'d002' does not have the agreed masks" in words for words in judged(vectors_of(5), Bare))
    assert len(judged(vectors_of(5), WithoutOwn)) == 5


def test_a_share_that_is_told_twice_is_noticed():
    class Talker(SimulatedDevice):
        def take(self, event):
            told = super().take(event)
            if self.name != "d003" or not told or not isinstance(told[0], Revealed):
                return told
            both = told[0].model_copy(update={"masks": {n: self.state.held[n].mask for n in self.state.held}})
            return [told[0], both]

    found = judged(vectors_of(5), Talker)
    assert any("'d003' has told both shares of 'd000'" in words for words in found)


def test_a_reused_mask_is_noticed():
    class Careless(SimulatedDevice):
        def join(self, attempt):
            return self.take(MaskingInvited(attempt, b"7" * 127 + self.name[-1:].encode() + bytes(32)))

    class Impatient(SimulatedDevice):
        def take(self, event):
            told = super().take(event)
            if self.name == "d001" and isinstance(event, UpdateMasked) and isinstance(told[0], MaskedUpdate):
                return [*told, told[0].model_copy(update={"masked": told[0].masked[::-1]})]
            return told

    attempts = []
    for number in (1, 2):
        coordinator, devices = fleet_of(
            vectors_of(5), OPEN, attempt=attempt_of(number, base=f"{number}" * 64), device=Careless
        )
        attempts.append(PlayedAttempt(coordinator, devices, play(coordinator, devices)))
    assert any("a mask is reused" in words for words in violations(attempts))
    assert any("have the same key" in words for words in violations(attempts))
    assert any("'d001' has masked 2 vectors alike" in words for words in judged(vectors_of(5), Impatient))


def test_help_to_open_two_sums_from_one_version_is_noticed():
    attempts = []
    for number in (1, 2):  # other devices, which remember nothing
        coordinator, devices = fleet_of(vectors_of(5), OPEN, attempt=attempt_of(1, number))
        attempts.append(PlayedAttempt(coordinator, devices, play(coordinator, devices)))
    assert any("'d000' has revealed shares in 2 attempts" in words for words in violations(attempts))


# Records and tables.


def test_a_record_of_each_phase_comes_back_and_a_damaged_one_is_no_crash():
    for stage in STAGES[1:]:
        _, devices, message = at_stage(stage)
        device = devices["d000"]
        assert from_bytes(to_bytes(device.state)) == device.state
        device.receive(encode(message))
        data = to_bytes(device.state)
        assert from_bytes(data) == device.state
        for at in range(0, len(data), 97):
            with pytest.raises(UnreadableRecordError):
                from_bytes(data[:at])
    assert from_bytes(to_bytes(IDLE)) == IDLE
    secrets_of = devices["d000"].state.secrets
    assert repr(secrets_of.seed) not in repr(devices["d000"].state), "no secret in a log"


def test_answers_are_made_only_from_a_list_that_is_stored():
    with pytest.raises(ValueError, match="no attempt"):
        revealed(IDLE)


@pytest.mark.parametrize("table", [DEVICE, COORDINATOR], ids=["device", "coordinator"])
def test_every_phase_of_a_table_is_reached(table):
    reached, new = set(), {table.first}
    while new:
        reached |= new
        new = {to for (phase, _), row in table.rows.items() if phase in new for to, _ in row.to} - reached
    assert reached == set(type(table.first).__members__.values())


@pytest.mark.parametrize("table", [DEVICE, COORDINATOR], ids=["device", "coordinator"])
def test_the_page_shows_the_tables(table):
    page = (Path(__file__).parents[4] / "docs/secure-aggregation-state.md").read_text()
    words = "write TABLE.diagram() and TABLE.listing() into docs/secure-aggregation-state.md"
    assert f"```mermaid\n{table.diagram()}\n```" in page, words
    assert f"\n{table.listing()}\n" in page, words


def test_the_page_names_the_size_of_the_graph_and_the_defaults():
    page = (Path(__file__).parents[4] / "docs/secure-aggregation.md").read_text()
    assert f"100 devices have {graph_size(100, 0.3).neighbours} neighbours" in page
    fields = SecureAggregation.model_fields
    rows = re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \|", page, re.MULTILINE)
    assert {name: str(field.default) for name, field in fields.items()} == dict(rows)
    narrow = SecureAggregation(ring_bits=16, bound=1, fraction_bits=10)
    assert f"16 bits hold {narrow.capacity} devices with a bound of 1 and 10 fraction bits" in page
