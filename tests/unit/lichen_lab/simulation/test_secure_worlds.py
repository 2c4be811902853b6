"""Worlds of the tables of secure rounds: they pass, a seed repeats itself, and planted faults are noticed."""

import re
from collections import Counter
from collections.abc import Callable

import pytest

from lichen_lab.simulation.secure_rounds.worlds import run_tables
from tests.support.secure.mutations import both_shares, keys_of_the_first_attempt, no_own_mask

MUTATIONS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    keys_of_the_first_attempt: "a mask is reused",
    both_shares: "has told both shares of",
    no_own_mask: "does not have the agreed masks",
}


def test_secure_worlds_keep_all_promises_and_come_to_every_end() -> None:
    found: Counter[str] = Counter()
    for seed in range(24):
        outcome = run_tables(seed)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        found += outcome.faults
    assert min(found[name] for name in ("sum opened", "sum stayed closed", "kill of the coordinator")) > 0
    assert found["forged or repeated by a device"]


def test_secure_worlds_repeat_themselves() -> None:
    lines: list[str] = []
    assert run_tables(11, trace=lines.append).mark == run_tables(11).mark != run_tables(12).mark
    assert "KeysAnnounced" in lines[0]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda patch: patch.__name__)
def test_secure_worlds_notice_a_planted_fault(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    found = next((words for seed in range(24) if (words := run_tables(seed).violation)), "")
    assert re.search(MUTATIONS[mutate], found)
