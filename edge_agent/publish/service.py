"""Publishes predictions on a local MQTT topic, over a connection of its own to any broker of the site.

Queue: ``MAX_WAITING`` predictions; when full the oldest is dropped and counted. While the broker is away, and
with ``every_s``, only the newest is kept: a late prediction is worth less than a new one.

Home Assistant's sensors are announced retained, at each connect, at its birth message and when the targets
change. The announcements are read back from the broker, so that outdated ones are removed, also after a
restart with other settings.
"""

import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import structlog

from edge_agent.config.agent import AgentSettings
from edge_agent.config.publish import PublishSettings
from edge_agent.publish.controls import Controls
from edge_agent.publish.home_assistant import (
    AVAILABILITY,
    COMPONENTS,
    OFFLINE,
    ONLINE,
    PREDICTION,
    filter_of,
    label_topics,
    sensors,
)
from protocol.bundle import BundleManifest
from protocol.errors import Refused, Transient
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.mqtt.inbox import Message
from runtime.mqtt.link import Link, Will
from runtime.waits import StatusPart, Wait

_log = structlog.get_logger(__name__)
MAX_WAITING: Final = 64
ACK_S: Final = 5.0
"""A prediction without PUBACK for this long is given up."""
GOODBYE_S: Final = 1.0
BIRTH_JITTER_S: Final = 1.0
"""Spreads the devices' announcements when Home Assistant starts."""
MAX_THERE: Final = 256
"""Limit of remembered announcements; the broker may send any number."""
_RETRY_S: Final = 1.0


def predictions_link(settings: AgentSettings, make_link: Callable[..., Any]) -> Link | None:
    """The connection for ``[infer.mqtt]``; None if it is not set, or the device does not predict."""
    publish = settings.infer.mqtt
    if publish is None or not settings.infer.enabled:
        return None
    fleet, device, prefix = settings.fleet, settings.device, publish.discovery_prefix
    components = COMPONENTS if publish.home_assistant or publish.labels else COMPONENTS[:1]
    filters = [(filter_of(fleet, device, prefix, component), 0) for component in components]
    filters += [(publish.birth_topic, 1)] if publish.home_assistant else []
    filters += [(topic, 1) for topic in label_topics(publish, device)] if publish.labels else []
    client_id = f"lichen-predictions-{settings.fleet}-{settings.device}"
    link: Link = make_link(publish.link(), client_id, filters=filters, ping_topic=None)
    return link


