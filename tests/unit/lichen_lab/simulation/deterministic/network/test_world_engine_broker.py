import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import pytest

from lichen_lab.simulation.deterministic.machine.event_loop import SimLoop, run
from lichen_lab.simulation.deterministic.machine.process_life import LIFE, PowerCut, ProcessLife
from lichen_lab.simulation.deterministic.network.broker import SimBroker
from lichen_lab.simulation.deterministic.network.link import SimConnection
from lichen_lab.simulation.deterministic.network.message_faults import MessageFaults
from lichen_lab.simulation.deterministic.network.session import matches
from protocol.errors import Reason, Refused, Transient
from runtime.mqtt.link import Link, Will
from tests.support.lab.world_scenes import Client
from tests.support.network.links import quick

PATIENCE_S = 60.0  # ping_s + ping_timeout_s of the settings, above which one and a half keepalives are
SETTINGS = quick(1883, keepalive_s=60)


class Net:
    def __init__(self, weather: MessageFaults | None = None, **options) -> None:
        self.broker = SimBroker(weather or MessageFaults(1), **options)
        self.clients: list[Client] = []

    def client(self, client_id: str, *filters: tuple[str, int], **options) -> Client:
        connect = partial(SimConnection, broker=self.broker)
        made = {name: options.pop(name) for name in ("ping_topic", "max_queued") if name in options}
        link = Link(SETTINGS, client_id, filters=filters, connect=connect, **made)
        self.clients.append(Client(link, **options))
        return self.clients[-1]


@asynccontextmanager
async def net(weather: MessageFaults | None = None, **options):
    made = Net(weather, **options)
    try:
        yield made
    finally:
        for client in made.clients:
            await client.close()


def world(seed: int = 1):
    """Run the test in virtual time."""

    def decorate(test):
        def inside() -> None:
            run(lambda _: test(), seed)

        inside.__name__ = test.__name__
        return inside

    return decorate


async def _sent_at_least_once(client: Client, topic: str, payload: bytes) -> None:
    for _ in range(200):
        await client.link.wait_connected()
        try:
            await client.link.publish(topic, payload, timeout_s=5.0)
        except Transient:
            await asyncio.sleep(0.1)
        else:
            return
    pytest.fail("it was never acknowledged")


def _storm(seed: int, **odds: float) -> tuple[list[bytes], MessageFaults, list[object]]:
    """200 messages through bad weather; what came, and the whole trace."""
    log: list[object] = []

    async def main(loop: SimLoop) -> tuple[list[bytes], MessageFaults]:
        async with net(MessageFaults(seed, **odds)) as n:
            n.broker.listener = lambda *what: log.append((loop.time(), *what))
            a, b = await n.client("a").start(), await n.client("b", ("q", 1)).start()
            for i in range(200):
                await _sent_at_least_once(a, "q", b"%d" % i)
            n.broker.weather.calm()
            await asyncio.sleep(300)
            assert n.broker.queued() == {"a": 0, "b": 0}
            return b.payloads(), n.broker.weather

    return *run(main, seed), log


WANTED = [b"%d" % i for i in range(200)]


def test_the_same_seed_gives_the_same_trace():
    odds = {"duplicate": 0.1, "cut": 0.02, "reorder": 0.1, "slow": 0.05, "corrupt": 0.05}
    assert _storm(1, **odds)[2] == _storm(1, **odds)[2]
    assert _storm(1, **odds)[2] != _storm(2, **odds)[2]


def test_in_fair_weather_everything_comes_once_and_in_order():
    assert _storm(1)[0] == WANTED


def test_a_link_that_is_cut_again_and_again_loses_nothing():
    got, weather, _ = _storm(3, cut=0.05)
    assert weather.happened["cut"] > 10
    assert set(got) == set(WANTED)
    assert len(got) > len(WANTED)  # what was not acknowledged comes again


