"""Shared by all probes: broker, topics and client ids of one check, and the removal of what they leave."""

import itertools
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import ClientOptions, NoAnswer
from lichen.broker.facts import TidyFacts
from runtime.mqtt.connection import Will
from runtime.settings.load import MqttSettings

PERSISTENT: Final = ClientOptions(persistent=True, fresh=True)
BACK: Final = ClientOptions(persistent=True, fresh=False)
"""Takes the session that is there."""
HOLDS: Final = ClientOptions(acknowledges=False)
_QUIET_S: Final = 0.4


@dataclass
class Lab:
    """One check.

    Attributes:
        settings: address, protocol and credentials.
        password: of ``settings.username``.
        prefix: of all topics; ends with a random level.
        run: the random level; part of each client id.
        device: credentials of a device, for the access list; None: not given.
        device_password: of ``device.username``.
        fleet: the fleet's name, for the access list.
        device_name: the device's name; empty: not given.
    """

    settings: MqttSettings
    password: str | None
    prefix: str
    run: str
    fleet: str
    device: MqttSettings | None = None
    device_password: str | None = None
    device_name: str = ""
    _persistent: set[str] = field(default_factory=set)
    _retained: set[str] = field(default_factory=set)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def client(self, role: str, options: ClientOptions | None = None) -> ProbeClient:
        """A client that is connected; its id has the role in it.

        Raises:
            NoAnswer: it could not connect.
        """
        options = options or ClientOptions()
        # Several probes run at once: only a session is found again by its name.
        number = "" if options.persistent else f"-{next(self._numbers)}"
        name = f"check-{self.run}-{role}{number}"
        if options.persistent:
            self._note(self._persistent, name)
        if options.will is not None and options.will.retain:
            self._note(self._retained, options.will.topic)
        return ProbeClient(self.settings, self.password, name, options).connect()

    def topic(self, *levels: str) -> str:
        """Below the prefix."""
        return "/".join((self.prefix, *levels))

    def retained(self, topic: str) -> str:
        """The topic, noted for the removal of its retained message."""
        self._note(self._retained, topic)
        return topic

    def will(self, topic: str) -> Will:
        """A retained will."""
        return Will(topic, b"gone")

    def tidy(self) -> TidyFacts:
        """Remove retained messages and persistent sessions, and look what is left."""
        with self._lock:
            topics, names = sorted(self._retained), sorted(self._persistent)
        with suppress(NoAnswer), self.client("tidy") as client:  # the look below decides
            client.publish_all([(topic, b"") for topic in topics], retain=True)
        try:
            for name in names:
                with suppress(NoAnswer), ProbeClient(self.settings, self.password, name) as client:
                    client.connect()
            with self.client("tidy") as client:
                client.subscribe(self.topic("#"))
                return TidyFacts(len([one for one in client.quiet(_QUIET_S) if one.retain and one.payload]))
        except NoAnswer as error:
            return TidyFacts(len(topics), str(error))

    def _note(self, where: set[str], name: str) -> None:
        with self._lock:
            where.add(name)
