"""The steps of a round at which the matrix does its harm: how to get there, and what holds it there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from protocol.topics import Kind

if TYPE_CHECKING:
    from lichen_lab.benchmarks.fault_injection.matrix import Matrix

_TRICKLE_BYTES_S: Final = 4000.0
"""So slow that a model, or an update, is on its way for seconds."""


def _nothing(_matrix: "Matrix", _round: int) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Step:
    """One column.

    Attributes:
        name: for the table.
        held: the gates that are held in its round; ``{round}``, ``{target}`` and ``{other}`` are filled in.
        there: whether the step is reached.
        before: called before its round opens.
        near: called when its gates hold somebody, for a step that has no gate of its own; lifts those.
    """

    name: str
    held: tuple[str, ...]
    there: Callable[["Matrix", int], bool]
    before: Callable[["Matrix", int], None] = _nothing
    near: Callable[["Matrix", int], None] | None = None


def _at(name: str) -> Callable[["Matrix", int], bool]:
    return lambda matrix, round_: matrix.gates.reached(matrix.gate(name, round_))


def _slow_down(matrix: "Matrix", _round: int) -> None:
    matrix.proxies[matrix.target].throttle(_TRICKLE_BYTES_S, "down")


def _slow_up(matrix: "Matrix", round_: int) -> None:
    matrix.proxies[matrix.target].throttle(_TRICKLE_BYTES_S, "up")
    matrix.gates.release(matrix.gate("train-{round}-{target}", round_))


def _idle(matrix: "Matrix", _round: int) -> bool:
    now, known = matrix.witness.view.round, matrix.witness.view.devices.get(matrix.target)
    waiting = now is not None and now.phase == "waiting_for_devices" and now.version == 0
    return waiting and known is not None and known.status == "online"


def _fetching(matrix: "Matrix", _round: int) -> bool:
    return matrix.seen(Kind.DOWN_BLOB) > 0


def _uploading(matrix: "Matrix", _round: int) -> bool:
    return matrix.seen(Kind.UP_BLOB) > 0


def _one_accepted(matrix: "Matrix", round_: int) -> bool:
    now = matrix.witness.view.round
    reached = _at("train-{round}-{other}")(matrix, round_)
    return reached and now is not None and now.round == round_ and now.accepted == (matrix.target,)


STEPS: Final = (
    Step("idle", (), _idle),
    Step("fetching the model", (), _fetching, before=_slow_down),
    Step("training", ("train-{round}-{target}",), _at("train-{round}-{target}")),
    Step("uploading chunks", ("train-{round}-{target}",), _uploading, near=_slow_up),
    Step("waiting for the receipt", ("check-{round}-{target}",), _at("check-{round}-{target}")),
    Step("collecting", ("train-{round}-{other}",), _one_accepted),
    Step("aggregating", ("aggregate-{round}",), _at("aggregate-{round}")),
    Step("evaluating", ("evaluate-{round}",), _at("evaluate-{round}")),
    Step("exporting", ("export-{round}",), _at("export-{round}")),
)
"""In this order: step n is harmed in round n."""
