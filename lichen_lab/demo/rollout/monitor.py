"""Records the watches' trial reports, and reads their predictions."""

from collections.abc import Callable, Iterable
from typing import Any

from lichen_lab.demo.rollout.results import Move, WatchPrediction
from protocol import messages
from protocol.errors import Refused
from protocol.messages import State
from protocol.topics import Kind, parse

_SHORT = 4


class Recorder:
    """Records trial phases from ``up/state``: each once, with its last figures.

    A repeated pointer to a model that a device keeps is no move.

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
        """Messages dropped for lack of room."""

    def filters(self) -> tuple[tuple[str, int], ...]:
        """Topic filters and their QoS."""
        return ((f"lichen/v1/{self._fleet}/d/+/{Kind.STATE.value}", 0),)

    def apply(self, topic: str, payload: bytes) -> None:
        """Take one message; ignore topics that are not lichen's."""
        try:
            route = parse(topic)
            if route.kind is not Kind.STATE or route.device not in self._names:
                return
            state = messages.decode(payload, State)
        except Refused:
            return
        self._take(state)

    def _take(self, state: State) -> None:
        trial = state.trial
        if trial is None:
            return
        key = (trial.bundle, trial.phase)
        measures = {name: round(value, _SHORT) for name, value in sorted(trial.measures.items())}
        if self._last.get(state.device) == key:
            mine = [move for move in self.moves if move.device == state.device]
            mine[-1].measures, mine[-1].why = measures, trial.why
            return
        self._last[state.device] = key
        move = Move(round(self._now(), 2), state.device, trial.phase, trial.version, trial.why, measures)
        self.moves.append(move)
        self._tell(move)


def predictions_of(rows: Iterable[dict[str, Any]], start_wall: float) -> list[WatchPrediction]:
    """Predictions of one watch, in seconds of the demo.

    Args:
        rows: of one watch.
        start_wall: the demo's second 0, Unix seconds.
    """
    return [
        WatchPrediction(
            at=round(float(row["wall"]) - start_wall, 2),
            version=int(row["version"]),
            right=None if row["truth"] is None else row["label"] == row["truth"],
        )
        for row in rows
    ]


def last_turn(rows: list[dict[str, Any]], version: int, period_s: float) -> list[dict[str, Any]] | None:
    """The last whole turn of a recording that a version predicted, in the recording's order.

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
