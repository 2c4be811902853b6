"""Run all probes, a few at a time, within a time limit."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, get_args

from lichen.broker import facts as f
from lichen.broker.client_types import NoAnswer
from lichen.broker.lab import Lab
from lichen.broker.probes.access import access
from lichen.broker.probes.delivery import connection, delivery, names
from lichen.broker.probes.limits import keepalive, packet, quota
from lichen.broker.probes.memory import retained, session, will
from lichen.broker.probes.shared import shared
from lichen.broker.verdicts.finding import BrokerFinding
from lichen.broker.verdicts.table import broken, findings, untried

PROBES: Final[dict[type[f.Facts], Callable[[Lab], f.Facts]]] = {
    f.SharedFacts: shared,  # the longest first
    f.KeepaliveFacts: keepalive,
    f.RetainedFacts: retained,
    f.QuotaFacts: quota,
    f.DeliveryFacts: delivery,
    f.WillFacts: will,
    f.PacketFacts: packet,
    f.SessionFacts: session,
    f.NameFacts: names,
    f.AccessFacts: access,
}
_AT_ONCE: Final = 5
_Answer = tuple[type[f.Facts], f.Facts | str]


def check(lab: Lab, limit_s: float, *, either: bool) -> list[BrokerFinding]:
    """All findings, in the order of :data:`lichen.broker.facts.Facts`.

    Args:
        lab: of this check; tidied at the end.
        limit_s: for all probes together; what is not over then is reported as untried.
        either: try MQTT 3.1.1 where 5 is refused.

    Raises:
        NoAnswer: there is no connection at all.
    """
    began = time.monotonic()
    first = connection(lab, either=either)
    rows: dict[type[f.Facts], list[BrokerFinding]] = {f.ConnectionFacts: findings(first)}
    if first.distinct:
        for kind, answer in _answers(lab, limit_s - (time.monotonic() - began)):
            rows[kind] = broken(kind, answer) if isinstance(answer, str) else findings(answer)
        rows[f.TidyFacts] = findings(lab.tidy())
    words = f"not over in {limit_s:g} s" if first.distinct else "two clients cannot be connected at once"
    return [row for kind in get_args(f.Facts) for row in rows.get(kind) or untried([kind], words)]


def _answers(lab: Lab, limit_s: float) -> Iterator[_Answer]:
    """The answer of each probe that is over in time."""
    todo: queue.SimpleQueue[type[f.Facts]] = queue.SimpleQueue()
    done: queue.SimpleQueue[_Answer | BaseException] = queue.SimpleQueue()
    for kind in PROBES:
        todo.put(kind)
    for number in range(_AT_ONCE):
        # Daemon threads: a broker that answers nothing must not delay the end of the command.
        threading.Thread(target=_work, args=(lab, todo, done), name=f"probe-{number}", daemon=True).start()
    until = time.monotonic() + limit_s
    for _ in PROBES:
        try:
            answer = done.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            while not todo.empty():
                todo.get_nowait()
            return
        if isinstance(answer, BaseException):
            raise answer
        yield answer


def _work(
    lab: Lab,
    todo: "queue.SimpleQueue[type[f.Facts]]",
    done: "queue.SimpleQueue[_Answer | BaseException]",
) -> None:
    while True:
        try:
            kind = todo.get_nowait()
        except queue.Empty:
            return
        try:
            done.put((kind, PROBES[kind](lab)))
        except NoAnswer as error:
            done.put((kind, str(error)))
        except BaseException as error:  # noqa: BLE001 - reported by the thread that waits
            done.put(error)
            return
