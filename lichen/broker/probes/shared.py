"""Shared subscriptions: each message once, spread, and what becomes of a member's share when it is gone."""

import time
from typing import Final

from lichen.broker.client import ProbeClient
from lichen.broker.client_types import ClientOptions, NoAnswer, Received
from lichen.broker.facts import HELD, SHARED, SharedFacts
from lichen.broker.lab import HOLDS, PERSISTENT, Lab

_QUIET_S: Final = 1.5
_TWICE_S: Final = 0.3
"""Messages that come twice come soon after the first."""
_LOOK_S: Final = 0.02


def shared(lab: Lab) -> SharedFacts:
    """A group of two takes the messages of many devices.

    Raises:
        NoAnswer: the broker did not answer.
    """
    try:
        with _member(lab, "spread", "one") as one, _member(lab, "spread", "two") as two:
            if one.limits.shared == 0:
                return SharedFacts("CONNACK says that there are no shared subscriptions")
            _publish(lab, "spread", SHARED)
            came = _both(one, two, SHARED)
    except NoAnswer as error:
        return SharedFacts(str(error))
    payloads = [m.payload for member in came for m in member]
    missing = SHARED - len(set(payloads))
    counts = len(came[0]), len(came[1])
    if missing == SHARED:
        return SharedFacts("", counts, 0, missing)
    lost, held = _member_dies(lab)
    return SharedFacts(
        "", counts, len(payloads) - len(set(payloads)), missing, lost, held, _member_is_away(lab)
    )


def _member(lab: Lab, group: str, name: str, options: ClientOptions | None = None) -> ProbeClient:
    client = lab.client(f"{group}-{name}", options)
    try:
        client.subscribe(f"$share/{group}-{lab.run}/{lab.topic(group, 'd', '+', 'up', '#')}")
    except NoAnswer:
        client.close()
        raise
    return client


def _publish(lab: Lab, group: str, count: int) -> None:
    messages = [(lab.topic(group, "d", f"dev-{n}", "up", "update"), b"%d" % n) for n in range(count)]
    with lab.client(f"{group}-sender") as sender:
        sender.publish_all(messages)


def _both(one: ProbeClient, two: ProbeClient, count: int) -> tuple[list[Received], list[Received]]:
    """The messages of both members, once all came, or nothing more comes."""
    came, changed = -1, time.monotonic()
    while time.monotonic() - changed < (_QUIET_S if came < count else _TWICE_S):
        now = len(one.received(0)) + len(two.received(0))
        if now != came:
            came, changed = now, time.monotonic()
        time.sleep(_LOOK_S)
    return one.received(0), two.received(0)


def _member_dies(lab: Lab) -> tuple[int, int]:
    """Messages that were lost with it, and how many it held."""
    with _member(lab, "dies", "two") as two:
        one = _member(lab, "dies", "one", HOLDS)
        _publish(lab, "dies", HELD)
        held, _ = _both(one, two, HELD)
        one.cut()
        return HELD - len({m.payload for m in two.received(HELD, 6.0, quiet_s=2.0)}), len(held)


def _member_is_away(lab: Lab) -> int:
    """Messages that wait for the member that is away."""
    with _member(lab, "away", "two") as two:
        _member(lab, "away", "one", PERSISTENT).close()
        _publish(lab, "away", HELD)
        return HELD - len({m.payload for m in two.received(HELD, 6.0, quiet_s=_QUIET_S)})
