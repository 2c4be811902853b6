"""The coordinator half of MMFeD3-HidE: rows folded by existence, projections by triples. NumPy only.

It learns no name, relation or feature: rows are identified by keyed hashes.
"""

from collections.abc import Iterable
from typing import Final

from models.aggregation.exact_sums import FixedPointSum
from models.aggregation.partial_results import PartwiseFold
from models.contract import Blobs, Profile, Tensors, Update
from models.header_checks import check_counts
from models.methods.mmfed3_hide import METHOD, config_of
from models.methods.mmfed3_hide.fold import MOST_DEVICES, RowsFold, devices_of
from models.methods.mmfed3_hide.messages import (
    DELTA,
    GONE,
    MOST_WEIGHT,
    NEW,
    PROJECTION,
    SENT,
    Sent,
    base_keys,
    projection_blob,
)
from models.partials import FoldParts
from models.tensors import apply, check_names, check_tensor, flatten, shapes, unflatten
from protocol.errors import Misconfigured, Reason, Refused
from protocol.tasks.options import KnowledgeGraphTask
from protocol.tasks.task import Task

_ROWS: Final = {SENT, DELTA, NEW, GONE}
_HEAD: Final = 2
"""Of a projection's name, the words that say whose it is."""


def graph_of(task: Task) -> KnowledgeGraphTask:
    """The task's part on knowledge graphs.

    Raises:
        Misconfigured: it has none.
    """
    if task.graph is None:
        raise Misconfigured(f"task {task.name!r}: method {METHOD.name!r} wants a table [graph]")
    return task.graph


def projections(state: Blobs) -> Tensors:
    """The tensors of a state that are averaged."""
    return flatten({blob: t for blob, t in state.items() if blob.split("/", 1)[0] == PROJECTION})


class MmFed3Server:
    """See :class:`models.contract.Server`."""

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """Projections of the device's modalities; its own rows come on top (``METHOD.owned``)."""
        own = set(profile.modalities)
        return tuple(projection_blob(name) for name in task.modality_names if name in own)

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """None: there is no such role."""
        del task, modalities
        return ()

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Compare an update with the model; see :class:`models.contract.Server`.

        Raises:
            Refused: the detail names the tensor, or the field of the header. FULL: the state has rows of as
                many devices as it may.
        """
        header, config, graph = update.header, config_of(task), graph_of(task)
        if header.weight != min(header.samples, MOST_WEIGHT) or header.samples > graph.max_triples:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"header.weight is {header.weight} of {header.samples} triples; it is their number, at most "
                f"{MOST_WEIGHT}, and triples are at most {graph.max_triples} (graph.max_triples)",
            )
        if header.extra:
            raise Refused(Reason.MALFORMED, f"extra.{min(header.extra)}: the method has no such message")
        check_counts(task, header)
        devices = devices_of(state)
        if header.device not in devices and len(devices) >= MOST_DEVICES:
            raise Refused(
                Reason.FULL, f"the model has rows of {len(devices)} devices, which is as many as it takes"
            )
        _check_projections(state, update, config.max_delta)
        base = base_keys(state, header.device)
        sent = Sent.read(update.tensors, base, config.dim, graph.max_entities)
        check_tensor(DELTA, sent.delta_mD, sent.delta_mD.shape, config.max_delta)

    def open(self, task: Task, round_: int, state: Blobs) -> "MmFed3Fold":
        """Begin a round on this state; ``round_`` is not read."""
        del round_
        return MmFed3Fold(task, state)


def _check_projections(state: Blobs, update: Update, bound: float) -> None:
    """Those sent are the model's, of modalities that the header counts."""
    wanted = projections(state)
    here = {name: t for name, t in update.tensors.items() if name.split("/", 1)[0] == PROJECTION}
    check_names(
        set(update.tensors) | _ROWS,
        {*_ROWS, *(name for name in wanted if name in here)},
        "rows and projections",
    )
    for name, delta in here.items():
        modality = name.split("/")[_HEAD - 1]
        if modality not in update.header.counts:
            raise Refused(Reason.WRONG_MODALITY, f"tensor {name!r}: header.counts names no {modality!r}")
        check_tensor(name, delta, wanted[name].shape, bound)


class MmFed3Fold(PartwiseFold):
    """One round's running aggregate; see :class:`models.contract.Fold`."""

    def __init__(self, task: Task, state: Blobs) -> None:
        config = config_of(task)
        self._most = graph_of(task).max_entities
        self._projections = projections(state)
        self._deltas = FixedPointSum(shapes(self._projections), config.max_delta)
        self._rows = RowsFold(state, task.seed, config.dim, config.span)

    def fold(self, update: Update) -> None:
        """Add one update that :meth:`MmFed3Server.check` has accepted."""
        moved = {name: t for name, t in update.tensors.items() if name in self._projections}
        self._deltas.add(moved, update.header.weight)
        self._rows.fold(update.header.device, update.tensors, self._most)

    def parts(self) -> FoldParts:
        """Projections, and rows of entities."""
        return {"deltas": self._deltas, "rows": self._rows}

    def close(self) -> Blobs:
        """Projections by triples (W_m = sum alpha_c W_m^c), and every device's rows."""
        return unflatten(apply(self._projections, self._deltas.mean())) | self._rows.close()


make_server = MmFed3Server