class Publishing(StatusPart):
    """Two services: the connection, and the publisher. Used in one event loop.

    Args:
        settings: of the agent.
        publish: its ``infer.mqtt``.
        link: to the broker of the site, from :func:`predictions_link`.
        clock: for the pace.
        rng: jitter; None takes any.
        controls: labels from the site; None: none.
    """

    def __init__(
        self,
        settings: AgentSettings,
        publish: PublishSettings,
        link: Link,
        clock: Clock,
        rng: random.Random | None = None,
        *,
        controls: Controls | None = None,
    ) -> None:
        self._controls = controls
        self._fleet, self._device = settings.fleet, settings.device
        self._settings = publish
        self._clock = clock
        self._random = rng or random.Random()  # noqa: S311 - jitter
        base = publish.base(settings.device)
        self._prediction, self._availability = f"{base}/{PREDICTION}", f"{base}/{AVAILABILITY}"
        self._ours = tuple(
            filter_of(self._fleet, self._device, publish.discovery_prefix, component).partition("+")
            for component in COMPONENTS
        )
        self._link = link
        self._waiting: deque[bytes] = deque()
        self._wake = Signal() if controls is None else controls.changed
        self._manifest: BundleManifest | None = None
        self._wanted: dict[str, bytes] | None = None if publish.home_assistant else {}
        """Discovery topics and their payloads; None: no model has predicted yet, old announcements stay."""
        self._there: set[str] = set()
        """This device's discovery topics that have a retained message on the broker."""
        self._announce = False
        self._controls_announced: dict[str, bytes] = {}
        self._due = clock.now()
        self.published = 0
        self.dropped = 0
        """Predictions that were not published: replaced by a newer one, or not accepted by the broker."""
        self.last_refusal = ""

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Name -> run."""
        will = Will(self._availability, OFFLINE.encode())
        return {
            "predictions.link": partial(self._link.run, on_connect=self._connected, will=will),
            "predictions.broker": self._listen,
            "predictions": self._run,
            **({} if self._controls is None else {"predictions.labels": self._controls.run}),
        }

    def offer(self, lines: Sequence[dict[str, Any]], manifest: BundleManifest) -> None:
        """Queue a prediction, as written to ``infer.output``."""
        if self._settings.home_assistant and manifest is not self._manifest:
            self._manifest = manifest
            wanted = sensors(manifest, self._settings, self._fleet, self._device)
            self._announce = self._announce or wanted != self._wanted
            self._wanted = wanted
        for line in lines:
            self._waiting.append(json.dumps(line).encode())
        newest_alone = self._settings.every_s > 0 or not self._link.connected
        while len(self._waiting) > (1 if newest_alone else MAX_WAITING):
            self._waiting.popleft()
            self.dropped += 1
        self._wake.set()

    async def send_offline(self) -> None:
        """Publish that no more predictions come, if the broker is there."""
        if not self._link.connected:
            return
        try:
            await self._link.publish(self._availability, OFFLINE.encode(), retain=True, timeout_s=GOODBYE_S)
        except (Refused, Transient) as error:
            _log.debug("offline_not_published", error=str(error))

    def status(self) -> dict[str, Any]:
        """Counts of published and unpublished predictions."""
        return {
            "predictions_to": {
                "topic": self._prediction,
                "broker": self._link.why,
                "published": self.published,
                "dropped": self.dropped,
                **({"refused": self.last_refusal} if self.last_refusal else {}),
                **({"home_assistant": self._announced()} if self._settings.home_assistant else {}),
                **({} if self._controls is None else {"labels": self._controls.status}),
            }
        }

    def waits(self) -> Iterator[Wait]:
        """The wait for the broker, while it is away."""
        link = self._link
        if not link.connected:
            yield Wait("predictions", link.why, link.since, link.until, "the agent tries again")

    def _announced(self) -> str:
        if self._wanted is None:
            return "sensors are announced with the first prediction"
        if not self._wanted:
            return "answers about a knowledge graph are not sensors"
        return f"sensors: {', '.join(sorted(topic.split('/')[-2] for topic in self._wanted))}"

    async def _connected(self) -> None:
        await self._link.publish(self._availability, ONLINE.encode(), retain=True, timeout_s=ACK_S)
        self._announce = True
        if self._controls is not None:
            self._controls.publish_again()
        self._wake.set()

    async def _listen(self) -> None:
        async for message in self._link.messages():
            await self._hear(message)
            message.ack()

    async def _hear(self, message: Message) -> None:
        if self._controls is not None and self._controls.is_command(message.topic):
            await self._controls.hear(message)
        elif message.topic == self._settings.birth_topic:
            if message.payload.strip() != ONLINE.encode():
                return
            await self._clock.sleep(self._random.uniform(0, BIRTH_JITTER_S))
            self._announce = True
        elif not message.payload:
            self._there.discard(message.topic)
            return
        elif self._is_ours(message.topic) and len(self._there) < MAX_THERE:
            self._there.add(message.topic)
            self._announce = self._announce or bool(self._stale())
        self._wake.set()

    def _is_ours(self, topic: str) -> bool:
        """Whether the topic is under this device's filters, so that an outdated announcement is removed."""
        return any(
            topic.startswith(before) and topic.endswith(after) and topic.count("/") == before.count("/") + 1
            for before, _, after in self._ours
        )

    def _stale(self) -> set[str]:
        """Topics that are announced and should not be; of what is not known yet, none."""
        sensors_known = self._wanted is not None
        controls_known = self._controls is None or self._controls.is_ready
        sensor_prefix = self._ours[0][0]
        return {
            topic
            for topic in self._there - self._all_wanted().keys()
            if (sensors_known if topic.startswith(sensor_prefix) else controls_known)
        }

    def _all_wanted(self) -> dict[str, bytes]:
        """Everything that is to be announced, as far as it is known."""
        return {**(self._wanted or {}), **({} if self._controls is None else self._controls.announcements)}

    async def _run(self) -> None:
        while True:
            await self._something_to_do()
            if not self._link.connected:
                continue  # a connect wakes this loop
            try:
                if self._announce:
                    await self._reconcile()
                elif (state := self._control_state()) is not None:
                    await self._publish_control(*state)
                elif self._waiting and self._clock.now() >= self._due:
                    await self._send(self._waiting.popleft())
            except Transient as error:
                _log.debug("prediction_not_published", error=str(error))
                await self._clock.sleep(_RETRY_S)

    async def _something_to_do(self) -> None:
        """Wait until a send is due, or something has changed."""
        limit: float | None = None
        at_once = self._announce or self._control_state() is not None
        if self._link.connected and (at_once or self._waiting):
            limit = 0.0 if at_once else max(0.0, self._due - self._clock.now())
        if limit == 0.0:
            self._wake.clear()
        else:
            await self._wake.wait(limit)

    def _control_state(self) -> tuple[str, bytes] | None:
        """What the controls want published; their announcements go first, if they have changed."""
        if self._controls is None:
            return None
        if self._controls.announcements != self._controls_announced:
            self._announce = True
        return self._controls.take()

    async def _publish_control(self, topic: str, payload: bytes) -> None:
        if self._controls is None:
            return
        try:
            await self._link.publish(topic, payload, retain=True, timeout_s=ACK_S)
        except Refused as error:
            self._say_refused(str(error))
        self._controls.published(payload)

    async def _reconcile(self) -> None:
        """Announce what is wanted, and remove the rest."""
        self._announce = False
        if self._controls is not None:
            self._controls_announced = self._controls.announcements
        wanted = self._all_wanted()
        changes = [*wanted.items(), *((topic, b"") for topic in sorted(self._stale()))]
        for topic, payload in changes:
            try:
                await self._link.publish(topic, payload, retain=True, timeout_s=ACK_S)
            except Refused as error:
                self._say_refused(str(error))
            except Transient:
                self._announce = True
                raise
            if not payload:
                self._there.discard(topic)

    async def _send(self, line: bytes) -> None:
        self._due = self._clock.now() + self._settings.every_s
        try:
            await self._link.publish(self._prediction, line, retain=self._settings.retain, timeout_s=ACK_S)
        except Refused as error:
            self.dropped += 1
            self._say_refused(str(error))
        except Transient:
            self.dropped += 1
            raise
        else:
            self.published += 1

    def _say_refused(self, words: str) -> None:
        if not self.last_refusal:
            _log.error("prediction_refused", why=words)
        self.last_refusal = words
