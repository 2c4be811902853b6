"""The table of all checks: which facts they judge, and the findings it makes of them."""

from collections.abc import Iterable
from typing import Final

from lichen.broker import facts as f
from lichen.broker.verdicts import connection as c
from lichen.broker.verdicts import messages as m
from lichen.broker.verdicts.finding import BrokerCheck, BrokerFinding
from runtime import exit_codes

_SHARE: Final = "one ingest worker only, until this is known"
TABLE: Final[dict[type[f.Facts], tuple[BrokerCheck, ...]]] = {
    f.ConnectionFacts: (
        BrokerCheck("version", "CONNECT in MQTT 5, else 3.1.1", c.version, "lichen needs a connection"),
        BrokerCheck("client_id.distinct", "two clients at once", c.distinct, "lichen needs a connection"),
    ),
    f.NameFacts: (
        BrokerCheck("client_id.longest", "a client id of 126 bytes", c.longest_id, "", required=False),
        BrokerCheck("client_id.dot", "a client id with a dot", c.dotted_id, "", required=False),
        BrokerCheck(
            "topic.longest", "the longest topic, 7 slashes", c.longest_topic, "chunks need long topics"
        ),
        BrokerCheck("topic.capitals", "topics that differ in capitals", c.capitals, "", required=False),
        BrokerCheck("topic.dot", "a topic with a dot in a level", c.dotted_topic, "", required=False),
    ),
    f.RetainedFacts: (
        BrokerCheck("retained.subscribe", "a later SUBSCRIBE", m.exact, "lichen needs retained messages"),
        BrokerCheck(
            "retained.wildcard", "300 behind a wildcard filter", m.wildcard, "lichen needs retained messages"
        ),
        BrokerCheck("retained.again", "a second SUBSCRIBE of one client", m.again, "", required=False),
        BrokerCheck(
            "retained.replaced", "a second message on the topic", m.replaced, "lichen needs retained messages"
        ),
        BrokerCheck("retained.cleared", "an empty message on the topic", m.cleared, "", required=False),
    ),
    f.SessionFacts: (
        BrokerCheck("session.kept", "a persistent session, after DISCONNECT", m.present, "", required=False),
        BrokerCheck("session.queue", "1,200 messages while away", m.queued, "", required=False),
        BrokerCheck("session.order", "the order of those messages", m.session_order, "", required=False),
    ),
    f.DeliveryFacts: (
        BrokerCheck(
            "qos1.again", "3 messages without PUBACK, cut, reconnect", m.redelivered, "", required=False
        ),
        BrokerCheck(
            "qos1.puback", "PUBACK where nobody subscribes", m.puback, "lichen needs PUBACK for its pings"
        ),
        BrokerCheck(
            "session.takeover", "a second CONNECT with one client id", m.taken_over, "", required=False
        ),
        BrokerCheck(
            "filter.several", "three filters in one SUBSCRIBE", m.several, "an agent has three filters"
        ),
        BrokerCheck("filter.overlap", "two filters that match one message", m.overlap, "", required=False),
        BrokerCheck("order", "300 messages of one topic", m.order, "lichen needs QoS 1"),
    ),
    f.WillFacts: (
        BrokerCheck("will.cut", "a connection without DISCONNECT", m.after_cut, "", required=False),
        BrokerCheck("will.retained", "a later SUBSCRIBE", m.will_retained, "", required=False),
        BrokerCheck(
            "will.disconnect", "a connection that ends in order", m.after_disconnect, "", required=False
        ),
    ),
    f.PacketFacts: (
        BrokerCheck("packet.largest", "packets up to 1 MiB", c.packet, "lichen needs to send chunks"),
    ),
    f.QuotaFacts: (
        BrokerCheck(
            "quota.unacked", "200 messages, no PUBACK from the subscriber", c.unacked, "", required=False
        ),
        BrokerCheck("quota.outgoing", "65 publishes at once", c.outgoing, "", required=False),
    ),
    f.SharedFacts: (
        BrokerCheck("shared.once", "$share, two members, 200 messages", m.once, _SHARE, required=False),
        BrokerCheck("shared.spread", "the share of each member", m.spread, _SHARE, required=False),
        BrokerCheck(
            "shared.dead", "a member that dies without PUBACK", m.dead_member, _SHARE, required=False
        ),
        BrokerCheck(
            "shared.away", "a member that is away, its session kept", m.away_member, _SHARE, required=False
        ),
    ),
    f.KeepaliveFacts: (
        BrokerCheck(
            "keepalive", "a client that falls silent, keepalive 2 s", c.keepalive, "", required=False
        ),
    ),
    f.AccessFacts: (
        BrokerCheck("access.nameless", "CONNECT without credentials", c.nameless, "", required=False),
        BrokerCheck("access.own", "a device on its own topic", c.own, "", required=False),
        BrokerCheck("access.foreign", "a device on another device's topic", c.foreign, "", required=False),
        BrokerCheck("access.broadcast", "a device on a broadcast topic", c.broadcast, "", required=False),
    ),
    f.TidyFacts: (BrokerCheck("tidy", "removal of what this check left", m.tidy, "", required=False),),
}


def findings(facts: f.Facts) -> list[BrokerFinding]:
    """The rows that these facts give."""
    rows = ((check, check.judge(facts)) for check in TABLE[type(facts)])
    return [
        BrokerFinding(check.name, check.tried, row.result, row.measured, row.consequence)
        for check, row in rows
        if row is not None
    ]


def broken(kind: type[f.Facts], words: str) -> list[BrokerFinding]:
    """The rows of a probe that the broker interrupted: failed where lichen cannot do without."""
    return [
        BrokerFinding(one.name, one.tried, "failed" if one.required else "limited", words, one.needed)
        for one in TABLE[kind]
    ]


def untried(kinds: Iterable[type[f.Facts]], words: str) -> list[BrokerFinding]:
    """The rows of probes that did not run."""
    return [BrokerFinding(one.name, one.tried, "untried", words) for kind in kinds for one in TABLE[kind]]


def exit_code(rows: Iterable[BrokerFinding]) -> int:
    """0: the broker can be used; 65: it lacks what lichen needs; 75: that is not known."""
    rows = list(rows)
    if any(row.result == "failed" for row in rows):
        return exit_codes.DATAERR
    unknown = any(row.result == "untried" and not row.check.startswith("access.") for row in rows)
    return exit_codes.TEMPFAIL if unknown else exit_codes.OK
