"""What a device gains by what it keeps for itself: its own model against the global one."""

from dataclasses import dataclass

import numpy as np

from lichen.simulate import Devices, History
from lichen.streams import rng_of
from models import registry
from models.contract import Evaluation, WindowSet
from models.evaluation import judge
from models.multimodal.inference import probabilities
from models.windowset import select
from protocol.errors import Misconfigured
from protocol.task import Task

_PURPOSE = 103


@dataclass(frozen=True)
class Personal:
    """One device on windows in its own share of classes.

    Attributes:
        common: the global model.
        own: the device's.
    """

    common: Evaluation
    own: Evaluation


def each_personal(
    task: Task, history: History, devices: Devices, test: WindowSet, seed: int
) -> dict[str, Personal]:
    """Judge every device's own model.

    Args:
        task: what was learned.
        history: with the devices' private tensors (``keep_private``).
        devices: as they were simulated; their windows of the last round say which classes a device meets.
        test: labelled windows that no device has seen.
        seed: which of them a device is judged on.

    Raises:
        Misconfigured: the method has no personal model, or the devices kept nothing of their own.
    """
    client = registry.method(task.method).client()
    if not hasattr(client, "personal_model"):
        raise Misconfigured(f"method {task.method!r} has no personal models")
    if not any(history.private.values()):
        raise Misconfigured(
            f"no device of task {task.name!r} kept anything of its own: the method's options say what is kept"
        )
    last, found = len(history.rounds), {}
    for number, name in enumerate(sorted(devices)):
        given = devices[name]
        held = given if isinstance(given, WindowSet) else given.at(last)
        own_test = in_shares_of(test, held, rng_of(seed, _PURPOSE, number))
        own = client.personal_model(task, history.state, history.private[name])
        common = client.evaluate(task, own_test, history.state)
        found[name] = Personal(common, judge(own_test.y_B, probabilities(own, own_test)))
    return found


def in_shares_of(test: WindowSet, held: WindowSet, rng: np.random.Generator) -> WindowSet:
    """As many test windows as can be had in the class shares of what a device holds.

    Raises:
        Misconfigured: none of the device's classes is among the test windows.
    """
    classes = 1 + max(int(test.y_B.max(initial=-1)), int(held.y_B.max(initial=-1)))
    there_K = np.bincount(test.y_B[test.y_B >= 0], minlength=classes)
    share_K = np.bincount(held.y_B[held.y_B >= 0], minlength=classes) * (there_K > 0)
    if not share_K.any():
        raise Misconfigured("a device holds no class that the test windows have: nothing to judge it on")
    met_K = share_K > 0
    most = (there_K[met_K] / share_K[met_K]).min()
    wanted_K = np.floor(share_K * most).astype(np.int64)
    parts = [
        rng.permutation(np.flatnonzero(test.y_B == c))[: max(1, wanted_K[c])] for c in np.flatnonzero(met_K)
    ]
    return select(test, np.sort(np.concatenate(parts)))
