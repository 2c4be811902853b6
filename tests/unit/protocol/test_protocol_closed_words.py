"""Words that a newer release added: each is left aside or has a fallback, and is no bad conduct."""

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.fleet.requirements import Requirements
from coordinator.rollout.device_record import DeviceReport, RolloutDevice
from coordinator.rollout.stage_gate import apply_report
from edge_agent.storage.round_ledger import RoundLedger
from protocol.errors import Reason, Refused
from protocol.frames.frame import digest
from protocol.messages import Command, Offer, Receipt, State, decode, encode
from protocol.rollout import TrialReport
from protocol.topics import Kind, broadcast_topic, device_topic, parse
from runtime.mqtt.link import Message
from tests.support.clock import ManualClock
from tests.support.coordinator.bench import bench
from tests.support.coordinator.fake import FLEET, tiny_task
from tests.unit.protocol.tasks.test_protocol_announcement import make

DIGEST = "a" * 64
STATE: dict[str, Any] = {"kind": "state", "status": "online", "device": "a"}


def said(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_kind_or_topic_of_a_newer_release_is_unknown_and_not_malformed() -> None:
    for refused in (
        lambda: decode(said(kind="greeting", words="hello"), State),
        lambda: parse("lichen/v1/f/d/a/down/greeting"),
        lambda: parse("lichen/v1/f/b/greeting"),
    ):
        with pytest.raises(Refused) as caught:
            refused()
        assert caught.value.reason is Reason.UNKNOWN_KIND
    for wrong in (lambda: decode(b'{"kind":7}', State), lambda: decode(b"{}", State)):
        with pytest.raises(Refused) as caught:
            wrong()
        assert caught.value.reason is Reason.MALFORMED


async def test_an_agent_leaves_new_kinds_and_commands_aside_and_counts_them(tmp_path) -> None:
    agent = make(tmp_path)
    with capture_logs() as logs:
        for kind, payload in (
            (Kind.CMD, encode(Command(command="dance"))),
            (Kind.CMD, said(kind="greeting")),
        ):
            await agent.dispatcher._take(Message(device_topic("f", "d", kind), payload, False))
        offers = broadcast_topic("f", Kind.OFFER)
        await agent.dispatcher._take(Message(offers, said(kind="greeting"), False))
        await agent.dispatcher._take(Message("lichen/v1/f/d/d/down/greeting", b"hello", False))
    assert agent.dispatcher.refused == {"unknown_kind": 4}
    assert {line["log_level"] for line in logs if line["event"] == "message_refused"} == {"debug"}
    agent.close()


async def test_a_receipt_with_a_new_reason_or_status_settles_the_outbox(tmp_path) -> None:
    agent = make(tmp_path)
    offer = Offer(task="toy", round=1, base=DIGEST, base_size=5, closes_in_s=9)
    for frame, status, reason in ((b"one", "refused", "too_weird"), (b"two", "postponed", "moon")):
        mark = digest(frame)
        agent.storage.spool.put(task="toy", round_=1, digest=mark, payload=frame, carry=None)
        agent.storage.ledger.record_spooled(offer, mark)
        sent = said(kind="receipt", task="toy", round=1, digest=mark, status=status, reason=reason)
        await agent.dispatcher._take(Message(device_topic("f", "d", Kind.RECEIPT), sent, False))
        assert agent.storage.spool.pending() == []
        assert reason in agent.outbox.last_refusal
    assert agent.outbox.refused == 2
    assert agent.dispatcher.refused == {}
    known = RoundLedger(agent.settings.state_dir / "rounds.json", ManualClock()).find(offer)
    assert (known.status, known.reason, known.is_final) == ("refused", "moon", False)
    agent.close()


async def test_what_a_newer_device_says_is_taken_and_is_never_bad_conduct(tmp_path) -> None:
    topic = device_topic(FLEET, "a", Kind.STATE)
    async with bench(tmp_path, tiny_task()) as made:
        trial = {"version": 1, "bundle": DIGEST, "phase": "wondering", "why": "so it is"}
        newer = STATE | {"roles": ["train", "dance"], "trial": trial, "windows": 5, "mood": "good"}
        await made.raw(topic, said(**newer))
        await made.raw(topic, said(**(STATE | {"status": "asleep"})))
        for number in range(20):  # one that changed what a known field may be; and a new kind, in its topics
            await made.raw(topic, said(**(STATE | {"windows": {"labelled": number}})))
            await made.raw(device_topic(FLEET, "a", Kind.UPDATE), said(kind="greeting", n=number))
            await made.raw(topic.replace("state", "greeting"), b"hello")
        device = made.app.roster.get("a")
        assert device.state.roles == ("train", "dance")
        assert (device.online, made.app.roster.missing_requirement("a", Requirements(1))) == (False, "asleep")
        assert made.app.quarantine.denial("a") is None
        assert made.app.receipts.refused == {"malformed": 20}
        assert made.refusals()[("a", "unknown_kind")] == 20


def test_a_new_phase_of_a_trial_decides_nothing() -> None:
    member = RolloutDevice(stage=0, serial=4)
    report = TrialReport(version=1, bundle=DIGEST, serial=4, phase="wondering", why="so it is")
    after = apply_report(member, DeviceReport(online=True, trial=report), (DIGEST,), 7.0)
    assert (after.phase, after.failed, after.why) == ("trial", False, "wondering: so it is")


def test_a_receipt_keeps_the_word_for_people() -> None:
    sent = said(kind="receipt", task="t", round=1, digest=DIGEST, status="refused", reason="too_weird")
    assert decode(sent, Receipt).reason == "too_weird"
    known = decode(sent.replace(b"too_weird", b"outlier"), Receipt)
    assert known.reason is Reason.OUTLIER
