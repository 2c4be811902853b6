"""A broker that sends more than it was told to may: within bounds nothing is dropped."""

import asyncio

from runtime.mqtt.inbox import Inbox, Message
from runtime.mqtt.link import Link
from tests.support.network.brokers import BrokerProcess, mosquitto  # noqa: F401 - a fixture
from tests.support.network.links import quick, running


async def test_beyond_its_limit_it_takes_what_fits_the_spare_bytes() -> None:
    loop, inbox = asyncio.get_running_loop(), Inbox(2, spare_bytes=5 * 2024)
    small = [Message("t", bytes(1000)) for _ in range(7)]
    assert [inbox.offer(message, loop) for message in small] == [True] * 5 + [False] * 2
    taken = inbox.stream()
    assert await anext(taken) is small[0]
    assert inbox.offer(small[5], loop), "there is room again"
    assert not inbox.offer(small[6], loop)


async def test_large_messages_have_the_limit_alone() -> None:
    loop, inbox = asyncio.get_running_loop(), Inbox(2, spare_bytes=5000)
    assert [inbox.offer(Message("t", bytes(100_000)), loop) for _ in range(3)] == [True, True, False]


async def test_what_is_delivered_again_gives_its_room_back() -> None:
    loop, inbox = asyncio.get_running_loop(), Inbox(1, spare_bytes=3 * 2024)
    for _ in range(3):
        assert inbox.offer(Message("t", bytes(1000), False, None, lambda: True), loop)
    assert not inbox.offer(Message("t", bytes(1000)), loop)
    assert inbox.forget_repeated() == 3
    assert [inbox.offer(Message("t", bytes(1000)), loop) for _ in range(4)] == [True, True, True, False]


async def test_mosquitto_sends_beyond_the_receive_maximum_and_nothing_is_dropped(
    mosquitto: BrokerProcess,  # noqa: F811
) -> None:
    """Found with a thousand devices: each overrun cost a connection, and the coordinator came no further."""
    many = 400
    reader = Link(quick(mosquitto.port), "reader", filters=[("a/#", 1)], max_queued=16)
    writer = Link(quick(mosquitto.port, window=64), "writer", filters=[])
    async with running(reader), running(writer):
        sending = [asyncio.create_task(writer.publish(f"a/{n}", b"x" * 1400)) for n in range(many)]
        taken = []
        async with asyncio.timeout(30):
            async for message in reader.messages():
                taken.append(message.topic)
                await asyncio.sleep(0.001)  # slower than the broker
                message.ack()
                if len(taken) == many:
                    break
        await asyncio.gather(*sending)
        assert len(set(taken)) == many
        assert (reader.counters.dropped, reader.counters.reconnects) == (0, 0)
