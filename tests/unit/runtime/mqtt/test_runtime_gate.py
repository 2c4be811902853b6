"""Slots, priorities and pace of publishing; the back-off; the watch over silence."""

import asyncio
import random

import pytest

from runtime.mqtt.backoff import Backoff, Ending
from runtime.mqtt.flow_control import FlowControl, is_bulk, pace
from runtime.mqtt.keepalive import Ask, KeepaliveMonitor
from runtime.settings.load import MqttSettings
from tests.support.clock import ManualClock


def test_chunks_and_what_is_as_large_are_bulk():
    assert is_bulk("lichen/v1/f/d/x/up/blob/ab.0", 3)
    assert is_bulk("lichen/v1/f/d/x/up/update", 60_000)
    assert not is_bulk("lichen/v1/f/d/x/down/receipt", 300)


@pytest.mark.parametrize(("allowance", "burst", "unit"), [(100, 0.1, 1), (524_288, 0.25, 122_880)])
def test_no_second_wherever_it_begins_sees_more_than_the_allowance(allowance, burst, unit):
    bucket, now, went = pace(allowance, burst), 1000.0, []
    rng = random.Random(3)
    while now < 1020:
        if (pause := bucket.wait_s(now, unit)) > 0:
            now += pause
            continue
        bucket.spend(unit)
        went.append(now)
        if rng.random() < 0.005:
            now += rng.uniform(0, 3)  # idle: the bucket fills, and no further
    worst = max(sum(unit for other in went if start <= other < start + 1) for start in went)
    assert worst <= allowance
    assert sum(unit for _ in went) > 0.4 * allowance * 20, "and it is not far below it"


def test_a_bucket_without_allowance_lets_all_go_and_an_oversized_unit_goes_when_it_is_full():
    assert pace(0, 0.1).wait_s(0, 1e9) == 0
    bucket = pace(100, 0.25)
    assert bucket.wait_s(0, 1000) == 0
    bucket.spend(1000)
    assert bucket.wait_s(0, 1) == pytest.approx((1000 - 25 + 1) / 75), "the debt is paid first"


async def enter(gate, log, name, *, bulk=False, size=10):
    await gate.enter(size, bulk=bulk)
    log.append(name)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_control_overtakes_chunks_that_wait_and_has_a_slot_of_its_own():
    gate, log = FlowControl(slots=100, window=2), []
    tasks = [asyncio.create_task(enter(gate, log, f"chunk{i}", bulk=True)) for i in range(4)]
    await turns()
    assert log == ["chunk0", "chunk1"]
    tasks += [asyncio.create_task(enter(gate, log, f"control{i}")) for i in range(2)]
    await turns()
    assert log[2:] == ["control0"], "window + 1 in all"
    gate.leave(bulk=True)
    await turns()
    assert log[3:] == ["control1"], "before the chunks that waited longer"
    gate.leave(bulk=False)
    gate.leave(bulk=False)
    await turns()
    assert log[4:] == ["chunk2"], "a chunk never takes the slot of control"
    gate.close()
    await asyncio.gather(*tasks)


async def test_chunks_are_not_starved_by_control_messages():
    gate, log = FlowControl(slots=2, window=1), []
    waiting = [asyncio.create_task(enter(gate, log, "chunk", bulk=True)) for _ in range(2)]
    await turns()
    waiting += [asyncio.create_task(enter(gate, log, "control")) for _ in range(60)]
    gate.leave(bulk=True)
    while len(log) < 40:
        await turns()
        gate.leave(bulk=log[-1] == "chunk")
    assert 2 <= log.index("chunk", 1) <= 18
    gate.close()
    await asyncio.gather(*waiting)


async def test_the_brokers_receive_maximum_is_the_upper_bound_of_all():
    gate, log = FlowControl(slots=1, window=4), []
    tasks = [asyncio.create_task(enter(gate, log, i, bulk=i % 2 == 0)) for i in range(4)]
    await turns()
    assert len(log) == 1
    gate.close()
    await asyncio.gather(*tasks)


async def test_who_gives_up_waiting_or_is_granted_and_cancelled_leaves_no_slot_behind():
    gate, log = FlowControl(slots=2, window=1), []
    await gate.enter(1, bulk=True)
    impatient = asyncio.create_task(enter(gate, log, "impatient", bulk=True))
    patient = asyncio.create_task(enter(gate, log, "patient", bulk=True))
    await turns()
    impatient.cancel()
    await asyncio.wait([impatient])
    await gate.enter(1, bulk=False)
    granted = asyncio.create_task(enter(gate, log, "granted"))
    await turns()
    gate.leave(bulk=False)
    granted.cancel()  # in the turn in which it got its slot
    await asyncio.wait([granted])
    gate.leave(bulk=True)
    await asyncio.wait_for(patient, 1)
    await asyncio.wait_for(gate.enter(1, bulk=False), 1)
    assert log == ["patient"]


async def test_a_closed_gate_holds_nobody():
    gate = FlowControl(slots=1, window=1, publishes_per_s=1)
    await gate.enter(1, bulk=False)
    waits = asyncio.create_task(gate.enter(1, bulk=False))
    await turns()
    gate.close()
    await asyncio.wait_for(waits, 1)
    await asyncio.wait_for(gate.enter(1, bulk=True), 1)


