"""Whether a task's rounds can be secure: what compares or shows single updates is refused."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from models.spec import MethodSpec
from protocol.errors import Misconfigured
from protocol.tasks.task import Task


def require_secure(task: Task, spec: MethodSpec[Any]) -> None:
    """Check a task with ``[secure_aggregation]``; any other one passes.

    Raises:
        Misconfigured: rounds of it cannot be secure; the message names each key, why, and what to write.
    """
    if wrong := [f"secure_aggregation: {words}" for words in _troubles(task, spec)]:
        raise Misconfigured("\n".join(wrong))


def _troubles(task: Task, spec: MethodSpec[Any]) -> Iterator[str]:
    options = task.secure_aggregation
    if options is None:
        return
    yield from _of_method(task, spec)
    yield from _of_bound(task, spec, options.bound)
    robust, rounds = task.robust, task.rounds
    if robust.fold != "mean":
        yield f"robust.fold = {robust.fold!r} compares updates, of which only the sum is seen; write 'mean'"
    if robust.prototypes != "mean":
        yield (
            f"robust.prototypes = {robust.prototypes!r} compares updates, of which only the sum is seen; "
            "write 'mean'"
        )
    if "outlier_factor" in robust.model_fields_set and robust.outlier_factor:
        yield (
            f"robust.outlier_factor = {robust.outlier_factor:g} measures single updates, which nobody sees; "
            "leave it out (devices cut values at secure_aggregation.bound)"
        )
    if rounds.selection == "bandit":
        yield (
            "rounds.selection = 'bandit' needs each device's loss, which no secure round reports; use "
            "'coverage' or 'uniform'"
        )
    if rounds.min_devices < options.min_devices and not (task.privacy and task.privacy.rate):
        yield (
            f"rounds.min_devices = {rounds.min_devices} would open rounds whose sum is never made; write "
            f"{options.min_devices} (secure_aggregation.min_devices) or more"
        )
    drawn = rounds.devices_per_round
    # with [privacy] devices also add noise, for which the check of that table makes room
    if drawn is not None and task.privacy is None and (trouble := options.room_trouble(drawn)):
        yield f"rounds.devices_per_round: {trouble}"


def _of_bound(task: Task, spec: MethodSpec[Any], bound: float) -> Iterator[str]:
    """Values that a device would not cut, and could not send either: after a spoilt sum for ever."""
    with suppress(Misconfigured):  # as below
        most = getattr(spec.configure(task), "max_delta", None)
        if most is not None and bound > most:
            yield f"bound = {bound:g} is beyond config.max_delta = {most:g}, from which updates are refused"


def _of_method(task: Task, spec: MethodSpec[Any]) -> Iterator[str]:
    """What a method does with single updates."""
    name = f"method {spec.name!r}"
    if not spec.summed:
        yield f"{name}: its fold is not a sum of whole numbers of one shape"
    elif spec.not_secure is not None:
        with suppress(Misconfigured):  # the check of the options says what is wrong with them
            if why := spec.not_secure(spec.configure(task), task):
                yield f"{name}: {why}"
    elif spec.routed and not hasattr(spec.server(), "serving_message"):
        yield f"{name} does not say what determines a device's bundle (RoutedServer.serving_message)"
    elif spec.guided:
        yield f"{name} evaluates each update on the coordinator's labelled windows, and nobody sees one"
