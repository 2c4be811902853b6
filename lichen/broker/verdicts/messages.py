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
from lichen.broker.verdicts.finding import RowVerdict, check, either, failed, limited, passed

_RETAINED = "lichen needs retained messages"
_SHARE = "one ingest process only, until this is known"
_RESENT = "no update is lost, for agents send until the receipt"
_ONE_PROCESS = "one ingest process only: run lichen coordinator serve, or one lichen coordinator ingest"


@check(RetainedFacts, "retained.subscribe", "a later SUBSCRIBE", _RETAINED)
def _exact(facts: RetainedFacts) -> RowVerdict:
    return either(
        facts.exact,
        ("delivered, marked as retained", "not delivered, or not marked as retained"),
        "a device that connects later would find neither task nor version",
        required=True,
    )


@check(RetainedFacts, "retained.wildcard", "300 behind a wildcard filter", _RETAINED)
def _wildcard(facts: RetainedFacts) -> RowVerdict:
    return either(
        facts.wildcard == RETAINED,
        (f"{RETAINED} of {RETAINED}", f"{facts.wildcard} of {RETAINED}"),
        "a coordinator that starts misses states; it asks the devices for them, which takes a while",
    )


@check(RetainedFacts, "retained.again", "a second SUBSCRIBE of one client")
def _again(facts: RetainedFacts) -> RowVerdict:
    return either(
        facts.again == RETAINED,
        (f"{RETAINED} of {RETAINED}", f"{facts.again} of {RETAINED}"),
        "after a reconnect, states that changed meanwhile come later, with the next message of the device",
    )


@check(RetainedFacts, "retained.replaced", "a second message on the topic", _RETAINED)
def _replaced(facts: RetainedFacts) -> RowVerdict:
    return either(
        facts.replaced == (b"second",),
        ("the second one alone", f"{len(facts.replaced)} messages, the last {_last(facts.replaced)}"),
        "devices would start from an old task or version",
        required=True,
    )


@check(RetainedFacts, "retained.cleared", "an empty message on the topic")
def _cleared(facts: RetainedFacts) -> RowVerdict:
    return either(
        facts.cleared == 0,
        ("gone", f"{facts.cleared} still there"),
        "devices that were forgotten stay in the roster",
    )


@check(SessionFacts, "session.kept", "a persistent session, after DISCONNECT")
def _present(facts: SessionFacts) -> RowVerdict:
    return either(
        facts.present,
        ("kept", "not kept"),
        f"what is sent to a process that is away is lost and sent again later; {_RESENT}",
    )


@check(SessionFacts, "session.queue", "1,200 messages while away")
def _queued(facts: SessionFacts) -> RowVerdict:
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
    )


@check(SessionFacts, "session.order", "the order of those messages")
def _session_order(facts: SessionFacts) -> RowVerdict:
    return either(
        facts.in_order,
        ("in order", "out of order"),
        "the last state of a device may be overtaken by an older one; the coordinator goes by their numbers",
    )


@check(DeliveryFacts, "qos1.again", "3 messages without PUBACK, cut, reconnect")
def _redelivered(facts: DeliveryFacts) -> RowVerdict:
    return either(
        facts.redelivered == REPEATED,
        (f"{REPEATED} of {REPEATED} came again", f"{facts.redelivered} of {REPEATED} came again"),
        f"what a process held when its connection broke is lost; {_RESENT}; other messages come later",
    )


@check(DeliveryFacts, "qos1.puback", "PUBACK where nobody subscribes", "lichen needs PUBACK for its pings")
def _puback(facts: DeliveryFacts) -> RowVerdict:
    return passed(f"median {facts.puback_ms:g} ms")


@check(DeliveryFacts, "session.takeover", "a second CONNECT with one client id")
def _taken_over(facts: DeliveryFacts) -> RowVerdict:
    return either(
        facts.taken_over,
        ("the new connection works, the old one ended", "the new connection did not get the session"),
        "a device that returns before its old connection is noticed as dead cannot work until then",
        required=True,
    )


@check(DeliveryFacts, "filter.several", "three filters in one SUBSCRIBE", "an agent has three filters")
def _several(facts: DeliveryFacts) -> RowVerdict:
    return either(
        facts.several_filters,
        ("granted and delivered", "not all delivered"),
        "an agent subscribes to three filters in one packet: offers, tasks or versions would be missing",
        required=True,
    )


