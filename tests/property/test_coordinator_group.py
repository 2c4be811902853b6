"""Counting a group is counting one after the other; a file of frames gives back what is undamaged."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.round_machine.batch import ReceivedUpdate, accept_batch
from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from coordinator.storage.frame_files import group_name, pack, scan
from protocol.errors import Reason
from protocol.frames.frame import digest
from tests.support.coordinator.fake import header

BASE = "b" * 64
NAMES = tuple(f"d{n}" for n in range(6))
RULES = Rules(rounds=2, deadline_s=60.0, quorum=0.6, min_devices=1)
OFFERED = st.builds(
    lambda name, which, round_, base: ReceivedUpdate(
        header(name, round_, base), digest(f"{name} {which}".encode()), 10, "f", 3
    ),
    st.sampled_from((*NAMES, "stranger")),
    st.integers(0, 1),
    st.sampled_from((1, 1, 1, 2)),
    st.sampled_from((BASE, BASE, BASE, "c" * 64)),
)


def open_round() -> RoundState:
    return RoundState(
        phase=RoundPhase.COLLECTING,
        round=1,
        version=0,
        manifest=BASE,
        invited=NAMES,
        selected=NAMES,
        until=60.0,
    )


@settings(deadline=None)
@given(st.lists(OFFERED, max_size=14), st.integers(0, 14))
def test_a_group_counts_like_its_updates_one_by_one_wherever_it_is_cut(offered, cut) -> None:
    whole = accept_batch(RULES, open_round(), offered, {}, 1.0)
    state, known, answers, commands, counted = open_round(), {}, [], [], []
    for part in (offered[:cut], offered[cut:]):
        found = accept_batch(RULES, state, part, known, 1.0)
        state = found.state
        known |= {one.key: one.digest for one in found.counted}
        answers += found.answers
        commands += found.commands
        counted += found.counted
    assert state == whole.state
    assert [str(answer) for answer in answers] == [str(answer) for answer in whole.answers]
    assert tuple(commands) == whole.commands
    assert tuple(counted) == whole.counted
    devices = [one.header.device for one in counted]
    assert sorted(devices) == list(whole.state.delivered), "each device once, and nobody else"
    assert (() if whole.event is None else whole.event.devices) == tuple(devices)
    for one, answer in zip(offered, whole.answers, strict=True):
        if answer is None:
            assert one.header.device in whole.state.delivered
        elif answer.reason is Reason.DUPLICATE:
            assert one.digest not in {one.digest for one in counted}


@given(st.lists(st.binary(max_size=60), max_size=8), st.data())
def test_a_file_of_frames_gives_back_all_but_what_was_damaged(contents, data) -> None:
    frames = [(digest(content), content) for content in contents]
    packed, offsets = pack(frames)
    assert list(scan(packed)) == [
        (at, name, frame) for at, (name, frame) in zip(offsets, frames, strict=True)
    ]
    if not frames:
        return
    hurt = data.draw(st.integers(0, len(packed) - 1))
    rotten = bytearray(packed)
    rotten[hurt] ^= data.draw(st.integers(1, 255))
    victim = max(n for n, at in enumerate(offsets) if n == 0 or hurt >= at - 40)
    found = {at for at, _, _ in scan(bytes(rotten))}
    assert found == set(offsets) - {offsets[victim]}
    torn = packed[:hurt]
    assert [at for at, _, _ in scan(torn)] == [
        at for at, (_, frame) in zip(offsets, frames, strict=True) if at + len(frame) <= hurt
    ]


def test_other_frames_have_another_name() -> None:
    a, b = (digest(b"a"), b"a"), (digest(b"b"), b"b")
    assert len({group_name([a]), group_name([a, b]), group_name([b, a]), group_name([b])}) == 4
