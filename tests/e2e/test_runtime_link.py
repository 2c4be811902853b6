"""The link against real brokers: the embedded one and Mosquitto, MQTT 5 and 3.1.1."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from protocol.errors import Misconfigured, Transient
from runtime.mqtt.link import Link, Will
from runtime.settings.load import TlsSettings
from tests.support.identity import certificates
from tests.support.network.brokers import BrokerProcess, embedded, mosquitto_process
from tests.support.network.links import quick, running
from tests.support.services import beside, until

KINDS = ["embedded-5", "embedded-3.1.1", "mosquitto-5", "mosquitto-3.1.1"]


@pytest.fixture(params=[pytest.param(k, marks=pytest.mark.mosquitto if "mosq" in k else ()) for k in KINDS])
def any_broker(request, tmp_path):
    name, protocol = request.param.split("-")
    process = (
        mosquitto_process(tmp_path / "m") if name == "mosquitto" else embedded(tmp_path, v3=protocol != "5")
    )
    process.start()
    yield process, protocol
    process.stop()


def _link(where: tuple[BrokerProcess, str], client_id: str, *filters: str, **options) -> Link:
    process, protocol = where
    settings = quick(process.port, protocol=protocol, **options)
    return Link(settings, client_id, filters=[(f, 1) for f in filters])


async def _payloads(link: Link, count: int, timeout_s: float = 10) -> list[bytes]:
    got = []
    async with asyncio.timeout(timeout_s):
        async for message in link.messages():
            got.append(message.payload)
            message.ack()
            if len(got) == count:
                break
    return got


async def test_chunks_there_and_back_every_one_once(any_broker):
    async with running(_link(any_broker, "one")) as one, running(_link(any_broker, "two", "f/#")) as two:
        sent = [b"%03d" % i + bytes(60_000) for i in range(60)]
        receiving = asyncio.create_task(_payloads(two, len(sent)))
        await asyncio.gather(*(one.publish(f"f/{i}", data) for i, data in enumerate(sent)))
        assert sorted(await receiving) == sent
        assert one.counters.messages_out == two.counters.messages_in == 60
        assert one.counters.bytes_out >= 60 * 60_003


async def test_a_chunk_of_the_protocols_largest_size_passes(any_broker):
    big = 1024 * 1024
    options = {"max_packet_bytes": 2 * big, "chunk_bytes": big}
    async with running(_link(any_broker, "one", "f/#", **options)) as link:
        assert link.chunk_bytes == big
        await link.publish("f/1", bytes(big))
        assert [len(p) for p in await _payloads(link, 1)] == [big]


async def test_retained_state_birth_and_will(any_broker):
    watcher = _link(any_broker, "watcher", "s/#")
    async with running(watcher):

        async def birth():
            await link.publish("s/d", b"online", retain=True)

        link = _link(any_broker, "device", keepalive_s=2)
        async with running(link, will=Will("s/d", b"offline"), on_connect=birth):
            assert await _payloads(watcher, 1) == [b"online"]
            link._session._connection._cut()  # the network goes away, without a goodbye
            assert (await _payloads(watcher, 2))[-1] == b"online"
    async with running(_link(any_broker, "late", "s/#")) as late:
        assert await _payloads(late, 1) == [b"online"]


async def test_an_orderly_stop_publishes_no_will(any_broker):
    async with running(_link(any_broker, "watcher", "s/#")) as watcher:
        async with running(_link(any_broker, "device"), will=Will("s/d", b"offline")) as link:
            await link.publish("s/d", b"stopped")
        assert await _payloads(watcher, 1) == [b"stopped"]
        await asyncio.sleep(0.1)
        assert watcher.counters.messages_in == 1


async def test_unacknowledged_messages_come_again_after_a_reconnect(any_broker):
    async with (
        running(_link(any_broker, "sender")) as sender,
        running(_link(any_broker, "taker", "f/#")) as taker,
    ):
        await sender.publish("f/1", b"precious")
        async with asyncio.timeout(10):
            async for message in taker.messages():
                assert message.payload == b"precious"
                break  # and not acknowledged
        taker._session._connection._cut()
        assert await _payloads(taker, 1) == [b"precious"]


async def test_what_was_sent_while_away_waits_in_the_session(any_broker):
    async with running(_link(any_broker, "taker", "f/#")):
        pass
    async with running(_link(any_broker, "sender")) as sender:
        await sender.publish("f/1", b"kept")
    async with running(_link(any_broker, "taker", "f/#")) as taker:
        assert await _payloads(taker, 1) == [b"kept"]


async def test_a_broker_that_comes_later_and_goes_and_comes_again(any_broker):
    process, _ = any_broker
    process.kill()
    link = _link(any_broker, "one", "f/#")
    with capture_logs() as logs:
        async with running(link, connected=False):
            await asyncio.sleep(0.2)
            with pytest.raises(Transient, match="f/1 was not published"):
                await link.publish("f/1", b"x")
            process.start()
            await until(lambda: link.connected)
            process.kill()
            await until(lambda: not link.connected)
            process.start()
            await until(lambda: link.connected)
            await link.publish("f/1", b"x")
            assert await _payloads(link, 1) == [b"x"]
            assert link.counters.reconnects == 1
    words = [e["event"] for e in logs if e["log_level"] != "debug"]
    assert words.count("connected") == 2
    assert len(words) <= 6, words  # once per change of state, however many attempts


async def test_a_broker_killed_in_the_middle_loses_nothing_that_is_sent_again(any_broker):
    """The application sends again what raised: afterwards every message is there."""
    process, _ = any_broker
    sender, taker = _link(any_broker, "sender"), _link(any_broker, "taker", "f/#")
    seen: set[bytes] = set()
    failures = 0

    async def deliver(number: int) -> None:
        nonlocal failures
        payload = b"%04d" % number + bytes(20_000)
        while payload[:4] not in seen:
            try:
                await sender.publish(f"f/{number}", payload, timeout_s=5)
                await until(lambda: payload[:4] in seen, 2)
            except (Transient, TimeoutError):
                failures += 1
                await asyncio.sleep(0.05)

    async def take() -> None:
        async for message in taker.messages():
            seen.add(message.payload[:4])
            message.ack()

    async with running(sender), running(taker), beside(take()):
        sending = asyncio.gather(*(deliver(n) for n in range(80)))
        await until(lambda: len(seen) > 5)
        process.kill()
        process.start()
        await asyncio.wait_for(sending, 30)
    assert len(seen) == 80
    assert failures > 0


async def test_a_blocked_event_loop_does_not_cost_the_connection(any_broker):
    async with running(_link(any_broker, "one", "f/#", keepalive_s=1)) as link:
        time.sleep(1.8)  # noqa: ASYNC251 - the point of the test
        await asyncio.sleep(0.05)
        assert link.connected
        assert link.counters.reconnects == 0
        await link.publish("f/1", b"x")


@pytest.mark.mosquitto
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
async def test_two_with_one_id_slow_down_and_say_so_though_mosquitto_2_0_11_does_not(mosquitto, protocol):
    def twin() -> Link:
        settings = quick(mosquitto.port, protocol=protocol, backoff_min_s=0.05, backoff_max_s=60)
        return Link(settings, "twin", filters=[])

    with capture_logs() as logs:
        async with running(twin()) as first, running(twin()):
            await until(lambda: any("another process uses id 'twin'" in e.get("why", "") for e in logs))
            await asyncio.sleep(1)
    fights = mosquitto.log().count("already connected, closing old connection")
    assert 3 <= fights <= 15, first.why
    assert any("does another process use id 'twin'" in e.get("why", "") for e in logs), (
        "the milder words came first"
    )


@pytest.mark.mosquitto
async def test_wrong_and_right_password_with_mosquitto(tmp_path):
    passwords = tmp_path / "passwords"
    making = await asyncio.create_subprocess_exec(
        "mosquitto_passwd", "-b", "-c", str(passwords), "ann", "secret", stderr=asyncio.subprocess.DEVNULL
    )
    assert await making.wait() == 0
    passwords.chmod(0o600)
    process = mosquitto_process(tmp_path / "m", f"password_file {passwords}", anonymous=False).start()
    secret = tmp_path / "secret"
    try:
        for protocol in ("5", "3.1.1"):
            secret.write_text("wrong\n")
            settings = quick(process.port, protocol=protocol, username="ann", password_file=secret)
            async with running(Link(settings, "ann", filters=[]), connected=False) as link:
                await until(lambda link=link: "check mqtt.username and mqtt.password_file" in link.why)
            secret.write_text("secret\n")
            async with running(Link(settings, "ann", filters=[])) as link:
                await link.publish("a/b", b"x")
    finally:
        process.stop()


@pytest.mark.mosquitto
async def test_mosquittos_max_packet_size_is_kept(tmp_path):
    process = mosquitto_process(tmp_path / "m", "max_packet_size 20000").start()
    try:
        async with running(Link(quick(process.port), "one", filters=[])) as link:
            assert link.chunk_bytes == 20000 - 512
            await link.publish("a/b", bytes(link.chunk_bytes))
            with pytest.raises(Exception, match="at most 20000"):
                await link.publish("a/b", bytes(20000))
            assert link.connected
    finally:
        process.stop()


@pytest.mark.mosquitto
async def test_mutual_tls_with_mosquitto(tmp_path):
    folder = certificates.make(tmp_path)
    listener = (
        f"cafile {folder}/ca.crt\ncertfile {folder}/server.crt\nkeyfile {folder}/server.key\n"
        "require_certificate true"
    )
    process = mosquitto_process(tmp_path / "m", listener=listener).start()
    ours = TlsSettings(
        ca_file=folder / "ca.crt", cert_file=folder / "client.crt", key_file=folder / "client.key"
    )
    try:
        async with running(Link(quick(process.port, tls=ours), "one", filters=[("a/#", 1)])) as link:
            await link.publish("a/b", bytes(60_000))
            assert [len(p) for p in await _payloads(link, 1)] == [60_000]
        async with running(
            Link(quick(process.port, tls=TlsSettings()), "two", filters=[]), connected=False
        ) as link:
            await until(lambda: "certificate that is not trusted" in link.why)
        anonymous = quick(process.port, tls=TlsSettings(ca_file=ours.ca_file))
        async with running(Link(anonymous, "three", filters=[]), connected=False) as link:
            await until(lambda: f"127.0.0.1:{process.port}" in link.why and link.why[:10] != "connecting")
            assert not link.connected
    finally:
        process.stop()


async def test_a_missing_certificate_or_password_file_is_misconfigured(tmp_path):
    nowhere = tmp_path / "nowhere"
    for options, words in (
        ({"tls": TlsSettings(ca_file=nowhere)}, "mqtt.tls.ca_file: .*nowhere"),
        ({"tls": TlsSettings(cert_file=nowhere, key_file=nowhere)}, "mqtt.tls.cert_file and key_file"),
        ({"username": "ann", "password_file": nowhere}, "mqtt.password_file: .*nowhere"),
    ):
        with pytest.raises(Misconfigured, match=words):
            await Link(quick(1883, **options), "one", filters=[]).run()
