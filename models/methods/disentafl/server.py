"""The coordinator half of DisentAFL: each knowledge type over the devices that hold it (11). NumPy only.

It never needs the supernet of one device, and it trusts no message: the task and the reported profile and
domain determine the content of an update, and it must be exactly that.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from models.aggregation.exact_sums import MAX_ABS
from models.aggregation.partial_results import PartwiseFold
from models.aggregation.prototype_median import row_fold
from models.aggregation.robust import delta_fold
from models.contract import Blobs, Profile, Tensors, Update
from models.header_checks import check_counts, check_weight_one
from models.methods.disentafl import SHARED, DisentAflConfig
from models.methods.disentafl.messages import DisentMessage, ServingMessage
from models.methods.disentafl.routing import domain_gate
from models.methods.disentafl.routing import mean_features as features
from models.methods.disentafl.routing.blob_names import config_of, known, route
from models.partials import FoldParts
from models.tensors import apply, check_names, check_tensor, flatten, shapes, unflatten
from protocol.errors import Reason, Refused
from protocol.tasks.task import Task

_GATE_BOUND: Final = 2 * domain_gate.MAX_STEP
"""Room for the error carry of earlier rounds' quantization."""


def part(name: str) -> str:
    """The first word of a blob's or tensor's name."""
    return name.split("/", 1)[0]


def averaged(config: DisentAflConfig) -> frozenset[str]:
    """The parts of the state whose deltas are sent."""
    if config.aggregate == "kd":
        return frozenset({"gate"})
    private = {"last"} if config.last_layer == "private" else set()
    return frozenset({"gate", "base", "domain", "expert", "decoder", "last"} - private)


def travelling(task: Task, state: Blobs, profile: Profile, domain: int) -> Tensors:
    """By wire name, the tensors whose deltas a device of this profile sends, as they are in the state."""
    parts = averaged(config_of(task))
    blobs = [name for name in route(task, profile, (domain,)) if part(name) in parts]
    return flatten({name: state[name] for name in blobs if name in state})


