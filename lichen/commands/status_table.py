"""The state of a fleet as text and a table. Values from devices and coordinator are text, never markup."""

import time
from collections.abc import Iterator
from typing import Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator.fleet.requirements import REFUSES, noun_of
from coordinator.fleet.secret_mismatch import mismatch_warning
from protocol.messages import RoundAnnouncement
from runtime.fleet_view import DeviceView, FleetView
from runtime.waits import span

CoordinatorState = Literal["connected", "offline", "stopped", "unknown"]
_CLOCKS_S: Final = 60.0
"""A larger difference between clocks is shown."""
_GONE: Final = {
    "offline": "THE COORDINATOR IS NOT CONNECTED: no round proceeds until it is back; this is older",
    "stopped": "THE COORDINATOR WAS STOPPED before the last round was over; this is its last report",
    "unknown": "no coordinator has been seen: the broker has no announcement of one",
}


def coordinator_state(view: FleetView) -> CoordinatorState:
    """The coordinator's state from its last announcement or its will."""
    if view.round is None:
        return "unknown"
    if view.round.phase == "offline":
        return "offline"
    return "stopped" if view.round.phase == "stopped" else "connected"


def show(view: FleetView, console: Console, *, why: bool, listened_s: float = 0.0) -> None:
    """Print the state, first that the coordinator is missing, if it is."""
    state = coordinator_state(view)
    if state != "connected":
        _say(console, f"fleet {view.fleet}: {_GONE[state]}", "bold red")
    elif view.round is not None and not view.heard and 0 < view.round.every_s < listened_s:
        # a broker that lost the will still retains the last announcement
        words = f"the coordinator sent nothing in {listened_s:g} s, but should every {view.round.every_s:g} s"
        _say(console, words, "bold red")
    if view.round is not None:
        _round(view.round, console, why=why, heard=view.heard)
    if view.model is not None:
        size = view.model.bundle.size
        _say(console, f"deployed: version {view.model.version}, a bundle of {size:,} bytes")
    if words := mismatch_warning(secrets(view)):
        _say(console, f"warning: {words}", "yellow")
    if not view.devices:
        _say(console, "no device has been seen")
        return
    counted = "windows" if view.task is None else noun_of(view.task)
    table = Table("device", "status", counted, "modalities: share present, quality", "this round")
    for name, device in sorted(view.devices.items()):
        table.add_row(*(Text(cell) for cell in _row(view, name, device)))
    console.print(table)
    if why:
        for line in _without_model(view):
            _say(console, line)


def _without_model(view: FleetView) -> Iterator[str]:
    """Why devices that should infer run no model."""
    announced = "no model is announced to the whole fleet yet"
    if view.model is not None:
        announced = (
            f"it does not say why (version {view.model.version} is announced); see its lichen agent status"
        )
    for name, device in sorted(view.devices.items()):
        if device.status == "online" and device.no_model is not None:
            yield f"{name} runs no model: {device.no_model or announced}"


def secrets(view: FleetView) -> dict[str, str]:
    """Secret fingerprints of the devices that are online."""
    return {
        name: device.fleet_secret
        for name, device in view.devices.items()
        if device.status == "online" and device.fleet_secret is not None
    }


def _round(now: RoundAnnouncement, console: Console, *, why: bool, heard: bool) -> None:
    phase = "" if now.phase in _GONE else f", {now.phase}"
    _say(
        console,
        f"task {now.task}: round {now.round} of {now.rounds}{phase}; version {now.version}; "
        f"{now.bytes_up:,} bytes up, {now.bytes_down:,} down",
    )
    if why:
        _say(console, f"waits for: {now.waiting_for or 'nothing'}")
        if now.phase not in _GONE:
            left = "with no time limit" if now.until_s is None else f"for {span(now.until_s)} more at most"
            often = f"; it reports at least every {span(now.every_s)}" if now.every_s else ""
            _say(console, f"           reported {_age(now, heard=heard)}, {left}{often}")
            if words := _clocks(now, heard=heard):
                _say(console, words, "yellow")


def _age(now: RoundAnnouncement, *, heard: bool) -> str:
    """Age of the announcement; of a retained one by two clocks, which may differ."""
    if heard:
        return "just now"
    return "at an unknown time" if now.said_wall is None else f"{span(time.time() - now.said_wall)} ago"


def _clocks(now: RoundAnnouncement, *, heard: bool) -> str:
    """A message if the coordinator's clock differs; a retained announcement may only be old."""
    off_s = 0.0 if now.said_wall is None else time.time() - now.said_wall
    if off_s < -_CLOCKS_S or (heard and off_s > _CLOCKS_S):
        which = "ahead of" if off_s > 0 else "behind"
        return f"           this clock is {span(abs(off_s))} {which} the coordinator's"
    return ""


def _row(view: FleetView, name: str, device: DeviceView) -> tuple[str, ...]:
    words = ", ".join(
        f"{m} {1 - s.missing:.2f}, {'-' if s.quality is None else f'{s.quality:.2f}'}"
        + (f" ({'; '.join(s.reasons)})" if s.reasons else "")
        for m, s in device.modalities.items()
    )
    windows = "-" if device.windows is None else str(device.windows)
    if device.refuses is not None:  # other values may belong to the task before
        windows, words = "-", f"{REFUSES}: {device.refuses}"
    return name, device.status, windows, words or "-", _part(view, name)


def _part(view: FleetView, name: str) -> str:
    """The device's part in the open round, as far as it is retained."""
    if view.round is None:
        return "-"
    if name in view.delivered():
        return "delivered"
    return "asked" if name in view.round.selected else "-"


def _say(console: Console, words: str, style: str = "") -> None:
    console.print(Text(words, style=style), highlight=False, soft_wrap=True)
