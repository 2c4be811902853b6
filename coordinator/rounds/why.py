"""What the coordinator waits for, since when and until when: one sentence a phase (promise 7)."""

from collections.abc import Callable
from functools import partial
from typing import Final

from coordinator.rounds.states import Phase, RoundState, Rules
from coordinator.rounds.steps import needed

_NAMES: Final = 8
"""Devices named in the sentence."""


def why(rules: Rules, state: RoundState, now: float, able: int | None = None) -> str:
    """What the coordinator waits for, since when and until when, in one sentence."""
    since = f"for {max(0.0, now - state.since):.0f} s"
    saying = partial(_WHY[state.phase], rules, state, now, able)
    trouble = f"; last trouble: {state.trouble}" if state.trouble else ""
    retry = "" if state.retry_at is None else f"; next try in {max(0.0, state.retry_at - now):.0f} s"
    return f"{saying()} ({since}){retry}{trouble}"[:1000]


def _why_waiting(rules: Rules, state: RoundState, now: float, able: int | None) -> str:
    of = "" if able is None else f", {able} are"
    least, where = max(1, rules.min_devices), f"round {state.round} attempt {state.attempt}"
    if state.enough_since is not None:
        left = max(0.0, state.enough_since + rules.spread_s - now)
        return f"{where}: enough devices are able{of}; selecting in {left:.0f} s"
    return f"{where}: waiting until {least} devices are online with data enough{of}"


def _why_collecting(rules: Rules, state: RoundState, now: float, _: int | None) -> str:
    left = max(0.0, (state.until or now) - now)
    more = len(state.missing) - _NAMES
    names = ", ".join(state.missing[:_NAMES]) + (f" and {more} more" if more > 0 else "")
    need = needed(rules, len(state.selected))
    return (
        f"round {state.round}: {len(state.delivered)} of {len(state.selected)} updates here, closes at {need}"
        f" or in {left:.0f} s; waiting for {names or 'nobody'}"
    )


_WHY: Final[dict[Phase, Callable[[Rules, RoundState, float, int | None], str]]] = {
    Phase.INITIALISING: lambda *_: "waiting for the worker to make the initial model",
    Phase.WAITING: _why_waiting,
    Phase.COLLECTING: _why_collecting,
    Phase.AGGREGATING: lambda _, s, *__: (
        f"round {s.round}: folding {len(s.delivered)} updates (closed by {s.closed_by})"
    ),
    Phase.EVALUATING: lambda _, s, *__: f"waiting for the worker to judge version {s.version}",
    Phase.EXPORTING: lambda _, s, *__: f"waiting for the worker to export version {s.version}",
    Phase.DONE: lambda _, s, *__: f"all {s.round} rounds are over; version {s.version} is the last",
}
