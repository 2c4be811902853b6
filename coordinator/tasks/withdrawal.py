"""The end of a further task at the broker: its retained announcements are cleared, so that devices end it."""

import asyncio
from collections.abc import Callable
from typing import Final

from coordinator.config.coordinator import CoordinatorSettings
from coordinator.config.tasks import TaskSettings
from protocol.topics import Kind, broadcast_topic
from runtime.mqtt.link import Link
from runtime.mqtt.running_link import RunningLink

ANNOUNCED: Final = (Kind.TASK, Kind.OFFER, Kind.FLEET_MODEL, Kind.ROUND)
_PUBLISH_S: Final = 10.0


def settings_of_ended(settings: CoordinatorSettings, name: str) -> CoordinatorSettings:
    """The settings of a further task that is no longer in the file; its task file is not known."""
    ended = TaskSettings(name=name, task=settings.task)
    return settings.main.model_copy(update={"tasks": (ended,)}).for_task(name)


async def withdraw(settings: CoordinatorSettings, make: Callable[..., RunningLink] = Link) -> None:
    """Clear what a task's coordinator announced; return when the broker has it, however long that takes.

    It connects as that coordinator did, and ends its session, so that the broker stores nothing more for it.

    Args:
        settings: of the task, whose coordinator no longer runs.
        make: makes the link, as the constructor of ``runtime.mqtt.link.Link``.

    Raises:
        Misconfigured: a password or TLS file is missing or wrong.
    """
    cleared = asyncio.Event()
    mqtt = settings.mqtt.model_copy(update={"session_expiry_s": 0})
    link = make(mqtt, f"coordinator-{settings.fleet}", filters=[])

    async def clear() -> None:
        for kind in ANNOUNCED:
            topic = broadcast_topic(settings.fleet, kind)
            await link.publish(topic, b"", retain=True, timeout_s=_PUBLISH_S)
        cleared.set()

    running, done = asyncio.ensure_future(link.run(on_connect=clear)), asyncio.ensure_future(cleared.wait())
    try:
        await asyncio.wait([running, done], return_when=asyncio.FIRST_COMPLETED)
    finally:
        done.cancel()
        running.cancel()
        await asyncio.wait([running, done])
    if not running.cancelled():
        running.result()