class DisentAflServer:
    """See :class:`models.contract.RoutedServer`."""

    def route(self, task: Task, profile: Profile) -> tuple[str, ...]:
        """IoGate's, with the experts of all domains: the device's own gate chooses one of these."""
        return route(task, profile)

    def prototype_route(self, task: Task, modalities: Iterable[str]) -> tuple[str, ...]:
        """None: there is no such role."""
        del task, modalities
        return ()

    def serving_route(self, task: Task, profile: Profile, extra: Mapping[str, Any] | None) -> tuple[str, ...]:
        """The route through the domain that the device's gate prefers; through the first before any update.

        Raises:
            Refused: the message is not one of ours, or its domain is not the task's.
        """
        domain = 0
        if extra is not None:
            domain = ServingMessage.read(extra).best
            _check_domain(task, "best", domain)
        return tuple(n for n in route(task, profile, (domain,)) if part(n) not in {"gate", features.PART})

    def serving_message(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The domain that the device's gate prefers.

        Raises:
            Refused: the message is not one of ours.
        """
        return ServingMessage.read(extra).extra()

    def check(self, task: Task, state: Blobs, update: Update) -> None:
        """Compare an update with the model; see :class:`models.contract.Server`.

        Raises:
            Refused: the detail names the tensor, or the field of the header or of the extra message.
        """
        check_weight_one(update.header, "DisentAFL takes a plain mean (11)")
        check_counts(task, update.header)
        message = DisentMessage.read(update.header.extra)
        _check_profile(task, message)
        for field in ("domain", "best"):
            _check_domain(task, field, getattr(message, field))
        _check_rows(task, message)
        wanted = travelling(task, state, message.profile, message.domain)
        values = [features.values_name(blob) for blob in message.rows]
        if not update.tensors:
            raise Refused(Reason.WRONG_TENSORS, "the update has no tensors")
        check_names(update.tensors, [*wanted, *values], "the route of extra.modalities, targets and domain")
        config = config_of(task)
        for name, tensor in wanted.items():
            bound = _GATE_BOUND if part(name) == "gate" else config.max_delta
            check_tensor(name, update.tensors[name], tensor.shape, bound)
        for blob, rows in message.rows.items():
            name = features.values_name(blob)
            check_tensor(name, update.tensors[name], (len(rows), config.latent), MAX_ABS)

    def open(self, task: Task, round_: int, state: Blobs) -> "DisentAflFold":
        """Begin a round on this state; rows of features count their own rounds: ``round_`` is not read."""
        del round_
        return DisentAflFold(task, state)


class DisentAflFold(PartwiseFold):
    """One round's running aggregate; see :class:`models.contract.Fold`."""

    def __init__(self, task: Task, state: Blobs) -> None:
        self._state = state
        parts = averaged(config_of(task))
        moving = flatten({name: tensors for name, tensors in state.items() if part(name) in parts})
        self._deltas = delta_fold(task.robust, shapes(moving), MAX_ABS)
        self._features = {}
        for blob, tensors in state.items():
            if part(blob) == features.PART:
                rows, columns = tensors[features.values_name(blob)].shape
                self._features[blob] = row_fold(task.robust, rows, columns, MAX_ABS)

    def fold(self, update: Update) -> None:
        """Add one update that :meth:`DisentAflServer.check` has accepted."""
        deltas = {name: tensor for name, tensor in update.tensors.items() if part(name) != features.PART}
        self._deltas.add(deltas, update.header.weight)
        for blob, rows in DisentMessage.read(update.header.extra).rows.items():
            name = features.values_name(blob)
            self._features[blob].add(name, np.array(rows), update.tensors[name])

    def parts(self) -> FoldParts:
        """Deltas, and each table of features."""
        return {"deltas": self._deltas, **self._features}

    def close(self) -> Blobs:
        """The next global state: base + mean delta by knowledge type (11); features by row, over rounds.

        What no device sent is the same to the bit: its blobs are not fetched again.
        """
        new = apply(flatten(self._state), self._deltas.mean())
        for blob, rows in self._features.items():
            values, rounds = features.values_name(blob), features.rounds_name(blob)
            new[values], new[rounds] = features.cumulative(
                new[values], new[rounds], rows.mean(), rows.count_K > 0
            )
        return unflatten(new)


def _check_profile(task: Task, message: DisentMessage) -> None:
    """Inputs and targets that the task has, in its order, each once."""
    own = known(task, message.profile)
    fields = (
        ("modalities", message.modalities, own.modalities, task.input_names, Reason.WRONG_MODALITY),
        ("targets", message.targets, own.targets, task.target_names, Reason.WRONG_TENSORS),
    )
    for field, given, sound, names, reason in fields:
        stray = sorted(set(given) - set(sound))
        if stray:
            what = "input" if field == "modalities" else "target"
            raise Refused(
                reason, f"extra.{field}: the task has no {what} {stray[0]!r} (it has {', '.join(names)})"
            )
        if given != sound:
            raise Refused(
                Reason.MALFORMED,
                f"extra.{field}: {', '.join(given)}: each once, in the task's order: {', '.join(sound)}",
            )


def _check_domain(task: Task, field: str, domain: int) -> None:
    """Below D; where there are no domains, 0."""
    config = config_of(task)
    count = config.domains if "mode" in config.families else 1
    if domain >= count:
        raise Refused(Reason.OUT_OF_BOUNDS, f"extra.{field}: domain {domain}; the task has 0 to {count - 1}")


def _check_rows(task: Task, message: DisentMessage) -> None:
    """With kd: rows of the profile's own pairs, and of shared tables those of its own targets; else none."""
    if config_of(task).aggregate != "kd":
        if message.rows:
            raise Refused(
                Reason.WRONG_TENSORS, f'extra.rows.{min(message.rows)}: only with config.aggregate = "kd"'
            )
        return
    if not message.rows:
        raise Refused(Reason.WRONG_TENSORS, 'extra.rows: with config.aggregate = "kd" features are sent')
    allowed = set(route(task, message.profile, ()))
    for blob, rows in message.rows.items():
        if blob not in allowed:
            raise Refused(Reason.WRONG_TENSORS, f"extra.rows: {blob!r} is not on the device's route")
        stray = sorted(set(rows) - _rows_of(task, blob, message.targets))
        if stray:
            raise Refused(
                Reason.OUT_OF_BOUNDS,
                f"extra.rows: row {stray[0]} of {features.values_name(blob)!r} is of none of the device's "
                "targets",
            )


def _rows_of(task: Task, blob: str, targets: tuple[str, ...]) -> set[int]:
    """The rows of a table that a device with these targets may send."""
    table = blob.rpartition(".")[2]
    if table != SHARED:
        return set(features.rows_of(task, table))
    return {row for name in targets for row in features.rows_of(task, name, within=SHARED)}


make_server = DisentAflServer
