"""A round's fold through masked vectors, by the machines of both daemons."""

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.secure_aggregation.events import SecurePhase
from lichen_lab.simulation.secure_rounds.driver import play
from lichen_lab.simulation.secure_rounds.fleet import fleet_of
from models.aggregation.masked_sums import absorb_vector, layout_of, vector_of
from models.contract import Blobs, Update
from models.spec import MethodSpec
from protocol.frames.fixed_point import rounded
from protocol.tasks.folding import SecureAggregation
from protocol.tasks.task import Task
from tests.support.methods.contract_cases import as_bytes

WIDE = SecureAggregation(
    ring_bits=48,
    fraction_bits=12,
    bound=128,
    weights="samples",
    max_weight=64,
    min_devices=3,
    identities="none",
)


def on_grid(update: Update, options: SecureAggregation = WIDE) -> Update:
    """As a device of a secure round rounds and weighs it."""
    tensors = {name: rounded(x, options.fraction_bits, options.level) for name, x in update.tensors.items()}
    weight = min(update.header.weight, options.heaviest)
    return Update(update.header.model_copy(update={"weight": weight}), tensors)


def masked_fold(  # noqa: PLR0917 - as the contract suite has them
    spec: MethodSpec[Any],
    task: Task,
    state: Blobs,
    updates: Sequence[Update],
    lost: Mapping[str, Sequence[str]],
    options: SecureAggregation = WIDE,
) -> dict[str, bytes]:
    """The next state of the survivors' updates, which are on the grid."""
    server = spec.server()
    layout, vectors = layout_of(server.open(task, 1, state)), {}
    for update in updates:
        fold = server.open(task, 1, state)
        fold.fold(update)
        vectors[update.header.device] = vector_of(fold, layout, options)
    coordinator, devices = fleet_of(vectors, options)
    play(coordinator, devices, lost)
    assert coordinator.state.phase is SecurePhase.DONE, coordinator.state.why
    assert coordinator.total_N is not None
    closed = server.open(task, 1, state)
    absorb_vector(closed, layout, options, coordinator.total_N, len(coordinator.state.survivors))
    return as_bytes(closed.close())
