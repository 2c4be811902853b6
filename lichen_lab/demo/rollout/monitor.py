"""What the watches say of the models that they were pointed to, and of what each of them predicts."""

from collections.abc import Callable, Iterable
from typing import Any

from lichen_lab.demo.rollout.results import Move, Said
from protocol import messages
from protocol.errors import Refused
from protocol.messages import State
from protocol.topics import Kind, parse

_SHORT = 4


class Recorder:
    """Listens to ``up/state``; a move is kept once, with the last figures that were said of it.

    A model that a device keeps, and is pointed to once more, is no move.

    Args:
        fleet: whose.
        names: of these devices.
        now: seconds of the demo.
        tell: is given each move at once.
    """

    def __init__(
        self, fleet: str, names: Iterable[str], now: Callable[[], float], tell: Callable[[Move], None]
    ) -> None:
        self._fleet = fleet
        self._names = frozenset(names)
        self._now = now
        self._tell = tell
        self._last: dict[str, tuple[str, str]] = {}
        self.moves: list[Move] = []
        self.missed = 0
        """Messages that there was no room for."""

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS."""
        return ((f"lichen/v1/{self._fleet}/d/+/{Kind.STATE.value}", 0),)

    def apply(self, topic: str, payload: bytes) -> None:
        """Take one message; what is not lichen's is passed over."""
        try:
            route = parse(topic)
            if route.kind is not Kind.STATE or route.device not in self._names:
                return
            state = messages.decode(payload, State)
        except Refused:
            return
        self._take(state)

    def _take(self, state: State) -> None:
        told = state.trial
        if told is None:
            return
        key = (told.bundle, told.phase)
        measures = {name: round(value, _SHORT) for name, value in sorted(told.measures.items())}
        if self._last.get(state.device) == key:
            mine = [move for move in self.moves if move.device == state.device]
            mine[-1].measures, mine[-1].why = measures, told.why
            return
        self._last[state.device] = key
        move = Move(round(self._now(), 2), state.device, told.phase, told.version, told.why, measures)
        self.moves.append(move)
        self._tell(move)


def said(rows: Iterable[dict[str, Any]], start_wall: float) -> list[Said]:
    """Lines as they count here.

    Args:
        rows: of one watch.
        start_wall: the demo's second 0, unix seconds.
    """
    return [
        Said(
            at=round(float(row["wall"]) - start_wall, 2),
            version=int(row["version"]),
            right=None if row["truth"] is None else row["label"] == row["truth"],
        )
        for row in rows
    ]


def turn(rows: list[dict[str, Any]], version: int, period_s: float) -> list[dict[str, Any]] | None:
    """One whole turn of a recording as a version predicted it: the last one, put in the recording's order.

    Args:
        rows: of one watch, in order.
        version: the others' lines are left out.
        period_s: from one beginning of the recording to the next, in its seconds.

    Returns:
        Lines whose ``t`` counts from the beginning of the recording; None while there is no whole turn.
    """
    mine = [row for row in rows if row["version"] == version]
    if not mine or mine[-1]["t"] - mine[0]["t"] < period_s:
        return None
    last = [row for row in mine if row["t"] > mine[-1]["t"] - period_s]
    return sorted(({**row, "t": row["t"] % period_s} for row in last), key=lambda row: float(row["t"]))
