"""Refusals of accepted updates are sent until their devices confirm them, whatever the clock is set to."""

from typing import Any

import pytest

from coordinator.messaging.withdrawals import Withdrawals
from coordinator.storage.update_journal import WITHDRAWN_S
from protocol.messages import State

ROW = {"digest": "ab" * 32, "round": 1, "wall": 1000.0, "reason": "wrong_round", "detail": "no update counts"}


class Journal:
    def __init__(self) -> None:
        self.rows = [ROW]

    def has_unconfirmed(self, _device: str) -> bool:
        return bool(self.rows)

    def withdrawn(self, _device: str) -> list[dict[str, Any]]:
        return list(self.rows)

    def confirmed(self, _device: str, digests: list[str]) -> None:
        self.rows = [row for row in self.rows if row["digest"] not in digests]


class Sent:
    def __init__(self) -> None:
        self.digests: list[str] = []

    def enqueue(self, _device: str, _kind: Any, receipt: Any) -> None:
        self.digests.append(receipt.digest)


class SetClock:
    """Stands at two times, which the test sets."""

    at, wall_s = 0.0, 1000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.wall_s


@pytest.fixture
def parts() -> tuple[Withdrawals, Journal, Sent, SetClock]:
    journal, sent, clock = Journal(), Sent(), SetClock()
    return Withdrawals(journal, sent, "t", clock), journal, sent, clock  # type: ignore[arg-type]


def state(*confirmed: str) -> State:
    return State(device="d", status="online", withdrawn=confirmed or None)


async def test_a_clock_that_is_set_forward_forgets_no_refusal_that_was_hardly_sent(parts) -> None:
    withdrawals, journal, sent, clock = parts
    clock.wall_s += 10 * WITHDRAWN_S
    for clock.at in (0.0, 30.0, 60.0):
        await withdrawals.heard(state())
    assert sent.digests == [ROW["digest"]] * 3
    await withdrawals.heard(state(ROW["digest"]))
    assert journal.rows == []


async def test_an_old_refusal_is_forgotten_after_it_was_sent_for_a_while(parts) -> None:
    withdrawals, journal, sent, clock = parts
    clock.wall_s += 2 * WITHDRAWN_S
    await withdrawals.heard(state())
    clock.at = 599.0
    await withdrawals.heard(state())
    assert journal.rows
    clock.at = 601.0
    await withdrawals.heard(state())
    assert journal.rows == []
    assert len(sent.digests) == 2


async def test_a_new_refusal_is_sent_for_as_long_as_it_takes(parts) -> None:
    withdrawals, journal, sent, clock = parts
    for clock.at in range(0, 7200, 60):
        await withdrawals.heard(state())
    assert journal.rows
    assert len(sent.digests) == 120
