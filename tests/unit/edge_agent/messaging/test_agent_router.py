"""What the agent's log says of messages that it refuses."""

import contextlib
from types import SimpleNamespace

from structlog.testing import capture_logs

from edge_agent.messaging.dispatcher import Router
from runtime.clock import ManualClock
from runtime.log_rate_limit import BURST
from runtime.mqtt.link import Message

OFFER = "lichen/v1/f/d/dev/down/offer"


async def test_a_flood_of_messages_that_are_refused_is_no_flood_of_the_log() -> None:
    acked: list[int] = []

    async def flood():
        for n in range(1000):
            yield Message(OFFER, b"{", _acknowledge=lambda n=n: acked.append(n))
        await clock.advance(5.0)
        yield Message(OFFER, b"{")

    clock = ManualClock()
    work = SimpleNamespace(work=lambda _: contextlib.nullcontext())
    agent = SimpleNamespace(link=SimpleNamespace(messages=flood), progress=work)
    router = Router(agent, clock)
    with capture_logs() as lines:
        await router.run()
    assert len(acked) == 1000
    assert router.refused == {"malformed": 1001}
    assert len(lines) == BURST + 1
    assert lines[-1]["unsaid"] == 1000 - BURST
