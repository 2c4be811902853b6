"""An update that the coordinator refuses: when it is tried again, over a real broker."""

import asyncio

import pytest

from protocol.errors import Reason
from tests.e2e.test_agent_e2e import (
    DEVICE,
    ROOT,
    TASK,
    agent_of,
    coordinator,
    ready,
    trained,
    version,
    write_config,
)
from tests.support.network.brokers import broker
from tests.support.services import until

__all__ = ["broker"]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Child processes find the tests' worker."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def test_what_came_at_the_wrong_moment_is_trained_again_and_what_is_wrong_itself_is_not(
    tmp_path, broker
):
    config = write_config(tmp_path, broker.port)
    async with coordinator(broker) as fake, agent_of(config) as agent:
        base = version(fake)
        await ready(fake)
        for turn, reason in enumerate((Reason.WRONG_ROUND, Reason.NOT_SELECTED, Reason.WRONG_TENSORS), 1):
            async with asyncio.timeout(20):
                while not fake.updates:
                    await fake.offer(DEVICE, TASK, 1, base, attempt=turn)
                    await asyncio.sleep(0.1)
            frame = fake.updates[-1]
            await fake.receipt(DEVICE, TASK, 1, frame, status="refused", reason=reason, detail="no")
            await fake.until(lambda n=turn: agent.outbox.refused == n and agent.outbox.waiting == 0)
            fake.updates.clear()
        await fake.offer(DEVICE, TASK, 1, base, attempt=turn + 1)
        why = "this offer's update was refused: wrong_tensors: no; waiting for the next round"
        await until(lambda: agent.status()["learning"] == why)
        assert not fake.updates
        assert len(trained(tmp_path)) == 3
