"""What follows for lichen from what a probe observed."""

from dataclasses import replace

import pytest

from lichen.broker import facts as f
from lichen.broker.check import PROBES
from lichen.broker.verdicts.finding import TABLE, BrokerFinding
from lichen.broker.verdicts.table import broken, exit_code, findings, untried

GOOD = {
    f.ConnectionFacts: f.ConnectionFacts("5"),
    f.NameFacts: f.NameFacts("", "", 256, dotted_topic=True, capitals=True),
    f.RetainedFacts: f.RetainedFacts(True, f.RETAINED, f.RETAINED, (b"second",), 0),
    f.SessionFacts: f.SessionFacts(True, f.QUEUED, f.QUEUED, in_order=True),
    f.DeliveryFacts: f.DeliveryFacts(f.REPEATED, True, 1, True, True, f.ORDERED, 0.5),
    f.WillFacts: f.WillFacts(0.1, retained=True, after_disconnect=False),
    f.PacketFacts: f.PacketFacts(f.LARGEST_PACKET, None),
    f.QuotaFacts: f.QuotaFacts(f.UNACKED, f.UNACKED, 65, None),
    f.SharedFacts: f.SharedFacts("", (90, 110)),
    f.KeepaliveFacts: f.KeepaliveFacts(2, 3.1),
    f.AccessFacts: f.AccessFacts(False, "", broadcast=False, foreign=False, own=True),
    f.TidyFacts: f.TidyFacts(0),
}


def row(facts: f.Facts, name: str) -> BrokerFinding:
    return next(one for one in findings(facts) if one.check == name)


def changed(kind: type, **values: object) -> f.Facts:
    return replace(GOOD[kind], **values)


def test_every_probe_has_rows_and_every_check_a_name_of_its_own() -> None:
    assert set(TABLE) == set(GOOD) == {*PROBES, f.ConnectionFacts, f.TidyFacts}
    names = [check.name for checks in TABLE.values() for check in checks]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", GOOD, ids=lambda kind: kind.__name__)
def test_a_broker_that_can_do_all_passes_every_row(kind) -> None:
    rows = findings(GOOD[kind])
    assert {one.result for one in rows} == {"passed"}
    assert len(rows) == len(TABLE[kind])
    assert exit_code(rows) == 0


