"""What services like AWS IoT Core allow holds on the wire, counted by the broker; control goes first."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from edge_agent.config.agent import AgentSettings
from protocol.base import MAX_NAME
from protocol.errors import Misconfigured, Refused
from protocol.frames.frame import digest
from protocol.messages import Want
from protocol.topics import MAX_SLASHES, MAX_TOPIC_BYTES
from runtime.mqtt.link import Link
from runtime.settings.load import MqttSettings, Section, load
from runtime.storage.spool import Spool
from tests.support.agent.parts import outbox_of
from tests.support.network.fake_broker import FakeBroker, fake_broker
from tests.support.network.links import quick, running
from tests.support.services import beside, until

AWS = Path(__file__).parents[2] / "examples" / "aws-iot-core.toml"
AWS_CONNACK = (
    b"\x00\x00\x0c"  # flags, reason, length of properties
    b"\x21\x00\x64"  # Receive Maximum 100
    b"\x27\x00\x02\x48\x00"  # Maximum Packet Size 149,504
    b"\x25\x01\x28\x01"  # retained and wildcards: yes
)


class _Part(Section):
    mqtt: MqttSettings


def _link(fake: FakeBroker, **options) -> Link:
    return Link(quick(fake.port, **options), "me", filters=[])


async def test_no_second_has_more_publishes_than_max_publishes_per_s():
    async with fake_broker(FakeBroker()) as fake, running(_link(fake, max_publishes_per_s=100)) as link:
        began = time.monotonic()
        await asyncio.gather(*(link.publish(f"a/{i}", b"x") for i in range(200)))
        assert time.monotonic() - began < 4
    assert len(fake.arrivals) == 200
    # the pace is the sender's: what came late on a busy machine stands in one second with what comes at once
    assert 30 <= fake.most_in_a_second()[0] <= 115


async def test_no_second_has_more_bytes_than_max_bytes_per_s():
    limit = 512 * 1024
    options = {"max_bytes_per_s": limit, "chunk_bytes": 65536, "window": 8}
    async with fake_broker(FakeBroker()) as fake, running(_link(fake, **options)) as link:
        await asyncio.gather(*(link.publish(f"a/blob/{i}", bytes(65536)) for i in range(16)))
    # the pace is the sender's: of two packets, the first may come late and the second at once
    assert 0.3 * limit <= fake.most_in_a_second()[1] <= limit + 65536 + 64


async def test_control_overtakes_chunks_that_wait_for_the_pace():
    async with (
        fake_broker(FakeBroker()) as fake,
        running(_link(fake, max_bytes_per_s=100_000, chunk_bytes=16384)) as link,
    ):
        chunks = [asyncio.create_task(link.publish(f"a/blob/{i}", bytes(16384))) for i in range(12)]
        await until(lambda: len(fake.published) >= 2)
        began = time.monotonic()
        await link.publish("a/receipt", b"soon")
        assert time.monotonic() - began < 1.2, "a chunk takes 0.2 s of the pace; twelve take 2 s"
        assert not all(chunk.done() for chunk in chunks)
        for chunk in chunks:
            chunk.cancel()
        await asyncio.gather(*chunks, return_exceptions=True)
    topics = [topic for topic, _, _ in fake.published]
    assert topics.index("a/receipt") <= 5


async def test_control_has_a_slot_while_all_chunks_of_the_window_hang():
    fake = FakeBroker(puback=False)
    async with fake_broker(fake), running(_link(fake, window=3)) as link:
        chunks = [asyncio.create_task(link.publish(f"a/blob/{i}", b"x")) for i in range(9)]
        control = asyncio.create_task(link.publish("a/state", b"x"))
        await until(lambda: len(fake.published) == 4)
        assert [topic for topic, _, _ in fake.published][-1] == "a/state"
        for task in (*chunks, control):
            task.cancel()
        await asyncio.gather(*chunks, control, return_exceptions=True)


def test_settings_that_can_never_work_are_refused(tmp_path):
    for line, words in (
        ("max_bytes_per_s = 1000", "max_bytes_per_s is below chunk_bytes"),
        ("max_publishes_per_s = 0.5", "max_publishes_per_s: at least 1"),
    ):
        file = tmp_path / "part.toml"
        file.write_text(f"[mqtt]\n{line}\n")
        with pytest.raises(Misconfigured, match=words):
            load(_Part, file, environ={})


async def test_an_upload_with_the_aws_profile_keeps_every_limit_of_aws(tmp_path):
    """The profile as it is shipped, but for host and certificates, against a broker that counts."""
    shipped = load(_Part, AWS, environ={}).mqtt
    fake = FakeBroker(connack=AWS_CONNACK)
    async with fake_broker(fake):
        mqtt = shipped.model_copy(update={"host": "127.0.0.1", "port": fake.port, "tls": None})
        settings = AgentSettings(fleet="f" * MAX_NAME, device="d" * MAX_NAME, mqtt=mqtt)
        async with running(Link(mqtt, "me", filters=[])) as link:
            payload = os.urandom(1_500_000)
            name = digest(payload)
            spool = Spool(tmp_path / "spool.sqlite3", 1 << 30)
            spool.put(task="t", round_=1, digest=name, payload=payload, carry=None)
            outbox = outbox_of(link, spool, settings)
            async with beside(outbox.run()):
                await until(lambda: fake.published)
                outbox.on_want(Want(digest=name, missing=((0, 12),)))
                await until(lambda: len(fake.published) >= 14, 15)
            spool.close()
            publishes, most_bytes = fake.most_in_a_second()
            assert publishes <= 100
            assert 100_000 < most_bytes <= 512 * 1024
            assert max(size for _, size in fake.arrivals) <= 128 * 1024, "AWS: 128 KB a message"
            for topic, _, _ in fake.published:
                assert topic.count("/") <= MAX_SLASHES
                assert len(topic) <= MAX_TOPIC_BYTES
            with pytest.raises(Refused, match="at most"):
                await link.publish("a/b", bytes(150_000))
    assert 30 <= mqtt.keepalive_s <= 1200
    assert mqtt.backoff_min_s >= 1


async def test_a_device_with_many_tasks_sends_no_subscribe_with_more_filters_than_aws_takes():
    filters = [(f"lichen/v1/f~{i}/b/task", 1) for i in range(20)]
    async with fake_broker(FakeBroker()) as fake, running(Link(quick(fake.port), "me", filters=filters)):
        assert fake.filters == [8, 8, 4]
