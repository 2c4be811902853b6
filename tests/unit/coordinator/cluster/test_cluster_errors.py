"""What an ingest process does where the broker cannot divide messages, and where the fleet's keys are."""

import asyncio

import pytest

from coordinator.admission.operator_decisions import AUTHORITY, OperatorDecisions
from coordinator.cluster.app import run_ingest
from protocol.errors import LichenError, Misconfigured
from protocol.topics import ingest_filters
from runtime.clock import SystemClock
from runtime.mqtt.link import Link
from tests.support.coordinator.fake import FLEET, TinyServer, settings_for, tiny_task
from tests.support.network.brokers import broker_v3  # noqa: F401 - a fixture
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