@check(DeliveryFacts, "filter.overlap", "two filters that match one message")
def _overlap(facts: DeliveryFacts) -> RowVerdict:
    if facts.overlap == 1:
        return passed("once")
    if facts.overlap == 0:
        return failed("it did not come", "two filters of one client hide messages: the broker cannot be used")
    return passed(f"{facts.overlap} times", "allowed by MQTT; lichen counts an update once by its digest")


@check(DeliveryFacts, "order", "300 messages of one topic", "lichen needs QoS 1")
def _order(facts: DeliveryFacts) -> RowVerdict:
    if facts.complete < ORDERED:
        return failed(
            f"{facts.complete} of {ORDERED} came", "the broker loses messages of a client that is there"
        )
    return either(
        facts.in_order,
        (f"{ORDERED} in order", "out of order"),
        "an older state may follow a newer one for a moment",
    )


@check(WillFacts, "will.cut", "a connection without DISCONNECT")
def _after_cut(facts: WillFacts) -> RowVerdict:
    if facts.after_cut is None:
        return limited(
            "it did not come", "devices that lose power show as online until their state is too old"
        )
    return passed(f"after {facts.after_cut:.1f} s")


@check(WillFacts, "will.retained", "a later SUBSCRIBE")
def _will_retained(facts: WillFacts) -> RowVerdict:
    return either(
        facts.retained,
        ("retained", "not retained"),
        "a coordinator that starts takes devices that are gone for online",
    )


@check(WillFacts, "will.disconnect", "a connection that ends in order")
def _after_disconnect(facts: WillFacts) -> RowVerdict:
    return either(
        not facts.after_disconnect,
        ("it does not come", "it comes"),
        "devices that stop in order show as lost",
    )


@check(SharedFacts, "shared.once", "$share, two members, 200 messages", _SHARE, required=False)
def _once(facts: SharedFacts) -> RowVerdict:
    if facts.refused:
        return limited(facts.refused, _ONE_PROCESS)
    if facts.missing == SHARED:
        return limited("the subscription is granted, but nothing comes", _ONE_PROCESS)
    if facts.twice or facts.missing:
        return limited(
            f"of {SHARED} messages {facts.twice} came twice and {facts.missing} did not come",
            f"{_RESENT}, and counts each once; several processes do some work twice",
        )
    return passed(f"{SHARED} of {SHARED}, each once")


@check(SharedFacts, "shared.spread", "the share of each member", _SHARE, required=False)
def _spread(facts: SharedFacts) -> RowVerdict | None:
    if not sum(facts.counts):
        return None
    measured = f"{facts.counts[0]} and {facts.counts[1]}"
    return either(
        min(facts.counts) >= SHARED // 10,
        (measured, measured),
        "one process does nearly all the work: see the broker's strategy (EMQX: round_robin, not sticky)",
    )


@check(SharedFacts, "shared.dead", "a member that dies without PUBACK", _SHARE, required=False)
def _dead_member(facts: SharedFacts) -> RowVerdict | None:
    if not sum(facts.counts):
        return None
    return either(
        facts.lost_with_member == 0,
        (
            f"all {HELD} came to the other, {facts.held} of them held by the first",
            f"{facts.lost_with_member} of {HELD} did not come to the other; the first held {facts.held}",
        ),
        f"{_RESENT}; a round may wait for that when an ingest process dies",
    )


@check(SharedFacts, "shared.away", "a member that is away, its session kept", _SHARE, required=False)
def _away_member(facts: SharedFacts) -> RowVerdict | None:
    if not sum(facts.counts):
        return None
    return either(
        facts.lost_with_away == 0,
        (
            f"all {HELD} came to the other",
            f"{facts.lost_with_away} of {HELD} wait for the member that is away",
        ),
        "ingest processes must use session_expiry_s = 0, or updates wait until the process is back",
    )


@check(TidyFacts, "tidy", "removal of what this check left")
def _tidy(facts: TidyFacts) -> RowVerdict:
    if facts.trouble:
        return limited(
            facts.trouble, f"{facts.left} retained messages may be left below the prefix: clear them"
        )
    return either(
        facts.left == 0,
        ("nothing is left", f"{facts.left} retained messages are left"),
        "clear them by hand below the prefix",
    )


def _last(payloads: tuple[bytes, ...]) -> str:
    return payloads[-1].decode(errors="replace") if payloads else "none"
