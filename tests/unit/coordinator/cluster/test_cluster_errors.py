"""What processes of a cluster do where the broker cannot divide messages, or where their database is gone."""

import asyncio
from contextlib import closing

import pytest

from coordinator.admission.operator_decisions import AUTHORITY, OperatorDecisions
from coordinator.cluster.app import open_ingest, run_ingest
from coordinator.lease.keeper import LeaseKeeper
from coordinator.lease.table import LeaseTable
from coordinator.storage.database import Database
from coordinator.storage.location import DATABASE
from protocol.errors import LichenError, Misconfigured, Transient
from protocol.topics import ingest_filters
from runtime.clock import SystemClock
from runtime.mqtt.link import Link
from tests.support.clock import ManualClock
from tests.support.coordinator.fake import FLEET, TinyServer, settings_for, tiny_task
from tests.support.network.brokers import broker_v3  # noqa: F401 - a fixture
from tests.support.network.fake_broker import FakeBroker, fake_broker
from tests.support.services import beside, until


async def test_a_link_says_that_the_broker_has_no_shared_subscriptions(tmp_path, broker_v3):  # noqa: F811
    mqtt = settings_for(tmp_path, broker_v3.port).mqtt.model_copy(update={"protocol": "3.1.1"})
    filters = [(name, 1) for name in ingest_filters(FLEET, shared=True)]
    link = Link(mqtt, "ingest", filters=filters)
    async with beside(link.run):
        await until(lambda: "cluster.shared_subscriptions = false" in link.why)
        assert not link.connected
        await link.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0x87, f"$share/ingest-{FLEET}/lichen/v1/{FLEET}/d/+/up/update: Not authorized (reason code 135)"),
        (0x9E, "offers no shared subscriptions (MQTT 5)"),
    ],
)
async def test_a_link_says_whether_the_broker_refuses_shared_subscriptions_or_has_none(tmp_path, code, words):
    async with fake_broker(FakeBroker(suback=code)) as fake:
        mqtt = settings_for(tmp_path, fake.port).mqtt
        link = Link(mqtt, "ingest", filters=[(ingest_filters(FLEET, shared=True)[0], 1)])
        async with beside(link.run):
            await until(lambda: words in link.why)
            await link.close()


async def test_ingest_refuses_shared_subscriptions_over_an_old_protocol(tmp_path):
    settings = settings_for(tmp_path, 1, mqtt={"port": 1, "protocol": "3.1.1"})
    with pytest.raises(Misconfigured, match=r"cluster\.shared_subscriptions"):
        await run_ingest(settings, tiny_task(), TinyServer())


def test_ingest_never_opens_the_authority(tmp_path):
    settings = settings_for(tmp_path, 1)
    (settings.state_dir / AUTHORITY).mkdir(parents=True)  # without its keys: whoever opens it fails
    with pytest.raises(LichenError):
        OperatorDecisions(settings, SystemClock()).open()
    decisions = OperatorDecisions(settings, SystemClock(), reads_only=True)
    decisions.open()
    assert decisions.denial("ann") is None
    decisions.close()


async def test_ingest_ends_when_its_database_is_not_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.storage.sqlite.LOOK_S", 0.01)
    settings = settings_for(tmp_path, 1)
    async with open_ingest(settings, tiny_task(), TinyServer()) as worker:
        (settings.state_dir / DATABASE).rename(tmp_path / "elsewhere")
        with pytest.raises(Transient, match="it is gone"):
            await worker.services["state"]()


async def test_a_process_that_waits_for_the_lease_ends_when_its_database_is_not_where_it_was(tmp_path):
    with closing(Database(tmp_path / DATABASE, alone=False)) as store:
        keeper = LeaseKeeper(LeaseTable(store, "lead", 7.0), "lead", ManualClock(), "one")
        (tmp_path / DATABASE).rename(tmp_path / "elsewhere")
        async with asyncio.timeout(5):
            with pytest.raises(Transient, match="it is gone"):
                await keeper.take()
        keeper.close()
