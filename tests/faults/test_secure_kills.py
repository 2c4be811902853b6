"""Secure rounds over the services of both daemons: kills at every message, losses, and new attempts."""

import pytest

from coordinator.aggregation.fold import UnusableUpdates
from coordinator.secure_aggregation.events import SecurePhase
from edge_agent.secure_aggregation.events import MaskingPhase
from protocol.errors import Reason, Refused, Transient
from protocol.frames.frame import open_frame
from protocol.frames.headers import UpdateHeader
from protocol.secure_aggregation.messages import (
    KeysAnnounced,
    Revealed,
    Roster,
    SharesDelivered,
    SharesSent,
    Survivors,
)
from protocol.secure_aggregation.updates import MASKED, ROUTE
from tests.support.secure.world import COORDINATOR, STATE, TASK, SecureWorld, WorldLink

MESSAGES = [KeysAnnounced, Roster, SharesSent, SharesDelivered, None, Survivors, Revealed]
NAMES = ["keys", "roster", "shares", "delivery", "masked", "survivors", "answers"]


@pytest.fixture
async def world(tmp_path):
    made = SecureWorld(tmp_path)
    yield made
    await made.close()


@pytest.mark.parametrize("victim", [COORDINATOR, "d1"])
@pytest.mark.parametrize("kind", MESSAGES, ids=NAMES)
async def test_a_kill_at_any_message_loses_nothing(world, victim, kind):
    def kill_at(sender, message):
        if kind is None:
            return victim if message is None and sender == "d1" else ""
        if not isinstance(message, kind):
            return ""
        return victim if sender in {"d1", COORDINATOR} else ""

    world.kill_at = kill_at
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    made, devices = await world.close_round()
    assert devices == tuple(world.names)
    assert made == world.plain(world.names)
    assert not world.refusals
    assert world.kill_at("d1", None) == "", "the kill took place"


async def test_a_round_that_closes_without_one_device_has_the_sum_of_the_others(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    del world.entries["d2"]
    made, devices = await world.close_round()
    assert devices == ("d0", "d1", "d3")
    assert made == world.plain(["d0", "d1", "d3"])


async def test_a_new_attempt_has_new_masks_and_updates_of_the_former_are_given_up(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    old = {name: entry.path.read_bytes() for name, entry in world.entries.items()}
    world.rounds = world.rounds.model_copy(
        update={"attempt": 2, "delivered": world.rounds.selected.adding([])}
    )
    await world.until(lambda: bool(world.lost))
    assert set(world.lost[0].lost) == set(world.names)
    assert {refused.reason for refused in world.lost[0].lost.values()} == {Reason.WRONG_ROUND}
    for name in world.names:
        world.kill(name)  # trained again
    await world.until(lambda: len(world.entries) == 4)
    assert all(world.entries[name].path.read_bytes() != frame for name, frame in old.items())
    made, _ = await world.close_round()
    assert made == world.plain(world.names)


async def test_too_few_survivors_are_no_sum_and_another_attempt_follows(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    for name in ("d0", "d1"):
        del world.entries[name]
    with pytest.raises(UnusableUpdates) as found:
        await world.close_round()
    assert set(found.value.lost) == {"d2", "d3"}
    assert "2 of 4 masked updates came, the task adds 3 or more" in str(found.value.lost["d2"])
    assert not any(isinstance(message, Survivors) for _, message in world.seen)


async def test_a_sum_that_stays_closed_after_answers_gives_the_same_version_again(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    deaf = world.devices.copy()
    world.devices = {**deaf, **{name: Deaf() for name in ("d0", "d1", "d2")}}
    world.secure._rules = world.secure._rules.__class__(
        world.secure._rules.options, world.secure._rules.salt, 1
    )
    made, devices = await world.close_round()
    assert devices == ()
    assert made == {name: x.tobytes() for name, x in STATE["head"].items()}
    assert world.secure._state.phase is SecurePhase.FAILED
    assert "the sum stays closed: " in world.secure.why
    (refusal,) = [r for r in [await second_attempt(world, "d3")] if r]
    assert "helped to open a sum" in refusal


class Deaf:
    """A device that is gone."""

    async def on_answer(self, _route, _payload):
        return None


async def second_attempt(world, name):
    world.rounds = world.rounds.model_copy(update={"attempt": 2})
    try:
        await world.devices[name].take_part(world.offer(), TASK, world.vector(name), None)
    except Refused as refused:
        return refused.detail
    return ""


async def test_what_lies_on_the_coordinators_disk_is_no_update(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    plain = {world.vector(name).tobytes() for name in world.names}
    stored = b"".join(file.read_bytes() for file in (world.folder / COORDINATOR).iterdir())
    frames = [entry.path.read_bytes() for entry in world.entries.values()]
    for vector in plain:
        assert vector not in stored
        assert all(vector not in frame for frame in frames)
    seeds = [service._state.secrets.seed for service in world.devices.values()]
    assert all(seed not in stored for seed in seeds)


async def test_masked_updates_that_tell_more_or_are_of_others_are_refused(world):
    world.start()
    await world.until(lambda: len(world.entries) == 4)
    header, tensors = open_frame(world.entries["d0"].path.read_bytes(), UpdateHeader)
    cases = [
        (header.model_copy(update={"extra": {}}), tensors, "not masked for the present attempt"),
        (
            header.model_copy(update={"extra": {**header.extra, "loss": 1}}),
            tensors,
            "its route alone",
        ),
        (
            header.model_copy(update={"extra": {**header.extra, ROUTE: {}}}),
            tensors,
            "its route alone",
        ),
        (header.model_copy(update={"device": "stranger"}), tensors, "stranger was not told to mask"),
        (header, {}, f"the only tensor is {MASKED!r}"),
        (header, tensors | {"head/w": tensors[MASKED]}, f"the only tensor is {MASKED!r}"),
    ]
    for head, given, words in cases:
        with pytest.raises(Refused, match=words):
            world.secure.check_update(STATE, head, given)
    world.secure.check_update(STATE, header, tensors)
    assert {service._state.phase for service in world.devices.values()} == {MaskingPhase.MASKED}


async def test_messages_that_a_broker_does_not_take_end_no_daemon_and_are_asked_for_again(world):
    refusing = {"left": 12}
    plain = WorldLink.publish

    async def publish(self, topic, payload, **more):
        if refusing["left"]:
            refusing["left"] -= 1
            kind = Refused if refusing["left"] % 2 else Transient
            raise kind(Reason.TOO_LARGE, "too large") if kind is Refused else kind("not connected")
        await plain(self, topic, payload, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorldLink, "publish", publish)
        world.start()
        await world.until(lambda: len(world.entries) == 4)
        made, devices = await world.close_round()
    assert refusing["left"] == 0
    assert made == world.plain(world.names)
    assert devices == tuple(world.names)
