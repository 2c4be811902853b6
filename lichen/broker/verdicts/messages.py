"""Verdicts on retained messages, sessions, delivery, wills and shared subscriptions."""

from lichen.broker.facts import (
    HELD,
    ORDERED,
    QUEUED,
    REPEATED,
    RETAINED,
    SHARED,
    DeliveryFacts,
    RetainedFacts,
    SessionFacts,
    SharedFacts,
    TidyFacts,
    WillFacts,
)
from lichen.broker.verdicts.finding import RowVerdict, either, failed, limited, passed

_RESENT = "no update is lost, for agents send until the receipt"
_ONE_WORKER = "one ingest worker only: run lichen coordinator serve, or one lichen coordinator ingest"


def exact(facts: RetainedFacts) -> RowVerdict:
    """One retained message."""
    return either(
        facts.exact,
        ("delivered, marked as retained", "not delivered, or not marked as retained"),
        "a device that connects later would find neither task nor version",
    )


def wildcard(facts: RetainedFacts) -> RowVerdict:
    """Retained messages behind a wildcard."""
    return either(
        facts.wildcard == RETAINED,
        (f"{RETAINED} of {RETAINED}", f"{facts.wildcard} of {RETAINED}"),
        "a coordinator that starts misses states; it asks the devices for them, which takes a while",
        required=False,
    )


def again(facts: RetainedFacts) -> RowVerdict:
    """Retained messages at a second SUBSCRIBE."""
    return either(
        facts.again == RETAINED,
        (f"{RETAINED} of {RETAINED}", f"{facts.again} of {RETAINED}"),
        "after a reconnect, states that changed meanwhile come later, with the next message of the device",
        required=False,
    )


def replaced(facts: RetainedFacts) -> RowVerdict:
    """The newest of two."""
    return either(
        facts.replaced == (b"second",),
        ("the second one alone", f"{len(facts.replaced)} messages, the last {_last(facts.replaced)}"),
        "devices would start from an old task or version",
    )


def _last(payloads: tuple[bytes, ...]) -> str:
    return payloads[-1].decode(errors="replace") if payloads else "none"


def cleared(facts: RetainedFacts) -> RowVerdict:
    """An empty one."""
    return either(
        facts.cleared == 0,
        ("gone", f"{facts.cleared} still there"),
        "devices that were forgotten stay in the roster",
        required=False,
    )


def present(facts: SessionFacts) -> RowVerdict:
    """CONNACK's flag."""
    return either(
        facts.present,
        ("kept", "not kept"),
        f"what is sent to a process that is away is lost and sent again later; {_RESENT}",
        required=False,
    )


def queued(facts: SessionFacts) -> RowVerdict:
    """Messages for a client that is away."""
    some = f"{facts.queued} of {facts.published}"
    if facts.published < QUEUED:
        return limited(
            f"{some}; the broker acknowledged {facts.published} in the time of this probe",
            f"the broker is slow, or limits publishes: about {facts.published // 15} a second",
        )
    return either(
        facts.queued == facts.published,
        (f"{some} came", f"{some} came, though all had a PUBACK"),
        "while the coordinator is away, the rest of a burst is dropped and sent again later; "
        f"{_RESENT}; raise the broker's queue limit (Mosquitto: max_queued_messages 0)",
        required=False,
    )


def session_order(facts: SessionFacts) -> RowVerdict:
    """The order of queued messages."""
    return either(
        facts.in_order,
        ("in order", "out of order"),
        "the last state of a device may be overtaken by an older one; the coordinator goes by their numbers",
        required=False,
    )


def redelivered(facts: DeliveryFacts) -> RowVerdict:
    """Unacknowledged messages after a reconnect."""
    return either(
        facts.redelivered == REPEATED,
        (f"{REPEATED} of {REPEATED} came again", f"{facts.redelivered} of {REPEATED} came again"),
        f"what a process held when its connection broke is lost; {_RESENT}; other messages come later",
        required=False,
    )


def taken_over(facts: DeliveryFacts) -> RowVerdict:
    """A second connection with one id."""
    return either(
        facts.taken_over,
        ("the new connection works, the old one ended", "the new connection did not get the session"),
        "a device that returns before its old connection is noticed as dead cannot work until then",
    )


