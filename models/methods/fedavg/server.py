"""The coordinator half of FedAvg: the weighted mean of the devices' models. NumPy only."""

from collections.abc import Iterable

from models.aggregation.model_updates import check_model, encoder_blobs, model_tensors
from models.aggregation.partial_results import PartwiseFold
from models.aggregation.robust import delta_fold
from models.contract import Blobs, Profile, Tensors, Update
from models.header_checks import check_counts, check_weight_one
from models.methods.fedavg import MAX_WEIGHT, METHOD
from models.methods.fedavg.messages import FedAvgMessage
from models.methods.fedavg.personal import tensors_to_send
from models.partials import FoldParts
from models.tensors import apply, flatten, shapes, unflatten
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task


def _learned(task: Task, state: Blobs) -> Tensors:
    """The tensors that are sent as deltas."""
    return tensors_to_send(METHOD.configure(task), model_tensors(state))


class FedAvgServer:
    """See :class:`models.contract.Server`."""

    def __init__(self) -> None:
        self._last: tuple[Blobs, dict[str, tuple[int, ...]]] | None = None

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """The device's encoders, and the head."""
        return (*encoder_blobs(task, profile.modalities), "head")

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """None: there is no such role."""
        del task, modalities
        return ()

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Compare an update with the model; see :class:`models.contract.Server`.

        Raises:
            Refused: the detail names the tensor, or the field of the header.
        """
        config, header = METHOD.configure(task), update.header
        if config.weigh_by == "equal":
            check_weight_one(header, 'with config.weigh_by = "equal" every device weighs')
        elif not 1 <= header.weight <= MAX_WEIGHT:
            raise Refused(
                Reason.OUT_OF_BOUNDS, f"header.weight is {header.weight}; FedAvg takes 1 to {MAX_WEIGHT}"
            )
        check_counts(task, header)
        FedAvgMessage.read(header.extra)
        if not update.tensors:
            raise Refused(Reason.WRONG_TENSORS, "the update has no tensors")
        check_model(self._shapes(task, state), update.tensors, config.max_delta)

    def _shapes(self, task: Task, state: Blobs) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensors that are sent as deltas; found once for the updates of a round."""
        last = self._last
        if last is None or last[0] is not state:
            last = self._last = state, shapes(_learned(task, state))
        return last[1]

    def open(self, task: Task, round_: int, state: Blobs) -> "FedAvgFold":
        """Begin a round on this state; ``round_`` is not read."""
        del round_
        return FedAvgFold(task, state)


class FedAvgFold(PartwiseFold):
    """One round's running aggregate; see :class:`models.contract.Fold`."""

    def __init__(self, task: Task, state: Blobs) -> None:
        self._state = state
        # the bound of checked values leaves the most room for weights
        bound = METHOD.configure(task).max_delta
        self._deltas = delta_fold(task.robust, shapes(_learned(task, state)), bound)

    def fold(self, update: Update) -> None:
        """Add one update that :meth:`FedAvgServer.check` has accepted."""
        self._deltas.add(update.tensors, update.header.weight)

    def parts(self) -> FoldParts:
        """Deltas alone."""
        return {"deltas": self._deltas}

    def close(self) -> Blobs:
        """The next global state: base + weighted mean delta; what was not sent is the same to the bit."""
        return unflatten(apply(flatten(self._state), self._deltas.mean()))


make_server = FedAvgServer
