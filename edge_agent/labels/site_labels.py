"""Labels through the broker of the site, as Home Assistant's ``select`` and buttons give them.

One window is asked for at a time. Its name, the reason, and what became of the last message are on
``<topic>/label`` (retained), which is published only after the label is on the disk. A message must name the
window that it labels: between what a person saw and the message that comes of it, another window may have
been proposed. Bounds: ``MAX_PAYLOAD`` bytes, and a rate; a retained message is refused, because the broker
would repeat it at every connect.
"""

import json
from typing import Any, Final

import structlog
from pydantic import ValidationError

from edge_agent.config.agent import AgentSettings
from edge_agent.config.publish import PublishSettings
from edge_agent.labels.requests import GiveLabel, ListWindows, Propose, SkipWindow, UndoLabel
from edge_agent.labels.service import LabelService
from edge_agent.publish.home_assistant import LABEL_STATE, PRESSES, label_entities, label_topics
from protocol.base import first_fault
from protocol.errors import LichenError, Reason, Refused, Transient
from runtime.clock import Clock
from runtime.concurrency.signals import Signal
from runtime.mqtt.inbox import Message
from runtime.pacing import TokenBucket
from runtime.text import one_line

_log = structlog.get_logger(__name__)
MAX_PAYLOAD: Final = 1024
BURST: Final = 10.0
PER_SECOND: Final = 0.5
"""Messages that are acted on, after the first ones: a person needs seconds to look at a window."""
_AGAIN_S: Final = 30.0
"""Seconds until a window is looked for again, if none could be proposed."""
_RENEW_S: Final = 900.0
"""Seconds until another window is proposed, if nobody labels this one: it may have been dropped."""
_MAX_WORDS: Final = 200
BY: Final = "home assistant"


class SiteLabels:
    """One service; what it wants published is taken by :class:`edge_agent.publish.service.Publishing`.

    Args:
        labels: answers.
        settings: of the agent.
        publish: its ``infer.mqtt``.
        clock: paces it.
    """

    def __init__(
        self, labels: LabelService, settings: AgentSettings, publish: PublishSettings, clock: Clock
    ) -> None:
        self._labels = labels
        self._fleet, self._device, self._settings = settings.fleet, settings.device, publish
        self._clock = clock
        base = publish.base(settings.device)
        self._topic = f"{base}/{LABEL_STATE}"
        self._set, self._press = label_topics(publish, settings.device)
        self._rate = TokenBucket(BURST, PER_SECOND)
        self._look = Signal()
        self.changed = Signal()
        """Set if there is something to publish."""
        self._classes: tuple[str, ...] = ()
        self._task = ""
        self._window: dict[str, Any] | None = None
        self._newest = False
        self._last: dict[str, Any] | None = None
        self._error = ""
        self._sent: bytes | None = None

    @property
    def announcements(self) -> dict[str, bytes]:
        """Discovery topic -> payload; empty until a task is known, or without Home Assistant."""
        if not self._classes or not self._settings.home_assistant:
            return {}
        return label_entities(self._settings, self._fleet, self._device, self._task, self._classes)

    @property
    def is_ready(self) -> bool:
        """Whether :attr:`announcements` are final."""
        return bool(self._classes)

    @property
    def status(self) -> dict[str, Any]:
        """For the agent's status."""
        asked = None if self._window is None else self._window["window"]
        return {"window": asked, **({"refused": self._error} if self._error else {})}

    def take(self) -> tuple[str, bytes] | None:
        """Topic and payload of the state, if it is to be published."""
        if not self._classes:
            return None
        state = self._state()
        return None if state == self._sent else (self._topic, state)

    def published(self, payload: bytes) -> None:
        """That state is at the broker."""
        self._sent = payload

    def publish_again(self) -> None:
        """The broker may have lost the state."""
        self._sent = None
        self._look.set()
        self.changed.set()

    def is_command(self, topic: str) -> bool:
        """Whether a topic is for :meth:`hear`."""
        return topic in {self._set, self._press}

    async def run(self) -> None:
        """Propose a window whenever one is wanted, for ever."""
        while True:
            await self._look.wait(_AGAIN_S if self._window is None else _RENEW_S, self._clock)
            await self._propose()

    async def hear(self, message: Message) -> None:
        """Act on a message; what is wrong with it is in the next state."""
        try:
            if message.retain:
                raise Refused(Reason.MALFORMED, "a retained message does nothing: publish it without retain")
            if len(message.payload) > MAX_PAYLOAD:
                raise Refused(Reason.TOO_LARGE, f"{len(message.payload)} bytes, at most {MAX_PAYLOAD}")
            if not self._rate.take(self._clock.now()):
                raise Refused(Reason.FULL, "too many messages in a short time")
            if message.topic == self._set:
                await self._label(message.payload)
            else:
                await self._pressed(message.payload)
            self._error = ""
        except LichenError as error:
            words = error.detail if isinstance(error, Refused) else str(error)
            self._error = one_line(words, _MAX_WORDS)
            _log.debug("label_message_refused", topic=message.topic, why=self._error)
        self.changed.set()

    async def _label(self, payload: bytes) -> None:
        try:
            wanted = json.loads(payload)
        except (ValueError, RecursionError):  # nested too deeply
            wanted = None
        if not isinstance(wanted, dict):
            example = '{"window": "34-c02bd231711c0353", "label": "walking"}'
            raise Refused(Reason.MALFORMED, f"a label is a JSON object such as {example}")
        try:
            request = GiveLabel(do="label", window=wanted.get("window"), label=wanted.get("label"), by=BY)
        except ValidationError as error:
            raise Refused(Reason.MALFORMED, f"the label is wrong: {first_fault(error)}") from None
        self._last = await self._labels.answer(request)
        await self._propose()

    async def _pressed(self, payload: bytes) -> None:
        press = payload.decode(errors="replace")
        if press not in PRESSES:
            known = ", ".join(PRESSES)
            raise Refused(Reason.MALFORMED, f"{one_line(press, 40)!r} is no button; they are {known}")
        if press == "undo":
            last = None if self._last is None else self._last["window"]
            self._last = await self._labels.answer(UndoLabel(do="undo", window=last))
            self._last = None  # the next undo takes back the label before
        elif press == "skip" and self._window is not None:
            await self._labels.answer(SkipWindow(do="skip", window=self._window["window"]))
        self._newest = press == "newest"
        await self._propose(raises=True)

    async def _propose(self, *, raises: bool = False) -> None:
        """Choose the window to ask for."""
        try:
            newest, self._newest = self._newest, False
            request = ListWindows(do="windows", count=1) if newest else Propose(do="propose", count=1)
            found = await self._labels.answer(request)
            self._task, self._classes = found["task"], tuple(found["labels"])
            self._window = found["windows"][0] if found["windows"] else None
        except (Refused, Transient) as error:
            self._window = None
            if raises:
                raise
            self._error = one_line(error.detail if isinstance(error, Refused) else str(error), _MAX_WORDS)
        self.changed.set()

    def _state(self) -> bytes:
        asked = self._window or {}
        state = {
            "label": asked.get("label"),
            "window": asked.get("window"),
            "at": asked.get("at"),
            "reason": asked.get("reason", "the newest window" if asked else "no window is to be labelled"),
            "prediction": asked.get("prediction"),
            "last": self._last,
            "error": self._error or None,
            "labels": self._classes,
        }
        return json.dumps(state, ensure_ascii=False).encode()
