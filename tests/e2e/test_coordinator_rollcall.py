"""A coordinator that comes back to a kept session hears no retained states; it asks, and a device answers."""

from contextlib import AbstractAsyncContextManager

from coordinator.app import open_coordinator
from coordinator.daemon import Coordinator
from protocol.messages import Command, ModalityState, State, decode, encode
from protocol.topics import Kind, device_filters, device_topic
from runtime.mqtt.link import Link
from tests.support.coordinator.fake import FLEET, TinyJobs, TinyServer, settings_for, tiny_task
from tests.support.network.links import quick, running
from tests.support.services import beside, until


def state(status: str) -> bytes:
    told = State(status=status, device="d", roles=("train",), modalities={"acc": ModalityState()}, windows=1)
    return encode(told)


async def test_on_the_embedded_broker_a_state_told_meanwhile_is_asked_for(broker, tmp_path, monkeypatch):
    monkeypatch.setattr("coordinator.messaging.state_requests._PAUSES_S", (0.3, 5.0))
    topic, settings = device_topic(FLEET, "d", Kind.STATE), settings_for(tmp_path, broker.port)

    def coordinator() -> AbstractAsyncContextManager[Coordinator]:
        return open_coordinator(settings, tiny_task(min_devices=9), TinyServer(), jobs=TinyJobs())

    async with running(Link(quick(broker.port), "d", filters=list(device_filters(FLEET, "d")))) as link:
        await link.publish(topic, state("online"), retain=True)
        async with coordinator() as first, beside(first.run()):
            await until(lambda: first.roster.online() == ("d",), 15)
        # What a coordinator that was away knows: the device as it was last heard, which is not as it is.
        async with coordinator() as second:
            second.roster.update(State(status="offline", device="d"))
            second.roster._heard.clear()

            requests: list[str] = []

            async def answer() -> None:
                async for message in link.messages():
                    message.ack()
                    if (
                        message.topic.endswith(Kind.CMD)
                        and decode(message.payload, Command).command == "send_state"
                    ):
                        requests.append(message.topic)
                        await link.publish(topic, state("online"), retain=True)

            async with beside(answer(), second.run()):
                await until(lambda: len(requests) == 1 and second.roster.online() == ("d",), 15)
