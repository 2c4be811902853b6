"""Unseen people, each with a device of its own that has some labelled windows. Imports torch."""

from typing import Final

import numpy as np

from lichen_lab.benchmarks.studies.qqr.trained import Trained
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.streams import rng_of, without_modality
from models.contract import ClientContext, Tensors, WindowSet
from models.data.window_set import select
from models.methods.qqr import METHOD
from models.methods.qqr.personal import blended

GLOBAL: Final = "global model"
WHOLE: Final = "all sensors"
ONE_DEAD: Final = "one sensor missing"
PERSONAL: Final = {"own head": "head", "own prototypes": "prototypes", "own head and prototypes": "both"}
"""Our words -> the method's option ``personal``."""
LABELLED: Final = 0.3
"""Share of a person's windows of a class, the first ones, that its device has labels of."""
_GAP: Final = 1
"""Windows left out after them: neighbours overlap by half."""
LOCAL: Final = {"epochs": 10, "batch": 32, "lr": 0.02, "lr_decay": 1.0}
"""How the device trains, once: few windows, so small batches."""
_ORDER: Final = 401
_MISSING: Final = 402


def personal(trained: Trained) -> dict[str, float]:
    """Accuracy (%) on the windows that the person's device has no labels of, over all people's windows.

    Everyone's device trains once from the final state on its labelled windows and sends nothing. Judged as
    the windows are, and with one sensor missing in each.
    """
    kinds = {GLOBAL: "none", **PERSONAL}
    hits = dict.fromkeys((figure(kind, sensors) for kind in kinds for sensors in (WHOLE, ONE_DEAD)), 0.0)
    windows = 0
    for person in _some(trained):
        own, other = halves(trained.people, person)
        if not len(own) or not len(other):
            continue
        windows += len(other)
        rng = rng_of(_MISSING, trained.spec.seed, person)
        judged = {WHOLE: other, ONE_DEAD: without_modality(other, 1.0, rng)}
        private = _private(trained, own, person)
        for kind, kept in kinds.items():
            for sensors, them in judged.items():
                hits[figure(kind, sensors)] += _right(trained, them, private, kept)
    return {name: 100 * right / max(windows, 1) for name, right in hits.items()}


def figure(kind: str, sensors: str) -> str:
    """The probe's name of a figure."""
    return f"{kind}: {sensors}"


def _some(trained: Trained) -> list[int]:
    """The people; in a small run the first two."""
    people: list[int] = np.unique(trained.people.person_B).tolist()
    return people[:2] if trained.spec.small else people


def halves(people: DataSplit, person: int) -> tuple[WindowSet, WindowSet]:
    """A person's first windows of each class, and those that are judged; in between, some are in neither."""
    theirs = people.of_person(person).windows
    first, rest = [], []
    for label in np.unique(theirs.y_B):
        at = np.flatnonzero(theirs.y_B == label)
        count = round(LABELLED * len(at))
        first.append(at[:count])
        rest.append(at[count + _GAP :])
    return select(theirs, np.concatenate(first)), select(theirs, np.concatenate(rest))


def _private(trained: Trained, own: WindowSet, person: int) -> Tensors:
    """What the person's device keeps after training once: head and prototypes."""
    task = trained.with_options(personal="both", **LOCAL)
    seed = int(rng_of(_ORDER, trained.spec.seed, person).integers(2**31))
    context = ClientContext(task, f"person{person}", trained.spec.setting.rounds + 1, seed)
    return trained.client.train(context, own, trained.state, {}).private


def _right(trained: Trained, windows: WindowSet, private: Tensors, kept: str) -> float:
    """How many windows the person's own model gets right, when it uses that of what its device kept."""
    task = trained.with_options(personal=kept)
    state = blended(METHOD.configure(task), trained.state, private)
    return len(windows) * trained.client.evaluate(task, windows, state).metrics["accuracy"]