def test_duplicates_reordered_and_corrupted_messages_come_about():
    got, weather, _ = _storm(4, duplicate=0.2)
    assert Counter(got).most_common(1)[0][1] > 1
    assert set(got) == set(WANTED)
    got, weather, _ = _storm(4, reorder=0.3, slow=0.1, slow_s=1.0)
    assert sorted(got) == sorted(WANTED)
    assert got != WANTED
    got, weather, _ = _storm(4, corrupt=0.2)
    assert len(got) == len(WANTED)
    assert 0 < len(set(WANTED) - set(got)) <= weather.happened["corrupt"]


def test_a_broker_that_loses_what_it_acknowledged_is_noticed_by_nobody():
    got, weather, _ = _storm(4, lose=0.1)
    assert len(got) == len(WANTED) - weather.happened["lose"] < len(WANTED)


@world()
async def test_nothing_is_published_while_the_link_is_down():
    async with net() as n:
        client = n.client("a")
        with pytest.raises(Transient, match="not published: not started"):
            await client.link.publish("q", b"x")
        await client.start()
        with pytest.raises(Refused, match="at most"):
            await client.link.publish("q", bytes(10**6))
        n.broker.cut("a")
        with pytest.raises(Transient, match="was cut"):
            await client.link.publish("q", b"x")


@world()
async def test_a_partition_holds_back_and_a_short_one_loses_nothing():
    loop = asyncio.get_running_loop()
    async with net() as n:
        a, b = await n.client("a").start(), await n.client("b", ("q", 1)).start()
        n.broker.partition("a", 20.0, "up")
        started = loop.time()
        with pytest.raises(Transient, match=r"no PUBACK for q from .* in 5 s"):
            await a.link.publish("q", b"late", timeout_s=5.0)
        assert b.got == []
        await asyncio.sleep(30)
        assert b.payloads() == [b"late"]  # it comes although its sender gave up
        assert a.link.counters.reconnects == 0
        await a.link.publish("q", b"next")
        assert loop.time() - started < 40


@world()
async def test_a_long_partition_ends_the_connection_on_both_sides_and_the_will_goes_out():
    loop = asyncio.get_running_loop()
    async with net() as n:
        watcher = await n.client("w", ("will", 1)).start()
        a = await n.client("a", will=Will("will", b"gone"), ping_topic="ping").start()
        n.broker.partition("a", 500.0)
        await asyncio.sleep(PATIENCE_S + 1)
        assert not a.link.connected
        assert watcher.payloads() == []  # the broker waits one and a half keepalives
        await asyncio.sleep(40)
        assert watcher.payloads() == [b"gone"]
        await asyncio.sleep(500)
        assert a.link.connected
        assert loop.time() < 700


@world()
async def test_a_half_open_link_swallows_everything_until_somebody_loses_patience():
    async with net() as n:
        a, b = await n.client("a", ping_topic="ping").start(), await n.client("b", ("q", 1)).start()
        assert n.broker.half_open("a")
        with pytest.raises(Transient, match="no PUBACK"):
            await a.link.publish("q", b"lost", timeout_s=10)
        assert a.link.connected
        await asyncio.sleep(PATIENCE_S)
        await asyncio.wait_for(a.link.wait_connected(), 30)
        assert a.link.counters.reconnects == 1
        await a.link.publish("q", b"here")
        await asyncio.sleep(5)
        assert b.payloads() == [b"here"]


@pytest.mark.parametrize(
    ("keep", "wanted"),
    [("all", [b"1", b"2", b"3"]), ("saved", [b"1", b"3"]), ("nothing", [b"3"])],
)
def test_a_broker_crash_keeps_what_its_persistence_promises(keep, wanted):
    async def main(_: SimLoop, keep: str) -> list[bytes]:
        async with net() as n:
            a, b = await n.client("a").start(), await n.client("b", ("q", 1)).start()
            await b.stop()
            await a.link.publish("q", b"1")
            n.broker.save()
            await a.link.publish("q", b"2")
            n.broker.crash(keep)
            await asyncio.sleep(1)
            assert not a.link.connected
            n.broker.restart()
            await b.start()
            await a.link.wait_connected()
            await a.link.publish("q", b"3")
            await asyncio.sleep(5)
            return b.payloads()

    assert run(partial(main, keep=keep)) == wanted


