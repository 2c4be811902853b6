"""Two tasks of a device together stay within its budgets on the disk, and share one account of privacy."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edge_agent.config.agent import AgentSettings, LearnSettings
from edge_agent.storage.agent_storage import open_storage
from edge_agent.storage.privacy_account import PrivacyAccount
from edge_agent.windows.rows import whole_bytes
from edge_agent.windows.store import WindowStore
from edge_agent.windows.store_file import values_within
from models.contract import LocalResult
from models.data.window_set import select
from protocol.errors import Misconfigured
from runtime.clock import SystemClock
from tests.support.agent.data import toy_task
from tests.unit.edge_agent.windows.test_agent_store import windows

BUDGET = 6_000_000


def device(folder: Path, **tables: object) -> AgentSettings:
    fields = {"state_dir": folder / "state", "cache_dir": folder / "cache", **tables}
    made = AgentSettings.model_validate(
        {"fleet": "f", "device": "d", "tasks": ({"name": "b"},), "store": {"budget_bytes": BUDGET}, **fields}
    )
    made.for_task("b").state_dir.mkdir(parents=True)
    return made


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("windows-*") if file.is_file())


def test_the_windows_of_two_tasks_stay_within_the_budget_of_the_device(tmp_path) -> None:
    task, whole = toy_task(), device(tmp_path)
    stores = []
    for name in (None, "b"):
        settings = whole.for_task(name)
        share = values_within(settings.store.budget_bytes, whole_bytes(task))
        stores.append(WindowStore(settings.state_dir / "store", task, share))
    given, most = windows([0, 1, 2] * 100), 0
    for _ in range(6):
        for store in stores:
            store.add(select(given, np.arange(300)))
            store.commit()
            most = max(most, used(whole.state_dir))
    assert 0.5 * BUDGET < most <= BUDGET
    for store in stores:
        store.close()


def test_updates_of_both_tasks_are_charged_to_one_account(tmp_path) -> None:
    whole, clock = device(tmp_path), SystemClock()
    first = open_storage(whole.for_task(None), clock)
    second = open_storage(whole.for_task("b"), clock, privacy=first.privacy)
    with closing(first), closing(second):
        loud = toy_task(name="loud")
        _, account = first.privacy.charge(loud, LocalResult({}, metrics={}, private={}))
        assert account is not None
        with first.saving("loud", {}, account):
            pass
        assert second.privacy.words == first.privacy.words is not None
        assert not (whole.for_task("b").state_dir / "privacy.json").exists()
    strict = PrivacyAccount(whole.state_dir / "privacy.json", LearnSettings(max_epsilon=3.0))
    with pytest.raises(Misconfigured, match="updates of loud were sent without noise"):
        strict.with_account(toy_task(name="b"), {})


def test_two_tasks_have_folders_and_locks_of_their_own(tmp_path) -> None:
    whole, clock = device(tmp_path), SystemClock()
    with (
        closing(open_storage(whole.for_task(None), clock)),
        closing(open_storage(whole.for_task("b"), clock)),
    ):
        with pytest.raises(Misconfigured, match="another agent"):
            open_storage(whole.for_task("b"), clock)
        assert (tmp_path / "state" / "tasks" / "b" / "spool.sqlite3").is_file()
