"""What the link must do, and what brokers do wrong, against a broker that does it on demand."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from protocol.errors import Refused, Transient
from runtime.mqtt.inbox import Message
from runtime.mqtt.link import Link
from tests.support.network.brokers import free_port
from tests.support.network.fake_broker import FakeBroker, fake_broker
from tests.support.network.links import quick, running
from tests.support.services import until


def _link(fake: FakeBroker, max_queued: int = 256, **options) -> Link:
    protocol = "5" if fake.mqtt5 else "3.1.1"
    settings = quick(fake.port, protocol=protocol, **options)
    return Link(settings, "me", filters=[("a/#", 1)], max_queued=max_queued, spare_bytes=0)


async def _take(link: Link, count: int) -> list[Message]:
    taken: list[Message] = []
    async with asyncio.timeout(10):
        async for message in link.messages():
            taken.append(message)
            if len(taken) == count:
                break
    return taken


async def test_duty_1_a_packet_above_the_connacks_limit_is_refused_and_the_link_goes_on():
    connack = b"\x00\x00\x05\x27" + (2000).to_bytes(4)  # Maximum Packet Size
    async with fake_broker(FakeBroker(connack=connack)) as fake, running(_link(fake)) as link:
        fits = 2000 - (1 + 2 + 2 + len("a/b") + 2 + 1)
        await link.publish("a/b", bytes(fits))
        with pytest.raises(Refused, match=r"too_large.*2001 bytes for a/b.*at most 2000"):
            await link.publish("a/b", bytes(fits + 1))
        await link.publish("a/b", b"later")
        assert link.counters.reconnects == 0
        assert link.chunk_bytes == 2000 - 512


async def test_duty_1_the_cap_counts_where_connack_names_no_limit():
    async with (
        fake_broker(FakeBroker()) as fake,
        running(_link(fake, max_packet_bytes=4096, chunk_bytes=65536)) as link,
    ):
        with pytest.raises(Refused, match="at most 4096"):
            await link.publish("a/b", bytes(4096))
        assert link.chunk_bytes == 4096 - 512


@pytest.mark.parametrize(("receive_maximum", "window", "most"), [(2, 4, 2), (100, 3, 4)])
async def test_duty_2_no_more_in_flight_than_receive_maximum_and_window(receive_maximum, window, most):
    connack = b"\x00\x00\x03\x21" + receive_maximum.to_bytes(2)
    fake = FakeBroker(connack=connack, puback=False)
    async with fake_broker(fake), running(_link(fake, window=window)) as link:
        sending = [asyncio.create_task(link.publish("a/b", b"x")) for _ in range(10)]
        for done in range(10):
            await until(lambda done=done: len(fake.published) >= min(10, done + most))
            await asyncio.sleep(0.02)
            assert fake.unacked <= most
            await fake.acknowledge(fake.published[done][2])
        await asyncio.gather(*sending)
        assert fake.most_unacked == most


async def test_duty_2_a_publish_that_timed_out_keeps_its_slot_until_the_puback():
    fake = FakeBroker(puback=False)
    async with fake_broker(fake), running(_link(fake, window=1)) as link:
        with pytest.raises(Transient, match="no PUBACK for a/blob/1"):
            await link.publish("a/blob/1", b"x", timeout_s=0.1)
        with pytest.raises(Transient, match="no PUBACK for a/blob/2"):
            await link.publish("a/blob/2", b"x", timeout_s=0.1)
        assert [topic for topic, _, _ in fake.published] == ["a/blob/1"]
        fake.puback = True
        await fake.acknowledge(fake.published[0][2])
        await link.publish("a/blob/3", b"x", timeout_s=5)
        assert link.counters.messages_out == 1


async def test_duty_3_publish_returns_at_its_own_puback_whatever_the_order():
    fake = FakeBroker(puback=False)
    async with fake_broker(fake), running(_link(fake)) as link:
        first, second = (asyncio.create_task(link.publish(f"a/{i}", b"x")) for i in range(2))
        await until(lambda: len(fake.published) == 2)
        await fake.acknowledge(fake.published[1][2])
        await asyncio.wait_for(second, 5)
        assert not first.done()
        await fake.acknowledge(fake.published[0][2])
        await asyncio.wait_for(first, 5)


async def test_duty_4_nothing_is_acknowledged_before_the_consumer_says_so_and_then_in_order():
    async with fake_broker(FakeBroker()) as fake, running(_link(fake)) as link:
        for mid in (1, 2, 3):
            await fake.deliver(b"a/b", b"x", mid)
        first, second, third = await _take(link, 3)
        await asyncio.sleep(0.05)
        assert fake.pubacks == []
        third.ack()
        second.ack()
        await asyncio.sleep(0.05)
        assert fake.pubacks == []  # MQTT 5, 4.6: in the order of arrival
        await asyncio.to_thread(first.ack)
        first.ack()
        await until(lambda: len(fake.pubacks) == 3)
        await asyncio.sleep(0.05)
        assert fake.pubacks == [1, 2, 3]


async def test_duty_5_no_topic_alias_though_the_broker_offers_them():
    connack = b"\x00\x00\x03\x22" + (10).to_bytes(2)  # Topic Alias Maximum
    async with fake_broker(FakeBroker(connack=connack)) as fake, running(_link(fake)) as link:
        for _ in range(3):
            await link.publish("a/b", b"x")
        assert [(topic, properties) for topic, properties, _ in fake.published] == [("a/b", b"\x00")] * 3


async def test_our_receive_maximum_is_told_so_that_the_bounded_queue_cannot_overflow():
    async with fake_broker(FakeBroker()) as fake, running(_link(fake, max_queued=7)):
        assert b"\x21\x00\x07" in fake.connect_packets[0]


async def test_a_full_queue_drops_without_ack_counts_logs_and_asks_again():
    fake = FakeBroker(mqtt5=False, connack=b"\x00\x00")  # 3.1.1 knows no Receive Maximum
    with capture_logs() as logs:
        async with fake_broker(fake), running(_link(fake, max_queued=4)) as link:
            for mid in range(1, 7):
                await fake.deliver(b"a/b", b"%d" % mid, mid)
            await until(lambda: link.counters.dropped == 2)
            taken = await _take(link, 4)
            for message in taken:
                message.ack()
            await until(lambda: link.counters.reconnects == 1)
            assert [m.payload for m in taken] == [b"1", b"2", b"3", b"4"]
            assert fake.pubacks == [1, 2, 3, 4]
    assert any(entry["event"] == "messages_dropped" and entry.get("count") == 2 for entry in logs)
    assert any("2 messages had no room" in entry.get("why", "") for entry in logs)


async def test_a_lost_link_ends_a_publish_as_transient_and_paho_sends_nothing_again():
    fake = FakeBroker(puback=False)
    async with fake_broker(fake), running(_link(fake)) as link:
        sending = asyncio.create_task(link.publish("a/b", b"x", timeout_s=30))
        await until(lambda: fake.published)
        began = time.monotonic()
        fake.cut()
        with pytest.raises(Transient, match=r"a/b was not published: the connection to the broker at 127"):
            await asyncio.wait_for(sending, 5)
        assert time.monotonic() - began < 2
        await until(lambda: fake.connects == 2 and link.connected)
        await asyncio.sleep(0.1)
        assert len(fake.published) == 1
        fake.puback = True
        await link.publish("a/b", b"x")
        assert len(fake.published) == 2


async def test_an_ack_of_an_old_connection_never_reaches_the_new_one():
    async with fake_broker(FakeBroker()) as fake, running(_link(fake)) as link:
        await fake.deliver(b"a/b", b"x", 1)
        (old,) = await _take(link, 1)
        assert not old.comes_again
        fake.cut()
        await until(lambda: fake.connects == 2 and link.connected)
        assert old.comes_again
        old.ack()
        await asyncio.sleep(0.05)
        assert fake.pubacks == []


@pytest.mark.parametrize(("present", "left"), [(True, [b"new"]), (False, [b"old", b"new"])])
async def test_what_a_kept_session_delivers_again_is_not_kept_twice(present, left):
    fake = FakeBroker(connack=bytes([present, 0, 0]))
    async with fake_broker(fake), running(_link(fake)) as link:
        await fake.deliver(b"a/b", b"old", 1)
        await until(lambda: link.counters.messages_in == 1)
        fake.cut()
        await until(lambda: fake.connects == 2 and link.connected)
        await fake.deliver(b"a/b", b"new", 1)
        assert [m.payload for m in await _take(link, len(left))] == left


async def test_a_session_taken_over_is_said_in_words_and_not_fought_for():
    with capture_logs() as logs:
        async with (
            fake_broker(FakeBroker()) as fake,
            running(_link(fake, backoff_min_s=0.01, backoff_max_s=60)) as link,
        ):
            await fake.disconnect(0x8E)
            await until(lambda: not link.connected)
            await asyncio.sleep(0.3)
            assert fake.connects == 1  # it waits at least half of the longest back-off
            assert "same client id" in link.why
    assert any("stop one" in entry.get("why", "") for entry in logs)


async def test_a_session_always_closed_in_order_is_another_clients_and_not_fought_for_either():
    """MQTT 3.1.1 has no word for a takeover: the TCP connection just ends."""
    fake = FakeBroker(mqtt5=False, connack=b"\x00\x00")
    with capture_logs() as logs:
        async with fake_broker(fake), running(_link(fake, backoff_min_s=0.01, backoff_max_s=60)) as link:
            for wanted in range(1, 7):
                await until(lambda wanted=wanted: fake.connects == wanted and link.connected)
                fake.hang_up()
            await until(lambda: not link.connected)
            await asyncio.sleep(0.3)
            assert fake.connects == 6
            assert "another process uses id 'me'; stop one of the two" in link.why
            assert link.until is not None
            assert 25 < link.until - time.time() < 60
    assert any("another process uses id 'me'" in entry.get("why", "") for entry in logs)


async def test_connections_that_break_at_once_again_and_again_hint_at_the_client_id():
    fake = FakeBroker(mqtt5=False, connack=b"\x00\x00")
    async with fake_broker(fake), running(_link(fake)) as link:
        with capture_logs() as logs:
            for wanted in range(1, 5):
                await until(lambda wanted=wanted: fake.connects == wanted and link.connected)
                fake.cut()
                await until(lambda wanted=wanted: fake.connects > wanted)
    assert any("does another process use id 'me'?" in entry.get("why", "") for entry in logs)


@pytest.mark.parametrize(
    ("mqtt5", "connack", "words"),
    [
        (True, b"\x00\x86\x00", "Bad user name or password; check mqtt.username and mqtt.password_file"),
        (True, b"\x00\x87\x00", "Not authorized; check mqtt.username"),
        (False, b"\x00\x05", "Not authorized; check mqtt.username"),
        (True, b"\x00\x84\x00", "does not speak MQTT 5"),
        (True, b"\x00\x85\x00", "refuses our client id"),
        (True, b"\x00\x00\x02\x24\x00", "offers QoS 0 only"),
        (True, b"\x00\x00\x02\x25\x00", "does not store retained messages"),
        (True, b"\x00\x00\x02\x28\x00", "allows no wildcard subscriptions"),
        (True, b"\x00\x00\x05\x27\x00\x00\x04\x00", "packets of at most 1024 bytes; lichen needs 1536"),
    ],
)
async def test_what_only_a_person_can_mend_is_said_in_words_and_tried_slowly(mqtt5, connack, words):
    fake = FakeBroker(mqtt5=mqtt5, connack=connack)
    with capture_logs() as logs:
        async with (
            fake_broker(fake),
            running(_link(fake, backoff_min_s=0.01, backoff_max_s=30), connected=False) as link,
        ):
            await until(lambda: words in link.why)
            await asyncio.sleep(0.2)
            assert fake.connects == 1
            with pytest.raises(Transient, match="not published"):
                await link.publish("a/b", b"x")
    said = [entry for entry in logs if words in entry.get("why", "")]
    assert len(said) == 1
    assert f"127.0.0.1:{fake.port}" in said[0]["why"]


async def test_a_busy_broker_is_tried_again_soon():
    fake = FakeBroker(connack=b"\x00\x89\x00")
    async with fake_broker(fake), running(_link(fake), connected=False) as link:
        await until(lambda: fake.connects > 2)
        fake.connack = b"\x00\x00\x00"
        await until(lambda: link.connected)


async def test_a_broker_that_never_answers_connect_is_left_after_the_timeout():
    fake = FakeBroker(connack=None)
    async with fake_broker(fake), running(_link(fake, connect_timeout_s=0.2), connected=False) as link:
        await until(lambda: fake.connects >= 2)
        assert "no answer" in link.why


async def test_the_wrong_protocol_version_is_guessed_in_words():
    fake = FakeBroker(connack=b"\x00\x00\x00")

    async def rude(_reader, writer):
        writer.close()

    fake.serve = rude
    async with fake_broker(fake), running(_link(fake), connected=False) as link:
        await until(lambda: "does it speak MQTT 5 (mqtt.protocol)" in link.why)


async def test_a_refused_subscription_is_said_and_the_link_stays():
    with capture_logs() as logs:
        async with fake_broker(FakeBroker(suback=0x87)) as fake, running(_link(fake)) as link:
            assert link.connected
    assert any(
        entry["event"] == "subscription_refused" and entry["why"] == "a/#: Not authorized" for entry in logs
    )


async def test_a_malformed_packet_that_kills_pahos_thread_only_costs_a_reconnect():
    async with fake_broker(FakeBroker()) as fake, running(_link(fake)) as link:
        await fake.send_raw(b"\x32\x02\x00\x50")  # PUBLISH whose topic is longer than the packet
        await until(lambda: fake.connects == 2 and link.connected)


async def test_a_topic_that_is_not_utf8_is_dropped_and_acknowledged():
    async with fake_broker(FakeBroker()) as fake, running(_link(fake)) as link:
        await fake.deliver(b"a/\xff", b"x", 1)
        await fake.deliver(b"a/b", b"good", 2)
        (message,) = await _take(link, 1)
        message.ack()
        await until(lambda: fake.pubacks == [1, 2])
        assert link.counters.dropped == 1


async def test_a_broker_that_acknowledges_nothing_for_long_is_left():
    fake = FakeBroker(puback=False)
    async with fake_broker(fake), running(_link(fake, window=1, keepalive_s=1)) as link:
        with pytest.raises(Transient):
            await link.publish("a/b", b"x", timeout_s=1.6)
        await until(lambda: fake.connects == 2 and link.connected)


async def test_a_publish_the_broker_refuses_is_transient_with_its_words():
    fake = FakeBroker(puback=False)
    async with fake_broker(fake), running(_link(fake)) as link:
        sending = asyncio.create_task(link.publish("a/b", b"x"))
        await until(lambda: fake.published)
        await fake.send_raw(b"\x40\x03" + fake.published[0][2].to_bytes(2) + b"\x97")
        with pytest.raises(Transient, match="Quota exceeded"):
            await asyncio.wait_for(sending, 5)


async def test_a_broker_that_is_not_there_is_one_line_of_log_and_no_error():
    port = free_port()
    link = Link(quick(port), "me", filters=[])
    with capture_logs() as logs:
        async with running(link, connected=False):
            await asyncio.sleep(0.6)  # several attempts
            assert not link.connected
    assert [e["why"] for e in logs if e["log_level"] == "warning"] == [
        f"the broker at 127.0.0.1:{port} is not there: connection refused"
    ]


async def test_an_unknown_host_is_said_with_its_key():
    link = Link(quick(1883, host="no-such-host.invalid"), "me", filters=[])
    async with running(link, connected=False):
        await until(lambda: "the host name is not known" in link.why or "cannot be reached" in link.why)
        assert "no-such-host.invalid:1883" in link.why


async def test_a_greeting_that_cannot_be_sent_makes_it_connect_anew():
    fake = FakeBroker()
    times = []

    async def greet():
        times.append(time.monotonic())
        if len(times) == 1:
            raise Transient("birth")
        await link.publish("a/birth", b"online")

    async with fake_broker(fake):
        link = Link(quick(fake.port), "me", filters=[("a/#", 1)])
        async with running(link, connected=False, on_connect=greet):
            await until(lambda: fake.published)
            assert len(times) == 2
            fake.cut()
            await until(lambda: len(fake.published) == 2)


async def test_a_fault_in_the_greeting_is_a_fault_of_the_link():
    async def greet():
        raise ZeroDivisionError

    async with fake_broker(FakeBroker()) as fake:
        link = Link(quick(fake.port), "me", filters=[])
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(link.run(on_connect=greet), 10)


async def test_cancelling_in_the_middle_of_dialling_ends_at_once():
    fake = FakeBroker(connack=None)
    async with fake_broker(fake):
        task = asyncio.create_task(Link(quick(fake.port), "me", filters=[]).run())
        await until(lambda: fake.connects == 1)
        began = time.monotonic()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
        assert time.monotonic() - began < 1.5


async def test_close_says_goodbye_and_run_returns():
    async with fake_broker(FakeBroker()) as fake:
        link = Link(quick(fake.port), "me", filters=[])
        task = asyncio.create_task(link.run())
        await asyncio.wait_for(link.wait_connected(), 5)
        await link.close()
        await asyncio.wait_for(task, 5)
        assert not link.connected


async def test_a_link_that_is_cut_again_and_again_does_not_wait_longer_and_longer():
    fake, ceilings = FakeBroker(), []
    async with fake_broker(fake):
        link = _link(fake, backoff_min_s=0.01, backoff_max_s=60.0)
        draw = link._random.uniform

        def noted(low: float, high: float) -> float:
            ceilings.append(high)
            return draw(low, high)

        link._random.uniform = noted
        async with running(link), asyncio.timeout(10):
            while len(ceilings) < 12:
                await until(lambda: link.connected)
                fake.cut()
                await asyncio.sleep(0.02)
    assert max(ceilings) == pytest.approx(0.08), "8 times the shortest, however often it was cut"