@world()
async def test_a_killed_process_is_seen_soon_and_a_machine_without_power_late():
    async with net() as n:
        watcher = await n.client("w", ("will/#", 1)).start()
        lives = {}
        for name, power in (("kill", False), ("power", True)):
            lives[name] = ProcessLife(name, power=power)
            LIFE.set(lives[name])
            await n.client(name, will=Will(f"will/{name}", name.encode())).start()
            LIFE.set(None)
        for life in lives.values():
            life.end("for the test")
        await asyncio.sleep(1)
        assert watcher.payloads() == [b"kill"]
        await asyncio.sleep(100)
        assert watcher.payloads() == [b"kill", b"power"]


@world()
async def test_the_dead_say_nothing():
    async with net() as n:
        watcher = await n.client("w", ("#", 1)).start()
        life = ProcessLife("a", crash_at=2)
        LIFE.set(life)
        a = await n.client("a", ("q", 1)).start()
        LIFE.set(None)
        await a.link.publish("q", b"alive")
        with pytest.raises(PowerCut):
            await a.link.publish("q", b"at this moment")
        with pytest.raises(Transient):
            await a.link.publish("q", b"a ghost")
        await a.stop()
        await asyncio.sleep(200)
        assert watcher.payloads() == [b"alive"]
        assert n.broker.queued()["a"] in (0, 1)  # its own message came, or its acknowledgement did not


@world()
async def test_a_client_that_does_not_acknowledge_gets_no_more_than_its_receive_maximum():
    async with net() as n:
        a, b = await n.client("a").start(), await n.client("b", ("q", 1), max_queued=10).start()
        b.acks = False
        for i in range(50):
            await a.link.publish("q", b"%d" % i)
        await asyncio.sleep(5)
        assert len(b.got) == 10
        assert n.broker.queued()["b"] == 50
        n.broker.weather.overruns = True  # as Mosquitto 2.0.11
        await a.link.publish("q", b"more")
        await asyncio.sleep(5)
        assert len(b.got) == 51


@world()
async def test_a_queue_that_is_full_loses_what_was_acknowledged():
    async with net(max_queued=3) as n:
        a, b = await n.client("a").start(), await n.client("b", ("q", 1)).start()
        await b.stop()
        for i in range(5):
            await a.link.publish("q", b"%d" % i)
        await b.start()
        await asyncio.sleep(5)
        assert b.payloads() == [b"0", b"1", b"2"]


@world()
async def test_a_session_that_expired_is_a_new_one():
    async with net() as n:
        a, b = await n.client("a").start(), await n.client("b", ("q", 1)).start()
        await b.stop()
        await a.link.publish("q", b"1")
        await asyncio.sleep(SETTINGS.session_expiry_s + 1)
        await b.start()
        await asyncio.sleep(5)
        assert b.got == []
        assert not b.link.resumed


@world()
async def test_a_greeting_that_fails_connects_anew_and_one_that_is_refused_does_not():
    async with net() as n:
        calls = []

        async def greet() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise Transient("not now")
            raise Refused(Reason.MALFORMED, "never")

        client = await n.client("a", on_connect=greet).start()
        await asyncio.sleep(20)
        assert len(calls) == 2
        assert client.link.connected


@pytest.mark.parametrize(
    ("pattern", "topic", "yes"),
    [
        ("a/b", "a/b", True),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("+/b", "a/b", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
    ],
)
def test_topic_filters(pattern, topic, yes):
    assert matches(pattern, topic) is yes