async def test_the_pace_holds_both_lanes():
    gate, loop = FlowControl(slots=100, window=50, publishes_per_s=50), asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(gate.enter(1, bulk=i % 2 == 0) for i in range(30)))
    assert 0.4 <= loop.time() - began < 2, "5 at once, then 45 a second"


def drawn(settings=None):
    """A back-off whose random draws are its upper ends."""
    rng = random.Random()
    rng.uniform = lambda _low, high: high
    return Backoff(settings or MqttSettings(backoff_min_s=1, backoff_max_s=60), rng)


OPENED = Ending(was_open=True, lasted_s=1.0)
FAILED = Ending(was_open=False, lasted_s=0.0)


def test_attempts_in_vain_double_up_to_the_longest_wait():
    backoff = drawn()
    assert [backoff.after(FAILED) for _ in range(8)] == [2, 4, 8, 16, 32, 60, 60, 60]
    assert backoff.after(Ending(was_open=True, lasted_s=1000)) == 1, "a connection that lasted starts anew"


def test_connections_that_are_reset_soon_wait_a_little_and_never_longer():
    backoff = drawn()
    assert [backoff.after(OPENED) for _ in range(20)] == [2, 4, *[8] * 18]
    assert "is the link poor" in backoff.suspicion


def test_a_session_that_is_always_closed_in_order_is_another_clients_and_not_fought_for():
    backoff = drawn()
    ended = Ending(was_open=True, lasted_s=1.0, in_order=True)
    waits = [backoff.after(ended) for _ in range(7)]
    assert waits == [2, 4, 8, 8, 8, 60, 60]
    assert "another process uses id" in backoff.suspicion


def test_a_broker_that_is_restarted_again_and_again_is_no_other_client():
    backoff = drawn()
    for _ in range(20):
        backoff.after(FAILED)
        backoff.after(Ending(was_open=True, lasted_s=1.0, in_order=True))
    assert "another process uses" not in backoff.suspicion


@pytest.mark.parametrize("ending", [Ending(True, 1.0, taken_over=True), Ending(False, 0.0, patient=True)])
def test_what_only_a_person_can_mend_is_tried_at_the_slowest_pace_at_once(ending):
    assert drawn().after(ending) == 60


class HandClock(ManualClock):
    def move(self, seconds: float) -> None:
        self._now += seconds


def test_silence_is_answered_by_a_ping_and_more_silence_by_an_end():
    clock = HandClock(1000.0)
    watch = KeepaliveMonitor(MqttSettings(ping_s=45, ping_timeout_s=15), clock)
    clock.move(44.9)
    assert watch.look(None) is Ask.NOTHING
    clock.move(0.2)
    assert watch.look(None) is Ask.PING
    assert watch.look(None) is Ask.NOTHING, "one ping"
    assert "a ping is out" in watch.quiet
    clock.move(15)
    words = watch.look(None)
    assert "nothing came for 60 s" in words
    assert "no answer to a ping in 15 s" in words


def test_anything_heard_answers_a_ping():
    clock = HandClock(1000.0)
    watch = KeepaliveMonitor(MqttSettings(ping_s=45, ping_timeout_s=15), clock)
    clock.move(46)
    assert watch.look(None) is Ask.PING
    clock.move(14)
    watch.heard()
    clock.move(2)
    assert watch.look(None) is Ask.NOTHING
    assert watch.quiet == ""


def test_an_answer_that_comes_while_the_watch_looks_is_no_fault():
    """It is noted by the network thread, between any two lines."""

    class Answered(KeepaliveMonitor):
        @property
        def _pinged(self):
            pinged, self.kept = self.kept, None
            return pinged

        @_pinged.setter
        def _pinged(self, when):
            self.kept = when

    clock = HandClock(1000.0)
    watch = Answered(MqttSettings(ping_s=45, ping_timeout_s=15), clock)
    clock.move(46)
    assert watch.look(None) is Ask.PING
    clock.move(14)
    assert watch.look(None) is Ask.NOTHING
    watch.look(None)
    assert watch.quiet in ("", "nothing came for 60 s; a ping is out")


def test_messages_without_any_puback_end_it_too():
    clock = HandClock(1000.0)
    watch = KeepaliveMonitor(MqttSettings(ping_s=45, ping_timeout_s=15, keepalive_s=30), clock)
    sent = clock.now()
    for _ in range(59):
        clock.move(1)
        watch.heard()
        assert watch.look(sent) is Ask.NOTHING
    clock.move(1.5)
    watch.heard()
    assert "acknowledged nothing for 60 s" in watch.look(sent)
    watch.acked()
    assert watch.look(sent) is Ask.NOTHING


def test_without_ping_s_silence_is_nothing_to_say():
    clock = HandClock(1000.0)
    watch = KeepaliveMonitor(MqttSettings(ping_s=0), clock)
    clock.move(1e6)
    assert watch.look(None) is Ask.NOTHING
