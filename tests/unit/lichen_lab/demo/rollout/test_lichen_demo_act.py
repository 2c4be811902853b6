"""The last act's course with commands that answer from a list: what is asked, and what is told of it."""

from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lichen_lab.demo.core import scenario
from lichen_lab.demo.rollout import devices
from lichen_lab.demo.rollout import steps as module
from lichen_lab.demo.rollout.results import DemoRelease, Move, RolloutResults, Watcher
from lichen_lab.demo.rollout.steps import RolloutAct
from protocol.errors import Transient


class Waiting:
    """A fleet's part that the act needs; nothing is waited for in vain."""

    def __init__(self, root: Path) -> None:
        self.said: list[str] = []
        self.layout = scenario.Layout(root, 1)
        self.options = scenario.Options(out=root, rounds=4)
        self.screen = SimpleNamespace(seconds=12.0, say=self.said.append)
        self.view = SimpleNamespace(fleet="demo", devices={})

    async def wait(self, what: str, done: Any, timeout_s: float) -> None:
        del timeout_s
        for _ in range(5):
            found = done()
            if await found if isinstance(found, Awaitable) else found:
                return
        raise Transient(f"waited for {what}")


def status(phase: str, why: str = "") -> dict[str, Any]:
    return {
        "rollout": {"phase": phase, "why": why, "version": 5},
        "waits": [{"why": "it waits for physcia"}] if phase == "open" else [],
    }


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RolloutAct:
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    results = RolloutResults([Watcher("physcia", 7, "lab"), Watcher("ramalina", 10, "clinic")], "physcia", 2)
    made = RolloutAct(Waiting(tmp_path), results)  # type: ignore[arg-type]
    results.moves = made.recorder.moves
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Every command, while ``answers`` last."""
    found: list[tuple[str, ...]] = []

    async def ask(*words: str) -> Any:
        found.append(words)
        return asked_for.pop(0) if words[:2] == ("rollout", "status") else {}

    monkeypatch.setattr(module, "ask", ask)
    return found


asked_for: list[dict[str, Any]] = []


def release() -> DemoRelease:
    return DemoRelease(5, "shuffled", "lichen rollout create", 10.0)


async def test_a_rollout_is_followed_to_its_end(act: RolloutAct, asked: list[tuple[str, ...]]) -> None:
    asked_for[:] = [status("open"), status("failed", "physcia rolled back")]
    act.recorder.moves.append(Move(11.0, "physcia", "rolled_back", 5))
    one = release()
    await act._over(one, "failed")
    assert (one.phase, one.why, one.ended) == ("failed", "physcia rolled back", 12.0)
    assert act.words == "the rollout of version 5 is failed"
    assert [words[:2] for words in asked] == [("rollout", "status")] * 2


async def test_the_export_of_the_bad_version_has_the_demos_own_time(
    act: RolloutAct, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    async def ask(*words: str, patience_s: float) -> Any:
        assert words[0] == "export"
        given.append(patience_s)
        return {"size": 9}

    async def history(_: Any) -> Any:
        return {"versions": [{"version": 4, "manifest": "m"}]}

    monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(module, "history", history)
    monkeypatch.setattr(module, "spoil", lambda *_: (Path("m"), Path("blobs"), 5))
    assert (await act._bad_bundle())[1] == 5
    assert given == [act._fleet.options.timeout_s]


async def test_one_that_never_ends_is_told_with_what_it_waits_for(
    act: RolloutAct, asked: list[tuple[str, ...]]
) -> None:
    asked_for[:] = [status("open")] * 5
    with pytest.raises(Transient, match="it waits for physcia"):
        await act._over(release(), "failed")
    assert len(asked) == 5


async def test_one_that_is_paused_is_aborted_so_that_the_next_can_begin(
    act: RolloutAct, asked: list[tuple[str, ...]]
) -> None:
    asked_for[:] = [status("paused", "nobody came")]
    one = release()
    await act._over(one, "complete")
    assert (one.phase, one.why) == ("paused", "nobody came")
    assert asked[-1][:2] == ("rollout", "abort")


async def test_the_command_that_is_shown_is_the_one_that_ran(
    act: RolloutAct, asked: list[tuple[str, ...]]
) -> None:
    one = await act._release(4, "all rounds", devices.PLAN, "--version", "4")
    assert one.began == 12.0
    assert one.command.startswith("lichen rollout create --config config/coordinator.toml --version 4 ")
    assert asked[0][-1] == one.command.split()[-1]
    assert act._fleet.said == [one.command]  # type: ignore[attr-defined]