def several(facts: DeliveryFacts) -> RowVerdict:
    """Three filters in one SUBSCRIBE."""
    return either(
        facts.several_filters,
        ("granted and delivered", "not all delivered"),
        "an agent subscribes to three filters in one packet: offers, tasks or versions would be missing",
    )


def overlap(facts: DeliveryFacts) -> RowVerdict:
    """Two filters that match one message."""
    if facts.overlap == 1:
        return passed("once")
    if facts.overlap == 0:
        return failed("it did not come", "two filters of one client hide messages: the broker cannot be used")
    return passed(f"{facts.overlap} times", "allowed by MQTT; lichen counts an update once by its digest")


def order(facts: DeliveryFacts) -> RowVerdict:
    """Messages of one topic."""
    if facts.complete < ORDERED:
        return failed(
            f"{facts.complete} of {ORDERED} came", "the broker loses messages of a client that is there"
        )
    return either(
        facts.in_order,
        (f"{ORDERED} in order", "out of order"),
        "an older state may follow a newer one for a moment",
        required=False,
    )


def puback(facts: DeliveryFacts) -> RowVerdict:
    """PUBACK of a message without subscribers."""
    return passed(f"median {facts.puback_ms:g} ms")


def after_cut(facts: WillFacts) -> RowVerdict:
    """The will after a cut."""
    if facts.after_cut is None:
        return limited(
            "it did not come", "devices that lose power show as online until their state is too old"
        )
    return passed(f"after {facts.after_cut:.1f} s")


def will_retained(facts: WillFacts) -> RowVerdict:
    """The will as a retained message."""
    return either(
        facts.retained,
        ("retained", "not retained"),
        "a coordinator that starts takes devices that are gone for online",
        required=False,
    )


def after_disconnect(facts: WillFacts) -> RowVerdict:
    """The will after a DISCONNECT."""
    return either(
        not facts.after_disconnect,
        ("it does not come", "it comes"),
        "devices that stop in order show as lost",
        required=False,
    )


def once(facts: SharedFacts) -> RowVerdict:
    """Each message to one member."""
    if facts.refused:
        return limited(facts.refused, _ONE_WORKER)
    if facts.missing == SHARED:
        return limited("the subscription is granted, but nothing comes", _ONE_WORKER)
    if facts.twice or facts.missing:
        return limited(
            f"of {SHARED} messages {facts.twice} came twice and {facts.missing} did not come",
            f"{_RESENT}, and counts each once; several workers do some work twice",
        )
    return passed(f"{SHARED} of {SHARED}, each once")


def spread(facts: SharedFacts) -> RowVerdict | None:
    """Messages for each member."""
    if not sum(facts.counts):
        return None
    measured = f"{facts.counts[0]} and {facts.counts[1]}"
    return either(
        min(facts.counts) >= SHARED // 10,
        (measured, measured),
        "one worker does nearly all the work: look for the broker's strategy (EMQX: round_robin, not sticky)",
        required=False,
    )


def dead_member(facts: SharedFacts) -> RowVerdict | None:
    """What a member held that died."""
    if not sum(facts.counts):
        return None
    return either(
        facts.lost_with_member == 0,
        (
            f"all {HELD} came to the other, {facts.held} of them held by the first",
            f"{facts.lost_with_member} of {HELD} did not come to the other; the first held {facts.held}",
        ),
        f"{_RESENT}; a round may wait for that when an ingest worker dies",
        required=False,
    )


def away_member(facts: SharedFacts) -> RowVerdict | None:
    """The share of a member that is away."""
    if not sum(facts.counts):
        return None
    return either(
        facts.lost_with_away == 0,
        (
            f"all {HELD} came to the other",
            f"{facts.lost_with_away} of {HELD} wait for the member that is away",
        ),
        "ingest workers must use session_expiry_s = 0, or updates wait until the worker is back",
        required=False,
    )


def tidy(facts: TidyFacts) -> RowVerdict:
    """What this check leaves."""
    if facts.trouble:
        return limited(
            facts.trouble, f"{facts.left} retained messages may be left below the prefix: clear them"
        )
    return either(
        facts.left == 0,
        ("nothing is left", f"{facts.left} retained messages are left"),
        "clear them by hand below the prefix",
        required=False,
    )
