"""What the agent's log says of messages that it refuses."""

from collections import Counter
from types import SimpleNamespace

from structlog.testing import capture_logs

from edge_agent.messaging.contact import Contact
from edge_agent.messaging.dispatcher import MessageDispatcher
from protocol.messages import Offer, decode
from protocol.topics import Kind, Route
from runtime.logs import BURST
from runtime.mqtt.link import Message
from runtime.process.daemon import Progress
from tests.support.clock import ManualClock

OFFER = "lichen/v1/f/b/offer"


async def test_a_flood_of_messages_that_are_refused_is_no_flood_of_the_log() -> None:
    acked: list[int] = []

    async def flood():
        for n in range(1000):
            yield Message(OFFER, b"{", _acknowledge=lambda n=n: acked.append(n))
        await clock.advance(5.0)
        yield Message(OFFER, b"{")

    clock = ManualClock()

    async def on_offer(_route: Route, payload: bytes) -> None:
        decode(payload, Offer)

    dispatcher = MessageDispatcher(
        SimpleNamespace(messages=flood),
        {Kind.OFFER: on_offer},
        contact=Contact(clock),
        refused=Counter(),
        progress=Progress(),
        clock=clock,
    )
    with capture_logs() as lines:
        await dispatcher.run()
    assert len(acked) == 1000
    assert dispatcher.status() == {"refused_messages": {"malformed": 1001}}
    assert len(lines) == BURST + 1
    assert lines[-1]["unsaid"] == 1000 - BURST
