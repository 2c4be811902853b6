"""Who is not heard, and how often that is said."""

from coordinator.admission.access import TELL_EVERY_S, AccessControl
from protocol.errors import Reason, Refused
from tests.support.clock import ManualClock

REVOKED = Refused(Reason.NOT_SELECTED, "revoked")
QUARANTINED = Refused(Reason.QUARANTINED, "in quarantine")


def test_the_first_reason_counts() -> None:
    guard = AccessControl(
        ManualClock(), [{"both": REVOKED}.get, {"bad": QUARANTINED, "both": QUARANTINED}.get]
    )
    assert guard.denial("both") is REVOKED
    assert guard.denial("bad") is QUARANTINED
    assert guard.denial("good") is None


async def test_a_device_that_is_not_heard_is_told_so_now_and_then() -> None:
    clock = ManualClock(5.0)
    guard = AccessControl(clock, [])
    assert guard.may_reply("a")
    assert not guard.may_reply("a")
    assert guard.may_reply("b"), "each by itself"
    assert guard.turned_away == 1
    await clock.advance(TELL_EVERY_S - 0.1)
    assert not guard.may_reply("a")
    await clock.advance(0.1)
    assert guard.may_reply("a")
    assert guard.turned_away == 2


def test_names_without_end_take_no_memory_without_end(monkeypatch) -> None:
    monkeypatch.setattr("coordinator.admission.access._MAX_TOLD", 3)
    guard = AccessControl(ManualClock(), [])
    for name in "abc":
        assert guard.may_reply(name)
    assert guard.may_reply("d")
    assert guard.may_reply("a"), "who was told is forgotten, and may be told once more"
    assert not guard.may_reply("d")
