"""When a device follows an offer: at its own moment, while the offer stands, and only if it is asked."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from edge_agent.training.offer_schedule import REPEAT_S, RETURN_S, OfferSchedule
from edge_agent.work_receiver import WorkReceiver
from protocol.cohort import moment, pack, place, threshold
from protocol.errors import Reason, Refused
from protocol.messages import Offer, encode
from runtime.concurrency.signals import Signal
from runtime.waits import StatusText
from tests.support.clock import ManualClock

SALT = "5a" * 16
OFFER = Offer(task="toy", round=3, base="ab" * 32, base_size=9, closes_in_s=60.0, salt=SALT)


class Learner:
    """Records what it is handed."""

    def __init__(self, clock):
        self.clock, self.taken, self.stopped = clock, [], 0

    def offer(self, offer):
        self.taken.append((self.clock.now(), offer.round, offer.attempt))

    def stop(self):
        self.stopped += 1


class Device:
    def __init__(self, name="usnea", connected_s=3600.0):
        self.clock = ManualClock(start=100.0)
        self.link = SimpleNamespace(connected=True, since=self.clock.wall() - connected_s)
        self.learner, self.status = Learner(self.clock), StatusText(self.clock, "no offer yet")
        self.schedule = OfferSchedule(name, self.learner, self.link, self.clock, self.status)

    @property
    def at(self):
        """Seconds after the start at which the learner got an offer."""
        return [time - 100.0 for time, _, _ in self.learner.taken]


@asynccontextmanager
async def running(**how):
    device = Device(**how)
    task = asyncio.create_task(device.schedule.run())
    try:
        await asyncio.sleep(0)
        yield device
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_device_begins_at_its_moment_and_an_offer_that_is_repeated_keeps_it() -> None:
    async with running() as device:
        due = 40.0 * moment(SALT, "usnea")
        assert 12.0 < due < 40.0, "the moment of this name and salt"
        device.schedule.take(OFFER.model_copy(update={"answer_within_s": 40.0}))
        assert device.status.why == "selected in round 3; begins at its moment"
        assert device.status.until == pytest.approx(device.clock.wall() + due)
        await device.clock.advance(5.0)
        device.schedule.take(OFFER.model_copy(update={"answer_within_s": 35.0, "closes_in_s": 55.0}))
        await device.clock.advance(due - 5.1)
        assert device.at == []
        await device.clock.advance(0.2)
        assert device.at == pytest.approx([due])


async def test_while_it_stands_an_offer_goes_to_the_learner_again_and_never_after_its_time() -> None:
    async with running() as device:
        device.schedule.take(OFFER.model_copy(update={"closes_in_s": 3 * REPEAT_S + 1}))
        await device.clock.advance(10 * REPEAT_S)
        assert device.at == pytest.approx([0.0, REPEAT_S, 2 * REPEAT_S, 3 * REPEAT_S])


async def test_a_withdrawn_offer_ends_the_training_and_does_not_come_again() -> None:
    async with running() as device:
        device.schedule.take(OFFER)
        await device.clock.advance(0.1)
        device.schedule.end()
        await device.clock.advance(10 * REPEAT_S)
        assert (len(device.at), device.learner.stopped) == (1, 1)


async def test_the_offer_of_a_later_round_or_attempt_replaces_one_that_waits() -> None:
    async with running() as device:
        device.schedule.take(OFFER.model_copy(update={"answer_within_s": 40.0}))
        device.schedule.take(OFFER.model_copy(update={"attempt": 2}))
        await device.clock.advance(1.0)
        device.schedule.take(OFFER.model_copy(update={"round": 4}))
        await device.clock.advance(1.0)
        assert [(round_, attempt) for _, round_, attempt in device.learner.taken] == [(3, 2), (4, 1)]


async def test_a_device_that_has_just_come_back_does_not_wait_for_a_time_that_may_be_over() -> None:
    async with running(connected_s=1.0) as device:
        device.schedule.take(OFFER.model_copy(update={"answer_within_s": 50.0}))
        await device.clock.advance(RETURN_S)
        assert device.at == pytest.approx([RETURN_S * moment(SALT, "usnea")])


@pytest.mark.parametrize(
    ("cohort", "asked"),
    [
        ({}, True),
        ({"below": threshold(place(SALT, "usnea") + 1)}, True),
        ({"below": threshold(place(SALT, "usnea"))}, False),
        ({"members": pack(SALT, ["usnea", "evernia"])}, True),
        ({"members": pack(SALT, ["evernia"])}, False),
        ({"members": pack(SALT, ["evernia"]), "below": threshold(2**64)}, False),
    ],
)
async def test_a_device_that_is_not_asked_forgets_the_former_offer_and_says_so(cohort, asked) -> None:
    async with running() as device:
        device.schedule.take(OFFER.model_copy(update={"answer_within_s": 40.0, "round": 2}))
        device.status.say("no offer yet")
        assert device.schedule.asks_us(OFFER.model_copy(update=cohort)) is asked
        await device.clock.advance(50.0)
        assert bool(device.at) is asked
        assert ("not selected in round 3" in device.status.why) is not asked


class Verifier:
    """Counts what is given to it; ``active``: there is a root."""

    active = True

    def __init__(self):
        self.given = []

    def give(self, work):
        self.given.append(work)


async def test_only_an_offer_that_asks_the_device_costs_a_verification() -> None:
    async with running() as device:
        verifier = Verifier()
        work = WorkReceiver(
            verifier, None, device.learner, device.schedule, None, changed=Signal(), refused=Counter()
        )
        for members in (["evernia"], ["usnea"], ["ramalina"]):
            await work.on_offer(None, encode(OFFER.model_copy(update={"members": pack(SALT, members)})))
        assert [offer.asks("usnea") for offer in verifier.given] == [True]
        for broken in ({"members": "!"}, {"delivered": "AAA="}):
            with pytest.raises(Refused) as refused:
                await work.on_offer(None, encode(OFFER.model_copy(update=broken)))
            assert refused.value.reason is Reason.MALFORMED
        await work.on_offer(None, b"")
        assert device.learner.stopped == 1
