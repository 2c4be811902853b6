"""Measurements of a run beyond its accuracy, most of them of its final state. Imports torch.

Unseen people have a device each (:func:`personal`) that holds some labelled windows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np

from lichen_lab.benchmarks.studies.qqr.settings import QqrRun
from lichen_lab.simulation.data.access.split import DataSplit
from lichen_lab.simulation.data.streams import masked, rng_of, without_modality
from models.contract import Blobs, Client, ClientContext, Tensors, WindowSet
from models.data.window_set import select
from models.methods.qqr import METHOD
from models.methods.qqr.personal import blended
from protocol.tasks.task import Task


@dataclass(frozen=True)
class Trained:
    """The final state of a run.

    Attributes:
        spec: the run.
        task: the run's.
        client: the method's.
        state: the final state.
        test: the windows that versions were evaluated on.
        people: all test windows with their persons.
        online: round -> log loss of that round's model, before it was trained on, on the round's windows
            before their faults; empty unless the probe ``online_loss`` is wanted.
    """

    spec: QqrRun
    task: Task
    client: Client
    state: Blobs
    test: WindowSet
    people: DataSplit
    online: Mapping[int, float] = field(default_factory=dict)

    def accuracy(self, windows: WindowSet, **options: Any) -> float:
        """Accuracy in %, with some options of the method changed at inference."""
        return (
            100 * self.client.evaluate(self.with_options(**options), windows, self.state).metrics["accuracy"]
        )

    def with_options(self, **options: Any) -> Task:
        """The task with some of the method's options changed."""
        return self.task.model_copy(update={"config": {**self.task.config, **options}})


GLOBAL: Final = "global model"
WHOLE: Final = "all sensors"
ONE_DEAD: Final = "one sensor missing"
PERSONAL: Final = {"own head": "head", "own prototypes": "prototypes", "own head and prototypes": "both"}
"""Words in tables -> the method's option ``personal``."""
LABELLED: Final = 0.3
"""Share of a person's windows of each class, the first ones, that are labelled on its device."""
_GAP: Final = 1
"""Windows left out after them, because neighbours overlap by half."""
LOCAL: Final = {"epochs": 10, "batch": 32, "lr": 0.02, "lr_decay": 1.0}
"""Training of the person's device; small batches for few windows."""
_ORDER: Final = 401
_MISSING: Final = 402


def personal(trained: Trained) -> dict[str, float]:
    """Accuracy (%) on the unlabelled windows of all people's devices.

    Each device trains once from the final state on its labelled windows and sends nothing. Evaluated on whole
    windows and with one sensor missing in each.
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
    """A person's first windows of each class, and the later ones for evaluation, with a gap between."""
    theirs = people.of_person(person).windows
    first, rest = [], []
    for label in np.unique(theirs.y_B):
        at = np.flatnonzero(theirs.y_B == label)
        count = round(LABELLED * len(at))
        first.append(at[:count])
        rest.append(at[count + _GAP :])
    return select(theirs, np.concatenate(first)), select(theirs, np.concatenate(rest))


def _private(trained: Trained, own: WindowSet, person: int) -> Tensors:
    """The private head and prototypes after the person's device has trained once."""
    task = trained.with_options(personal="both", **LOCAL)
    seed = int(rng_of(_ORDER, trained.spec.seed, person).integers(2**31))
    context = ClientContext(task, f"person{person}", trained.spec.setting.rounds + 1, seed)
    return trained.client.train(context, own, trained.state, {}).private


def _right(trained: Trained, windows: WindowSet, private: Tensors, kept: str) -> float:
    """Number of windows that the person's model classifies correctly with these private parts."""
    task = trained.with_options(personal=kept)
    state = blended(METHOD.configure(task), trained.state, private)
    return len(windows) * trained.client.evaluate(task, windows, state).metrics["accuracy"]


FILLS: Final = {
    "prototypes": "pnr",
    "mean feature": "mean_feature",
    "zero input": "zero_input",
    "zero feature": "zero_feature",
}
"""Replacements of a missing modality at inference: words in tables -> option ``impute``."""


def without(windows: WindowSet, modality: str) -> WindowSet:
    """The windows with one modality missing everywhere."""
    return masked(windows, np.array(list(windows.x)) != modality)


def dead_sensor(trained: Trained) -> dict[str, float]:
    """Accuracy (%) with each modality missing in every test window, filled as the run's method does."""
    return {name: trained.accuracy(without(trained.test, name)) for name in trained.task.modality_names}


def fillings(trained: Trained) -> dict[str, float]:
    """The same with each filling, on one trained model."""
    return {
        f"{name}: {words}": trained.accuracy(without(trained.test, name), impute=impute)
        for name in trained.task.modality_names
        for words, impute in FILLS.items()
    }


def unseen_class(trained: Trained) -> dict[str, float]:
    """Recall of the class without training devices, and accuracy on the other classes, in %.

    ``with``: as configured. ``without``: the same state without the nearest-prototype head.
    """
    hidden = trained.spec.conditions.unseen_class
    figures = {}
    for words, novel in (("with", True), ("without", False)):
        task = trained.with_options(novel_classes=novel)
        confusion_KK = np.array(
            trained.client.evaluate(task, trained.test, trained.state).confusion_KK, float
        )
        others = [k for k in range(len(confusion_KK)) if k != hidden]
        figures[f"others, {words}"] = _share(confusion_KK[others, others].sum(), confusion_KK[others].sum())
        if hidden is not None:
            row_K = confusion_KK[hidden]
            figures[f"recall, {words}"] = _share(row_K[hidden], row_K.sum())
    return figures


def online_loss(trained: Trained) -> dict[str, float]:
    """The first sum of the paper's regret (3), up to each round.

    The other sum, the loss of the best fixed model in hindsight, is the same for all methods of a seed.
    """
    return {
        str(round_): total
        for round_, total in zip(trained.online, accumulate(trained.online.values()), strict=True)
    }


def _share(part: float, whole: float) -> float:
    return float(100 * part / max(whole, 1.0))


ONLINE_LOSS: Final = "online_loss"
Probe = Callable[[Trained], dict[str, float]]
PROBES: Final[dict[str, Probe]] = {
    "dead_sensor": dead_sensor,
    "fillings": fillings,
    ONLINE_LOSS: online_loss,
    "personal": personal,
    "unseen_class": unseen_class,
}