@pytest.mark.parametrize(
    ("name", "facts", "result", "says"),
    [
        ("version", f.ConnectionFacts("3.1.1", "wrong version"), "limited", 'protocol = "3.1.1"'),
        ("client_id.distinct", f.ConnectionFacts("5", distinct=False), "failed", "credentials of its own"),
        ("client_id.longest", changed(f.NameFacts, longest_id="no"), "limited", "short names"),
        ("client_id.dot", changed(f.NameFacts, dotted_id="no"), "limited", "no dots"),
        ("topic.longest", changed(f.NameFacts, longest_topic=0), "failed", "chunk"),
        ("topic.capitals", changed(f.NameFacts, capitals=False), "limited", "capitals"),
        ("retained.subscribe", changed(f.RetainedFacts, exact=False), "failed", "neither task nor version"),
        ("retained.wildcard", changed(f.RetainedFacts, wildcard=0), "limited", "asks the devices"),
        ("retained.replaced", changed(f.RetainedFacts, replaced=(b"first",)), "failed", "old task"),
        ("retained.cleared", changed(f.RetainedFacts, cleared=1), "limited", "roster"),
        ("session.kept", changed(f.SessionFacts, present=False), "limited", "no update is lost"),
        ("session.queue", changed(f.SessionFacts, queued=1000), "limited", "max_queued_messages"),
        ("session.queue", changed(f.SessionFacts, queued=300, published=300), "limited", "20 a second"),
        ("qos1.again", changed(f.DeliveryFacts, redelivered=0), "limited", "no update is lost"),
        ("session.takeover", changed(f.DeliveryFacts, taken_over=False), "failed", "old connection"),
        ("filter.overlap", changed(f.DeliveryFacts, overlap=2), "passed", "digest"),
        ("filter.overlap", changed(f.DeliveryFacts, overlap=0), "failed", "cannot be used"),
        ("filter.several", changed(f.DeliveryFacts, several_filters=False), "failed", "three filters"),
        ("order", changed(f.DeliveryFacts, complete=299), "failed", "loses"),
        ("order", changed(f.DeliveryFacts, in_order=False), "limited", "older state"),
        ("will.cut", changed(f.WillFacts, after_cut=None), "limited", "online"),
        ("will.disconnect", changed(f.WillFacts, after_disconnect=True), "limited", "lost"),
        ("packet.largest", f.PacketFacts(1535, None), "failed", "1536"),
        (
            "packet.largest",
            f.PacketFacts(131072, 131072),
            "limited",
            "max_packet_bytes = 131072 and chunk_bytes = 130048",
        ),
        ("packet.largest", f.PacketFacts(262144, None), "passed", "at or below 261632"),
        ("quota.unacked", changed(f.QuotaFacts, unacked=8), "limited", "8 updates a round trip"),
        ("quota.unacked", changed(f.QuotaFacts, rest=150), "failed", "drops"),
        ("quota.outgoing", changed(f.QuotaFacts, outgoing=10), "limited", "at most 9"),
        ("quota.outgoing", changed(f.QuotaFacts, outgoing=0), "failed", "PUBACK"),
        ("shared.once", f.SharedFacts("refused"), "limited", "one ingest process only"),
        ("shared.once", f.SharedFacts("", (0, 0), 0, f.SHARED), "limited", "one ingest process only"),
        ("shared.once", f.SharedFacts("", (200, 200), twice=200), "limited", "counts each once"),
        ("shared.spread", f.SharedFacts("", (200, 0)), "limited", "round_robin"),
        ("shared.dead", f.SharedFacts("", (90, 110), lost_with_member=10), "limited", "no update is lost"),
        ("shared.away", f.SharedFacts("", (90, 110), lost_with_away=10), "limited", "session_expiry_s = 0"),
        ("keepalive", f.KeepaliveFacts(2, None), "limited", "online"),
        ("keepalive", f.KeepaliveFacts(2, None, 30), "limited", "45 s"),
        ("access.nameless", f.AccessFacts(True), "limited", "identities"),
        ("access.own", changed(f.AccessFacts, own=False), "failed", "no update"),
        ("access.foreign", changed(f.AccessFacts, foreign=True), "limited", "another device's name"),
        ("access.broadcast", changed(f.AccessFacts, broadcast=True), "limited", "whole fleet"),
        ("tidy", f.TidyFacts(3), "limited", "by hand"),
        ("tidy", f.TidyFacts(3, "no connection"), "limited", "3 retained messages"),
    ],
)
def test_each_lack_has_a_consequence_in_words(name, facts, result, says) -> None:
    found = row(facts, name)
    assert found.result == result
    assert says in found.consequence


def test_one_client_of_a_group_without_messages_gives_no_rows_about_its_members() -> None:
    names = [one.check for one in findings(f.SharedFacts("refused"))]
    assert names == ["shared.once"]


def test_a_device_that_was_not_given_leaves_its_rows_open_and_the_broker_usable() -> None:
    rows = findings(f.AccessFacts(False))
    assert [one.result for one in rows] == ["passed", "untried", "untried", "untried"]
    assert exit_code(rows) == 0


def test_what_is_not_known_is_not_called_good() -> None:
    assert exit_code(untried([f.RetainedFacts], "not over in 5 s")) == 75
    assert exit_code(broken(f.RetainedFacts, "the connection ended")) == 65
    assert {one.result for one in broken(f.WillFacts, "the connection ended")} == {"limited"}
    assert exit_code(broken(f.WillFacts, "the connection ended")) == 0
