"""The sentence on what the coordinator waits for, since when, until when (docs/reliability.md).

One line, at most ``_MAX_SENTENCE`` characters: each part has its own limit, so that none crowds out another.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final

from coordinator.round_machine.closing import closes_at, needed
from coordinator.round_machine.events import RoundPhase, RoundState, Rules
from runtime.metrics import MetricFamily, gauge
from runtime.text import one_line

MAX_NAMES: Final = 8
"""Devices named in one list of the sentence."""
_MAX_SENTENCE: Final = 1000
_MAX_PART: Final = 250


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """Status of fleet and broker.

    ``able``: devices that a round could select now; empty while one is open. ``lacks``: others, and what each
    lacks (``MAX_NAMES`` are enough). ``known``: registered devices. ``broker``: why there is no connection to
    it; empty if there is one. ``heard``: of devices that are awaited, when they were last heard: a will that
    the broker lost leaves a dead device ``online``. ``disk``: why the last event could not be written; empty
    if it could. ``hold``: why operators let no round be opened; empty if they do.
    """

    able: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)
    known: int = 0
    broker: str = ""
    heard: Mapping[str, str] = field(default_factory=dict)
    disk: str = ""
    hold: str = ""


def explain_phase(rules: Rules, state: RoundState, now: float, seen: FleetStatus) -> str:
    """What the phase waits for, without failures, broker and times."""
    return _WHY[state.phase](rules, state, now, seen)


def explain(rules: Rules, state: RoundState, now: float, seen: FleetStatus) -> str:
    """What the coordinator waits for, since when and until when, in one sentence."""
    broker = f"not connected to the broker ({_part(seen.broker)}); " if seen.broker else ""
    since = f"for {max(0.0, now - state.since):.0f} s"
    trouble = f"; last trouble: {_part(state.trouble)}" if state.trouble else ""
    retry = "" if state.retry_at is None else f"; next try in {max(0.0, state.retry_at - now):.0f} s"
    disk = f"nothing can be written ({_part(seen.disk)}); " if seen.disk else ""
    return f"{disk}{broker}{explain_phase(rules, state, now, seen)} ({since}){retry}{trouble}"[:_MAX_SENTENCE]


def _part(text: str) -> str:
    return one_line(text, _MAX_PART)


def _names(devices: Iterable[str], count: int, lacks: Mapping[str, str]) -> str:
    """Some of ``count`` devices, as far as there is room, and what each lacks, if anything."""
    named: list[str] = []
    for device in islice(devices, MAX_NAMES):
        forms = (_named(device, lacks.get(device, "")), device)
        fit = [one for one in forms if not named or len(", ".join([*named, one])) <= _MAX_PART]
        if not fit:
            break
        named.append(fit[0])
    more = count - len(named)
    return _part(", ".join(named)) + (f" and {more} more" if more > 0 else "")


def _named(device: str, lack: str) -> str:
    if not lack:
        return device
    return f"{device} {lack}" if lack.startswith("was ") else f"{device} ({lack})"


def lacking(seen: FleetStatus, device: str) -> str:
    """What an awaited device lacks, else that it is online; and when it was last heard."""
    lack, heard = seen.lacks.get(device, ""), seen.heard.get(device, "")
    if lack.startswith("was "):
        return lack
    return f"{lack or 'online'}, {heard}" if heard else lack


def _why_waiting(rules: Rules, state: RoundState, now: float, seen: FleetStatus) -> str:
    here = seen.able | frozenset(state.delivered.unsorted())
    few, where = max(1, rules.min_devices), f"round {state.round} attempt {state.attempt}"
    if seen.hold:
        return f"{where}: not opened: {_part(seen.hold)}"
    of = f"{len(here)} {'is' if len(here) == 1 else 'are'}"
    lacks = {device: lack for device, lack in seen.lacks.items() if device not in here}
    others = _names(sorted(lacks), max(len(lacks), seen.known - len(here)), lacks)
    named = _names(nsmallest(MAX_NAMES, here), len(here), {})
    present = (f": {named}" if here else "") + (f"; not {others}" if lacks else "")
    if state.enough_since is not None:
        left = max(0.0, state.enough_since + rules.spread_s - now)
        return f"{where}: enough devices are eligible, {of}{present}; selecting in {left:.0f} s"
    wanted = "1 device is" if few == 1 else f"{few} devices are"
    return f"{where}: waiting until {wanted} online with enough data, {of}{present}"


def _why_collecting(rules: Rules, state: RoundState, now: float, seen: FleetStatus) -> str:
    left = max(0.0, (closes_at(rules, state) or now) - now)
    away = ", all of them away" if state.away_since is not None and state.missing_count else ""
    first = state.first_missing(MAX_NAMES)
    names = _names(first, state.missing_count, {device: lacking(seen, device) for device in first})
    need = needed(rules, len(state.selected))
    return (
        f"round {state.round}: {len(state.delivered)} of {len(state.selected)} updates here, closes at {need}"
        f" or in {left:.0f} s; waiting for {names or 'nobody'}{away}"
    )


_WHY: Final[dict[RoundPhase, Callable[[Rules, RoundState, float, FleetStatus], str]]] = {
    RoundPhase.INITIALISING: lambda *_: "waiting for the worker to make the initial model",
    RoundPhase.WAITING: _why_waiting,
    RoundPhase.COLLECTING: _why_collecting,
    RoundPhase.AGGREGATING: lambda _, s, *__: (
        f"round {s.round}: folding {len(s.delivered)} updates (closed by {s.closed_by})"
    ),
    RoundPhase.EVALUATING: lambda _, s, *__: f"waiting for the worker to evaluate version {s.version}",
    RoundPhase.EXPORTING: lambda _, s, *__: f"waiting for the worker to export version {s.version}",
    RoundPhase.DONE: lambda _, s, *__: (
        f"{f'the rounds are over ({_part(s.ended)})' if s.ended else f'all {s.round} rounds are over'}; "
        f"version {s.version} is the last"
    ),
}


def round_metrics(state: RoundState) -> Iterable[MetricFamily]:
    """Where the round stands."""
    yield gauge("lichen_round", "The round that is open", state.round)
    yield gauge("lichen_version", "The newest version", state.version)
    phases = [((phase.value,), float(phase is state.phase)) for phase in RoundPhase]
    yield MetricFamily("lichen_phase", "1 for the present phase", "gauge", phases, ("phase",))
    yield gauge("lichen_selected", "Devices selected in this round", len(state.selected))
    yield gauge("lichen_delivered", "Devices that delivered in this round", len(state.delivered))
